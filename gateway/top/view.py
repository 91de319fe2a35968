"""What is shown: rows of text with a mood each, whoever draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from config.addresses import http_address
from gateway.top.rates import Rates

Mood = Literal["plain", "good", "warn", "bad"]


class Column(Struct, frozen=True):
    """`rank`: the lower, the longer it stays where a terminal is narrow."""

    title: str
    rank: int
    left: bool = False


class Row(Struct, frozen=True):
    """Cells in the order of the columns."""

    cells: tuple[str, ...]
    mood: Mood = "plain"


class View(Struct, frozen=True):
    """One moment of a fleet."""

    summary: str
    pods: list[Row]
    links: list[Row]


POD_COLUMNS: Final = (
    Column("pod", 0, left=True),
    Column("state", 1, left=True),
    Column("req/s", 4),
    Column("tok/s", 5),
    Column("TTFT", 6),
    Column("in flight", 2),
    Column("running", 8),
    Column("waiting", 3),
    Column("KV", 7),
    Column("GPU blocks", 10),
    Column("CPU blocks", 11),
    Column("events", 9),
    Column("pulls in", 12),
    Column("pulls out", 13),
    Column("credit", 14),
)
LINK_COLUMNS: Final = (
    Column("pulls from", 0, left=True),
    Column("to", 0, left=True),
    Column("fixed", 3),
    Column("per 1K tokens", 1),
    Column("pays from", 2),
    Column("samples", 4),
)


def view(told: Mapping[str, Any], rates: Rates | None) -> View:
    """Of what `/pods` says, and what has happened since the last look. Raises LookupError, TypeError, ValueError."""
    pods = [_pod(row, rates) for row in told["pods"]]
    links = sorted(told["links"], key=lambda link: (not link["slowed"], -link["samples"]))
    return View(_summary(told["pods"], rates), pods, [_link(link) for link in links])


def _summary(pods: Sequence[Mapping[str, Any]], rates: Rates | None) -> str:
    ready = sum(pod["state"] == "ready" for pod in pods)
    parts = [f"{ready} of {len(pods)} pods ready"]
    if rates is not None:
        parts += [f"{rates.requests:,.1f} req/s"]
        if rates.failed:
            parts += [f"{rates.failed:,.1f}/s failed"]
        parts += [f"{rates.prompt_tokens:,.0f} prompt tok/s", f"{rates.completion_tokens:,.0f} tok/s"]
        parts += [f"TTFT p50 {_seconds(rates.ttft_p50)} p99 {_seconds(rates.ttft_p99)}", f"{rates.pulls:,.1f} pulls/s"]
    return " · ".join(parts)


def _pod(row: Mapping[str, Any], rates: Rates | None) -> Row:
    name = http_address(row["url"])
    state, mood = _state(row)
    blocks, age = row["cached_blocks"], row["last_event_age"]
    uncertain = "" if row["certain"] or age is None else "?"
    per_pod = (rates.pod_requests, rates.pod_tokens) if rates is not None else ({}, {})
    return Row(
        (
            name,
            state,
            *("-" if rates is None else f"{each.get(name, 0.0):,.1f}" for each in per_pod),
            _seconds(None if rates is None else rates.pod_ttft.get(name)),
            _count(row["in_flight_requests"]),
            _count(row["running"]),
            _count(row["waiting"]),
            "-" if row["kv_usage"] is None else f"{row['kv_usage']:.0%}",
            _count(blocks["gpu"]),
            _count(blocks["cpu"]),
            "-" if age is None else f"{_age(age)}{uncertain}",
            _count(row["pulls"]),
            _count(row["serving"]),
            "-" if row["credit"] is None else f"{row['credit']:.2f}",
        ),
        mood,
    )


def _state(row: Mapping[str, Any]) -> tuple[str, Mood]:
    if row["state"] != "ready":
        reason = f": {row['reason']}" if row["reason"] else ""
        return f"{row['state']}{reason}", "bad"
    doubts = [name for name in ("suspect", "stalled") if row[name]]
    if row["breaker"] != "closed":
        doubts.insert(0, f"breaker {row['breaker']}")
    return (", ".join(doubts), "warn") if doubts else ("ready", "good")


def _link(link: Mapping[str, Any]) -> Row:
    crossover = link["crossover_tokens"]
    return Row(
        (
            _end(link["source"], link["source_rank"]),
            _end(link["consumer"], link["consumer_rank"]),
            f"{link['fixed_ms']:,.1f} ms",
            f"{link['us_per_token']:,.1f} ms",
            "never" if crossover is None else f"{crossover:,}",
            f"{link['samples']:,.0f}",
        ),
        "warn" if link["slowed"] else "plain",
    )


def _end(url: str, rank: int) -> str:
    return f"{http_address(url)} rank {rank}" if rank else http_address(url)


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1e3:,.0f} ms" if value < 1 else f"{value:,.2f} s"


def _age(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 5400 else f"{seconds / 3600:,.0f} h"
