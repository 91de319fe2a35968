"""A calibration for a person: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.calibrate.result import Result, Transport, Way

_HEAD: Final = ("tokens", "pulled", "computed ms", "pull ms", "local ms", "pull takes")
_TRANSPORTS: Final[dict[Transport, str]] = {
    "tcp": "as fast as TCP: where the pods have RDMA cards, NIXL does not use them (see UCX_TLS, UCX_NET_DEVICES)",
    "rdma": "faster than TCP: RDMA",
    "same-host": "both pods are on one host: nothing can be said of the network",
    "unknown": "whether that is TCP or RDMA cannot be told",
}


def report(result: Result) -> str:
    """The whole text."""
    lines = [f"model {result.model}, medians of {result.rounds}"]
    for way in result.ways:
        lines += ["", *_way(way)]
    lines += ["", *_advice(result)]
    lines += [f"warning: {warning}" for warning in result.warnings]
    return "\n".join(lines) + "\n"


def _way(way: Way) -> Iterator[str]:
    yield f"{way.consumer} pulls from {way.source}"
    rows = [
        (
            f"{row.tokens:,}",
            f"{row.pulled_tokens:,}",
            f"{row.recompute_ms:.1f}",
            f"{row.pull_ms:.1f}",
            f"{row.local_ms:.1f}",
            f"{row.pull_ms / row.recompute_ms:.0%}" if row.recompute_ms else "-",
        )
        for row in way.rows
    ]
    yield from _aligned([_HEAD, *rows])
    prefill, pull = way.prefill, way.pull
    yield (
        f"computing n tokens: {1e3 * prefill['fixed_s']:.1f} ms + {1e6 * prefill['token_s']:.2f} µs · n"
        f" + {1e9 * prefill['square_s']:.3f} ns · n²"
    )
    yield f"pulling n tokens: {1e3 * pull['fixed_s']:.1f} ms + {1e6 * pull['token_s']:.2f} µs · n{_speed(way)}"
    yield f"the first pull took {way.first_pull_ms:.0f} ms; {_TRANSPORTS[way.transport]}"
    yield f"a pull pays {_from(way.crossover)} by these costs, {_from(way.measured_crossover)} of the lengths measured"


def _speed(way: Way) -> str:
    return "" if way.gb_per_s is None else f" ({way.gb_per_s:.1f} GB/s)"


def _from(tokens: int | None) -> str:
    return "never" if tokens is None else f"from {tokens:,} tokens on"


def _advice(result: Result) -> list[str]:
    if result.recommended is None:
        return ["recommended: leave p2p.min_cached_token_delta at auto: one way at least, no pull ever pays"]
    return [
        f"recommended: p2p.min_cached_token_delta: {result.recommended}",
        "(or leave it at auto, and give the gateway these costs with --save: then each pair goes by its own)",
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
