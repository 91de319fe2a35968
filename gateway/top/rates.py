"""From two pages of `/metrics` to what happened between them: rates, and quantiles out of histograms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import inf
from typing import Final

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

_NS: Final = "p2p_gateway_"
_COUNTED: Final = ("requests_total", "prompt_tokens_total", "completion_tokens_total", "pulls_total")
_TIMED: Final = ("ttft_seconds_bucket", "pod_ttft_seconds_sum", "pod_ttft_seconds_count")
_WANTED: Final = tuple(_NS + name for name in (*_COUNTED, *_TIMED))

Labels = frozenset[tuple[str, str]]


class Page(Struct, frozen=True):
    """The series of a page that are looked at: name → labels → value. `at`: seconds of any monotonic clock."""

    at: float
    series: Mapping[str, Mapping[Labels, float]]


class Rates(Struct, frozen=True):
    """Per second, over all pods or by `host:port`; times in seconds. None: nothing is known of it."""

    requests: float
    failed: float
    prompt_tokens: float
    completion_tokens: float
    pulls: float
    ttft_p50: float | None
    ttft_p99: float | None
    pod_requests: Mapping[str, float]
    pod_tokens: Mapping[str, float]
    pod_ttft: Mapping[str, float]


def page(text: str, at: float) -> Page:
    """Parse what is needed of an exposition. Raises ValueError. O(lines); of others nothing but their beginning."""
    # Not `splitlines`: that ends lines at U+2028 and the like, which may be in the name of a model.
    wanted = "".join(f"{line}\n" for line in text.split("\n") if line.startswith(_WANTED))
    series: dict[str, dict[Labels, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(wanted):
        for sample in family.samples:
            name = sample.name.removeprefix(_NS)
            series[name][frozenset(sample.labels.items())] = sample.value
    return Page(at, series)


def rates(before: Page, now: Page) -> Rates | None:
    """What happened between two pages; None where the counters of the second began anew, or no time lies between."""
    seconds = now.at - before.at
    moved: dict[str, dict[Labels, float]] = {}
    for name, values in now.series.items():
        known = before.series.get(name, {})
        moved[name] = {labels: value - known.get(labels, 0.0) for labels, value in values.items()}
    if seconds <= 0 or any(each < 0 for values in moved.values() for each in values.values()):
        return None
    buckets = _by(moved.get("ttft_seconds_bucket", {}), "le")
    times, counts = (_by(moved.get(f"pod_ttft_seconds_{part}", {}), "pod") for part in ("sum", "count"))
    served = {pod: value / seconds for pod, value in _by(moved.get("requests_total", {}), "pod").items() if pod}
    made = {pod: value / seconds for pod, value in _by(moved.get("completion_tokens_total", {}), "pod").items()}
    return Rates(
        requests=_sum(moved, "requests_total") / seconds,
        failed=sum(_failed(moved.get("requests_total", {}))) / seconds,
        prompt_tokens=_sum(moved, "prompt_tokens_total") / seconds,
        completion_tokens=_sum(moved, "completion_tokens_total") / seconds,
        pulls=sum(v for k, v in moved.get("pulls_total", {}).items() if ("outcome", "named") in k) / seconds,
        ttft_p50=quantile(buckets, 0.5),
        ttft_p99=quantile(buckets, 0.99),
        pod_requests=served,
        pod_tokens=made,
        pod_ttft={pod: times[pod] / count for pod, count in counts.items() if count and pod in times},
    )


def quantile(buckets: Mapping[str, float], share: float) -> float | None:
    """Of a histogram's cumulated counts by upper bound, as Prometheus has it: linear within a bucket.

    Beyond the last bound it is that bound. None: there is nothing in it.
    """
    bounds = sorted((inf if le == "+Inf" else float(le), count) for le, count in buckets.items())
    if not bounds or bounds[-1][1] <= 0:
        return None
    rank, lower, below = share * bounds[-1][1], 0.0, 0.0
    for bound, count in bounds:
        if count >= rank:
            return lower if bound == inf else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return lower


def _by(values: Mapping[Labels, float], name: str) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for labels, value in values.items():
        total[dict(labels).get(name, "")] += value
    return dict(total)


def _sum(moved: Mapping[str, Mapping[Labels, float]], name: str) -> float:
    return sum(moved.get(name, {}).values())


def _failed(values: Mapping[Labels, float]) -> Iterator[float]:
    for labels, value in values.items():
        status = dict(labels).get("status", "")
        if status >= "5" and len(status) == 3:
            yield value
