"""Figures for people: aligned text, with rich where it is installed and someone looks."""

import sys
from collections.abc import Sequence
from typing import Any, TextIO

_LATENCIES = (
    ("TTFT", "ttft"),
    ("TPOT", "tpot"),
    ("ITL", "itl"),
    ("E2EL", "e2el"),
    ("schedule delay", "schedule_delay"),
)
_COLUMNS = ("mean", "median", "p90", "p99", "max")
_ERRORS_TOLD = 5


def shown(value: object) -> str:
    """A figure as people read it: four digits that count, a dash for what is not known."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def summary(row: dict[str, Any]) -> str:
    """What came of one load, in some twenty lines."""
    counts = [
        ("requests", f"{shown(row['completed'])} completed, {row['failed']} failed, {row['unfinished']} unfinished"),
        ("duration", f"{shown(row['duration'])} s, at most {row['max_concurrent_requests']} at once"),
        ("requests/s", f"{shown(row['request_throughput'])}{_goodput(row)}"),
        ("tokens/s", f"{shown(row['output_throughput'])} out, {shown(row['total_token_throughput'])} in all"),
        ("tokens", f"{shown(row['total_input_tokens'])} in{_cached(row)}, {shown(row['total_output_tokens'])} out"),
    ]
    if row["pulls"]:
        counts.append(("pulls", f"a source was named for {row['pulls']}"))
    if row.get("not_sent"):
        counts.append(("not sent", f"{row['not_sent']}, though they were due"))
    errors = [("error", f"{count} {kind}") for kind, count in list(row["errors"].items())[:_ERRORS_TOLD]]
    latencies = [(title, *(shown(row[f"{column}_{name}_ms"]) for column in _COLUMNS)) for title, name in _LATENCIES]
    return "\n".join((*aligned(counts + errors, left=2), "", *aligned([("ms", *_COLUMNS), *latencies], left=1)))


def _goodput(row: dict[str, Any]) -> str:
    good = row["request_goodput"]
    return "" if good is None else f", {shown(good)} within their objectives"


def _cached(row: dict[str, Any]) -> str:
    cached = row["cached_tokens"]
    if cached is None or not row["total_input_tokens"]:
        return ""
    return f" ({cached / row['total_input_tokens']:.0%} cached)"


def aligned(rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Rows as lines with their columns under each other: the first `left` ones flush left, the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def show(title: str, text: str, file: TextIO | None = None) -> None:
    """Print a block of text under its title, in a frame where rich is installed and the file is a terminal."""
    out = file or sys.stdout
    if out.isatty():
        try:
            from rich.console import Console  # noqa: PLC0415 (optional)
            from rich.panel import Panel  # noqa: PLC0415 (optional)
            from rich.text import Text  # noqa: PLC0415 (optional)
        except ImportError:
            pass
        else:
            Console(file=out).print(Panel.fit(Text(text), title=title))
            return
    print(f"{title}\n\n{text}" if title else text, file=out, flush=True)
