"""Figures of many records, by the names that people know from other load generators.

All are over what was measured, the warm-up left out. Latencies are of completed requests, rates are per second of the
measured time: from when the first of its requests was due to when the last one ended.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadgen.client.failures import UNFINISHED
from loadgen.report.record import Record

LATENCIES: Final = ("ttft", "tpot", "itl", "e2el")
_TIMES: Final = ("ttft", "tpot", "e2el", "ttft_sent", "e2el_sent", "first_byte", "connect", "schedule_delay")
_PERCENTILES: Final = (50, 90, 95, 99)


class Objectives:
    """What a request has to keep to be good: a bound in milliseconds for any of ttft, tpot, itl (mean) and e2el."""

    def __init__(self, bounds_ms: Mapping[str, float]) -> None:
        unknown = bounds_ms.keys() - set(LATENCIES)
        if unknown:
            raise ValueError(f"no latency {min(unknown)!r}; there are {', '.join(LATENCIES)}")
        self.bounds_ms = dict(bounds_ms)

    def met(self, record: Record) -> bool:
        """Whether a request kept them all; one that did not complete kept none."""
        return record.completed and all(_value(record, name) <= bound for name, bound in self.bounds_ms.items())


def _value(record: Record, name: str) -> float:
    """A latency of a request; 0 where it has none, as an answer of one token has no time between tokens."""
    if name == "itl":
        return sum(record.itl_ms) / len(record.itl_ms) if record.itl_ms else 0.0
    value: float | None = getattr(record, f"{name}_ms")
    return value or 0.0


class Figures:
    """Adds records up. A record costs some 100 bytes, and 4 per token for the times between them."""

    def __init__(self, objectives: Objectives | None = None) -> None:
        self._objectives = objectives
        self._values: dict[str, array[float]] = {name: array("d") for name in _TIMES}
        self._itl = array("f")
        self._begins, self._ends = array("d"), array("d")
        self._first_due = inf
        self._counts: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._pods: Counter[str] = Counter()

    def add(self, record: Record) -> None:
        """Count a request that was measured."""
        self._first_due = min(self._first_due, record.scheduled_s)
        self._begins.append(record.sent_s)
        self._ends.append(record.ended_s)
        self._values["schedule_delay"].append(record.schedule_delay_ms)
        if record.pod is not None:
            self._pods[record.pod] += 1
        if record.source is not None:
            self._counts["pulls"] += 1
        if record.error is not None:
            self._errors[record.error] += 1
            return
        self._counts["completed"] += 1
        if self._objectives is not None:
            self._counts["good"] += self._objectives.met(record)
        self._add_tokens(record)
        self._itl.extend(record.itl_ms)
        for name in _TIMES[:-1]:
            value: float | None = getattr(record, f"{name}_ms")
            if value is not None:
                self._values[name].append(value)

    def _add_tokens(self, record: Record) -> None:
        self._tokens["input"] += record.prompt_tokens
        self._tokens["output"] += record.output_tokens
        if record.cached_tokens is not None:
            self._counts["told_cached"] += 1
            self._tokens["cached"] += record.cached_tokens
            self._tokens["recomputed"] += record.prompt_tokens - record.cached_tokens

    @property
    def duration_s(self) -> float:
        """The measured time."""
        return max(self._ends) - self._first_due if self._ends else 0.0

    def row(self) -> dict[str, Any]:
        """All figures. What nobody told (cached tokens, goodput without objectives) is null."""
        counts, tokens, seconds = self._counts, self._tokens, self.duration_s
        told = bool(counts["told_cached"])
        unfinished = self._errors[UNFINISHED]
        row: dict[str, Any] = {
            "duration": seconds,
            "num_prompts": len(self._ends),
            "completed": counts["completed"],
            "failed": self._errors.total() - unfinished,
            "unfinished": unfinished,
            "total_input_tokens": tokens["input"],
            "total_output_tokens": tokens["output"],
            "request_throughput": _rate(counts["completed"], seconds),
            "request_goodput": _rate(counts["good"], seconds) if self._objectives is not None else None,
            "output_throughput": _rate(tokens["output"], seconds),
            "total_token_throughput": _rate(tokens["input"] + tokens["output"], seconds),
            "max_concurrent_requests": _most_at_once(self._begins, self._ends),
            "pulls": counts["pulls"],
            "pulled_tokens": None,  # an endpoint does not tell
            "cached_tokens": tokens["cached"] if told else None,
            "recomputed_tokens": tokens["recomputed"] if told else None,
        }
        for name in ("ttft", "tpot"):
            row |= _statistics(name, self._values[name])
        row |= _statistics("itl", self._itl)
        for name in _TIMES[2:]:
            row |= _statistics(name, self._values[name])
        errors = {kind: count for kind, count in self._errors.most_common() if kind != UNFINISHED}
        return row | {"errors": errors, "pods": dict(self._pods.most_common())}


def summarize(records: Iterable[Record], objectives: Objectives | None = None) -> dict[str, Any]:
    """The figures of records, and under "phases" those of each phase, where there are several."""
    whole, phases = Figures(objectives), dict[str, Figures]()
    for record in records:
        if not record.warm_up:
            whole.add(record)
            phases.setdefault(record.phase, Figures(objectives)).add(record)
    return whole.row() | phase_rows(phases)


def phase_rows(phases: Mapping[str, Figures]) -> dict[str, Any]:
    """What a row has of its phases."""
    return {"phases": {name: figures.row() for name, figures in phases.items()}} if len(phases) > 1 else {}


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _statistics(name: str, values: "array[float]") -> dict[str, float | None]:
    """Mean, deviation, percentiles and maximum in milliseconds; null where there is no value."""
    named = {50: f"median_{name}_ms", **{percent: f"p{percent}_{name}_ms" for percent in _PERCENTILES[1:]}}
    if not values:
        return dict.fromkeys((f"mean_{name}_ms", f"std_{name}_ms", *named.values(), f"max_{name}_ms"))
    ordered: NDArray[np.float64] = np.sort(np.asarray(values, np.float64))
    found = np.percentile(ordered, _PERCENTILES)
    return {
        f"mean_{name}_ms": float(ordered.mean()),
        f"std_{name}_ms": float(ordered.std()),
        **{named[percent]: float(value) for percent, value in zip(_PERCENTILES, found, strict=True)},
        f"max_{name}_ms": float(ordered[-1]),
    }


def _most_at_once(begins: "array[float]", ends: "array[float]") -> int:
    """The most intervals that overlap. O(n log n)."""
    if not begins:
        return 0
    times = np.concatenate((ends, begins))  # at equal times an end comes first: the sort is stable
    steps = np.repeat(np.array((-1, 1)), len(begins))
    return int(np.cumsum(steps[np.argsort(times, kind="stable")]).max())
