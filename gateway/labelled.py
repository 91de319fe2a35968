"""Prometheus counters and histograms for one event loop.

The library's own convert and check label values at every call and change every value under a lock, for threads that
there are none of here: a microsecond each, ten times a request. Here a known series is a dict's look-up, and counting
is an addition.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

S = TypeVar("S")


class Count:
    """One series of a counter."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.created = time.time()
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Count `amount` more, >= 0. O(1)."""
        self.value += amount


class Distribution:
    """One series of a histogram with these bounds, ascending."""

    __slots__ = ("bounds", "counts", "created", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.created = time.time()
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last is of what is over them all
        self.total = 0.0

    def observe(self, amount: float) -> None:
        """Count `amount` in the bucket whose bound it does not exceed. O(log bounds)."""
        self.counts[bisect_left(self.bounds, amount)] += 1
        self.total += amount


class _Labelled(Collector, Generic[S]):
    """A metric's series by their labels' values."""

    def __init__(
        self, name: str, text: str, names: Sequence[str], make: Callable[[], S], registry: CollectorRegistry
    ) -> None:
        self.names = tuple(names)
        self._name = name
        self._text = text
        self._make = make
        self._series: dict[tuple[str, ...], S] = {}
        self._known: dict[tuple[object, ...], S] = {}  # the same by the values as they were given
        registry.register(self)

    def labels(self, *values: object) -> S:
        """The series with these values, in the order of the names. O(values). Raises ValueError for too few or many."""
        series = self._known.get(values)
        if series is None:
            if len(values) != len(self.names):
                raise ValueError(f"{self._name}: {len(values)} values for the labels {self.names}")
            texts = tuple(map(str, values))
            series = self._series[texts] = self._known[values] = self._series.get(texts) or self._make()
        return series

    def remove(self, *values: object) -> None:
        """End a series. Raises KeyError for one that there is not."""
        del self._series[tuple(map(str, values))]
        self._known.clear()


class Counter(_Labelled[Count]):
    """A counter; `inc` is that of one without labels."""

    def __init__(self, name: str, text: str, names: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        super().__init__(name, text, names, Count, registry)
        if not names:
            self.inc = self.labels().inc

    def describe(self) -> Iterator[Metric]:
        """For the registry: under which names it is found."""
        yield CounterMetricFamily(self._name, self._text)

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        family = CounterMetricFamily(self._name, self._text, labels=self.names)
        for values, series in self._series.items():
            family.add_metric(values, series.value, created=series.created)
        yield family


class Histogram(_Labelled[Distribution]):
    """A histogram; `observe` is that of one without labels."""

    def __init__(
        self, name: str, text: str, names: Sequence[str] = (), *, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        super().__init__(name, text, names, lambda: Distribution(buckets), registry)
        self._bounds = [*map(floatToGoString, buckets), "+Inf"]
        if not names:
            self.observe = self.labels().observe

    def describe(self) -> Iterator[Metric]:
        """For the registry: under which names it is found."""
        yield HistogramMetricFamily(self._name, self._text)

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        family = HistogramMetricFamily(self._name, self._text, labels=self.names)
        for values, series in self._series.items():
            reached, buckets = 0, []
            for bound, count in zip(self._bounds, series.counts, strict=True):
                reached += count
                buckets.append((bound, reached))
            family.add_metric(values, buckets, series.total)
            family.add_sample(f"{self._name}_created", dict(zip(self.names, values, strict=True)), series.created)
        yield family
