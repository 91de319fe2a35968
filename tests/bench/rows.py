"""A row of the report: ours, the peer's where there is one, and their ratio, each a median over the rounds."""

import os
import platform
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

Values: TypeAlias = Mapping[str, Sequence[float]]
"""One value per round, by measure."""


_UNSTEADY: Final = 1.5
"""Rounds that differ by this factor were disturbed: their row is to be taken with care."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """`ratio` is ours ÷ peer's; the peer's fields are None together."""

    name: str
    value: float
    unit: str
    peer: str | None
    peer_value: float | None
    ratio: float | None
    runs: int
    machine: str


class Peer(NamedTuple):
    """What a peer is called, and what it measured."""

    name: str
    values: Values


def row(name: str, unit: str, ours: Sequence[float], peer: str | None = None, theirs: Sequence[float] = ()) -> Row:
    """A row of medians; says so on standard error when the rounds differ widely."""
    for whose, values in (("ours", ours), ("the peer's", theirs)):
        if values and max(values) >= _UNSTEADY * min(values):
            sys.stderr.write(f"bench: {name}: {whose} rounds go from {_shown(min(values))} to {_shown(max(values))}\n")
    value = statistics.median(ours)
    peer_value = statistics.median(theirs) if theirs else None
    return Row(
        name=name,
        value=_rounded(value),
        unit=unit,
        peer=peer if theirs else None,
        peer_value=None if peer_value is None else _rounded(peer_value),
        ratio=_rounded(value / peer_value) if peer_value else None,
        runs=len(ours),
        machine=machine(),
    )


def collected(rounds: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """One mapping per round → the values of each measure."""
    return {measure: [each[measure] for each in rounds] for measure in rounds[0]} if rounds else {}


def machine() -> str:
    """Processors, kernel and Python; nothing that names the machine."""
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cores = len(os.sched_getaffinity(0))
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{cores} x {model[1].strip() if model else platform.machine()}, Linux {kernel}, {_python()}"


def table(rows: Sequence[Row]) -> str:
    """The rows for a person."""
    lines = [("measure", "ours", "unit", "peer's", "ratio", "peer")]
    for each in rows:
        theirs = "-" if each.peer_value is None else _shown(each.peer_value)
        ratio = "-" if each.ratio is None else f"{each.ratio:.2f}"
        lines.append((each.name, _shown(each.value), each.unit, theirs, ratio, each.peer or "-"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _python() -> str:
    return f"{platform.python_implementation()} {'.'.join(map(str, sys.version_info[:3]))}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
