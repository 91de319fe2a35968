"""Results of several arms side by side: the ratio of their means, and how sure it is.

A result is a list of rows, one per seed. Of two arms with means a and b over their seeds the ratio is a ÷ b. Its
logarithm has, to first order, the variance of a ÷ a's mean less b ÷ b's mean (Fieller's problem by the delta method),
so its interval is Student's, on that scale. Where both arms ran the same seeds, a seed's two rows saw the same load and
their difference is what varies; else the arms vary on their own, and the degrees of freedom are Welch's. One seed says
nothing of how much seeds differ: then there is a ratio, without an interval.
"""

from collections.abc import Iterable, Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any, Final, NamedTuple

import msgspec

METRICS: Final = (
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    *(f"{part}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for part in ("mean", "median", "p90", "p99")),
    "completed",
    "failed",
    "cached_tokens",
)
# Student's t for a two-sided 95 % interval, by degrees of freedom from 1 on; beyond them its expansion is as exact.
_STUDENT: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class Row(msgspec.Struct, kw_only=True):
    """The figures of one run. `records`: its per-request file, where there is one."""

    scenario: str
    arm: str
    seed: int
    figures: dict[str, Any]
    records: Path | None = None


class Ratio(msgspec.Struct, kw_only=True):
    """An arm beside the baseline; `low` and `high` are the 95 % interval's ends, null where there is none."""

    scenario: str
    metric: str
    baseline: str
    arm: str
    baseline_mean: float
    mean: float
    ratio: float | None
    low: float | None = None
    high: float | None = None
    seeds: int


class _Interval(NamedTuple):
    low: float | None = None
    high: float | None = None


def read(path: Path) -> list[Row]:
    """The rows of a result file; an arm without a name goes by the file's. ValueError where it is no result."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]] | dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no result: {error}") from error
    rows = []
    for figures in found if isinstance(found, list) else [found]:
        beside = figures.get("requests_file")
        rows.append(
            Row(
                scenario=str(figures.get("scenario", "")),
                arm=str(figures.get("arm") or path.stem),
                seed=int(figures.get("seed", 0)),
                figures=figures,
                records=path.parent / beside if beside else None,
            )
        )
    return rows


def compare(rows: Sequence[Row], *, baseline: str | None = None, metrics: Iterable[str] = METRICS) -> list[Ratio]:
    """Every other arm beside the baseline (None: that of the first row), by scenario and metric.

    Metrics that an arm does not have are left out. ValueError where no row is of the baseline.
    """
    arms = list(dict.fromkeys(row.arm for row in rows))
    first = baseline if baseline is not None else arms[0]
    if first not in arms:
        raise ValueError(f"no arm {first!r}; there are {', '.join(arms)}")
    return [
        ratio
        for scenario in dict.fromkeys(row.scenario for row in rows)
        for metric in metrics
        for arm in arms
        if arm != first and (ratio := _ratio(rows, scenario, metric, first, arm)) is not None
    ]


def _ratio(rows: Sequence[Row], scenario: str, metric: str, baseline: str, arm: str) -> Ratio | None:
    base, other = _values(rows, scenario, metric, baseline), _values(rows, scenario, metric, arm)
    if not base or not other:
        return None
    base_mean, mean = (fmean(value for _, value in values) for values in (base, other))
    sure = _interval(other, base) if base_mean > 0 and mean > 0 else _Interval()
    return Ratio(
        scenario=scenario,
        metric=metric,
        baseline=baseline,
        arm=arm,
        baseline_mean=base_mean,
        mean=mean,
        ratio=mean / base_mean if base_mean else None,
        low=sure.low,
        high=sure.high,
        seeds=min(len(base), len(other)),
    )


def _values(rows: Sequence[Row], scenario: str, metric: str, arm: str) -> list[tuple[int, float]]:
    """A metric of an arm, with its seeds, in their order."""
    return sorted(
        (row.seed, float(value))
        for row in rows
        if (row.scenario, row.arm) == (scenario, arm) and isinstance(value := row.figures.get(metric), int | float)
    )


def _interval(above: list[tuple[int, float]], below: list[tuple[int, float]]) -> _Interval:
    """The interval of a ratio of two positive means."""
    if min(len(above), len(below)) < 2:
        return _Interval()
    (a_mean, a), (b_mean, b) = _scaled(above), _scaled(below)
    seeds = [seed for seed, _ in above]
    if seeds == [seed for seed, _ in below] and len(set(seeds)) == len(seeds):
        squared = variance(x - y for x, y in zip(a, b, strict=True)) / len(a)
        freedom = len(a) - 1.0
    else:
        of_a, of_b = variance(a) / len(a), variance(b) / len(b)
        squared = of_a + of_b
        spread = of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1)
        freedom = squared**2 / spread if spread else float(len(a) + len(b) - 2)
    middle, reach = log(a_mean / b_mean), student(freedom) * sqrt(squared)
    return _Interval(exp(middle - reach), exp(middle + reach))


def _scaled(values: list[tuple[int, float]]) -> tuple[float, list[float]]:
    mean = fmean(value for _, value in values)
    return mean, [value / mean for _, value in values]


def student(freedom: float) -> float:
    """Student's t for a two-sided 95 % interval; fractional degrees of freedom count as fewer."""
    whole = max(int(freedom), 1)
    return _STUDENT[whole - 1] if whole <= len(_STUDENT) else 1.96 + 2.372 / whole
