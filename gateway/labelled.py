"""Prometheus counters, histograms and summaries for one event loop, and states that are asked for when scraped.

The library's own convert and check label values at every call and change every value under a lock, for threads that
there are none of here: a microsecond each, ten times a request. Here a known series is a dict's look-up, and counting
is an addition. How they are written is in `exposition`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, Literal, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.utils import floatToGoString

from gateway.exposition import Exemplar, Kind, Shown, beginning, heading

S = TypeVar("S", bound="Count | Distribution | Sum")
OTHER: Final = "other"
MOST_SERIES: Final = 10_000
"""Of one metric, a megabyte of the page; large fleets have a tenth of it. Of what comes then, `MERGED` is `OTHER`."""
MERGED: Final = frozenset({"endpoint", "model", "pod", "source", "key"})
"""Labels that tell who it was. Those that tell what it was, such as the status, are kept: a failure stays one."""


class Count:
    """One series of a counter."""

    __slots__ = ("lines", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.lines: list[str] = []

    def inc(self, amount: float = 1.0) -> None:
        """Count `amount` more, >= 0. O(1)."""
        self.value += amount


class Sum:
    """One series of a summary: how many, and how much."""

    __slots__ = ("count", "lines", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.lines: list[str] = []

    def observe(self, amount: float) -> None:
        """Count `amount`. O(1)."""
        self.count += 1
        self.total += amount


class Distribution:
    """One series of a histogram with these bounds, ascending."""

    __slots__ = ("bounds", "counts", "exemplars", "lines", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last is of what is over them all
        self.total = 0.0
        self.lines: list[str] = []
        self.exemplars: dict[int, Exemplar] = {}

    def observe(self, amount: float) -> None:
        """Count `amount` in the bucket whose bound it does not exceed. O(log bounds)."""
        self.counts[bisect_left(self.bounds, amount)] += 1
        self.total += amount

    def observe_traced(self, amount: float, trace: str) -> None:
        """Count `amount`, with its trace as the bucket's exemplar. O(log bounds)."""
        bucket = bisect_left(self.bounds, amount)
        self.counts[bucket] += 1
        self.total += amount
        self.exemplars[bucket] = Exemplar(trace, amount, time.time())


class _Labelled(Shown, ABC, Generic[S]):
    """A metric's series by their labels' values, `most` of them, and as many again at most of all that come then.

    Pairs of pods grow with their square, so a metric of pairs has less than others.
    """

    kind: Kind
    most = MOST_SERIES

    def __init__(
        self, name: str, text: str, names: Sequence[str], make: Callable[[], S], registry: CollectorRegistry
    ) -> None:
        self.names = tuple(names)
        self.name = name
        self._text = text
        self._make = make
        self._series: dict[tuple[str, ...], S] = {}
        self._known: dict[tuple[object, ...], S] = {}  # the same by the values as they were given
        self._merges = tuple(name in MERGED for name in names)
        registry.register(self)

    def labels(self, *values: object) -> S:
        """The series with these values, in the order of the names. O(values). Raises ValueError for too few or many."""
        series = self._known.get(values)
        if series is None:
            if len(values) != len(self.names):
                raise ValueError(f"{self.name}: {len(values)} values for the labels {self.names}")
            texts = tuple(map(str, values))
            if len(self._series) >= self.most and texts not in self._series:
                return self._too_many(texts)  # not kept in `_known`: what is too many is not bounded
            series = self._series[texts] = self._known[values] = self._series.get(texts) or self._make()
        return series

    def _too_many(self, texts: tuple[str, ...]) -> S:
        """The series of all that are like this one, whoever's they are."""
        kept = tuple(OTHER if merges else text for merges, text in zip(self._merges, texts, strict=True))
        if not any(self._merges) or (len(self._series) >= 2 * self.most and kept not in self._series):
            kept = (OTHER,) * len(texts)
        return self._series.get(kept) or self._series.setdefault(kept, self._make())

    def remove(self, *values: object) -> None:
        """End a series. Raises KeyError for one that there is not."""
        del self._series[tuple(map(str, values))]
        self._known.clear()

    def forget(self, names: Sequence[str], value: str) -> None:
        """End every series that has this value in one of these labels. O(series)."""
        at = [number for number, name in enumerate(self.names) if name in names]
        ended = [values for values in self._series if any(values[number] == value for number in at)]
        for values in ended:
            del self._series[values]
        if ended:
            self._known.clear()

    def page(self, *, openmetrics: bool) -> Iterator[str]:
        """This metric's part of the page."""
        out = [heading(self.name, self._text, self.kind, openmetrics=openmetrics)]
        for values, series in self._series.items():
            lines = series.lines = series.lines or self._lines(values)
            self._write(series, lines, out, openmetrics=openmetrics)
        yield "".join(out)

    @abstractmethod
    def _lines(self, values: tuple[str, ...]) -> list[str]:
        """The beginnings of a series' lines."""

    @abstractmethod
    def _write(self, series: S, lines: list[str], out: list[str], *, openmetrics: bool) -> None:
        """A series' lines."""


class Counter(_Labelled[Count]):
    """A counter; `inc` is that of one without labels."""

    kind = "counter"

    def __init__(
        self,
        name: str,
        text: str,
        names: Sequence[str] = (),
        *,
        registry: CollectorRegistry,
        most: int = MOST_SERIES,
    ) -> None:
        super().__init__(name, text, names, Count, registry)
        self.most = most
        if not names:
            self.inc = self.labels().inc

    def describe(self) -> Iterator[Metric]:
        """For the registry: under which names it is found."""
        yield CounterMetricFamily(self.name, self._text)

    def collect(self) -> Iterator[Metric]:
        """For the library."""
        family = CounterMetricFamily(self.name, self._text, labels=self.names)
        for values, series in self._series.items():
            family.add_metric(values, series.value)
        yield family

    def _lines(self, values: tuple[str, ...]) -> list[str]:
        return [beginning(f"{self.name}_total", self.names, values)]

    def _write(self, series: Count, lines: list[str], out: list[str], *, openmetrics: bool) -> None:  # noqa: ARG002
        out.append(f"{lines[0]}{series.value!r}\n")


class Summary(_Labelled[Sum]):
    """A summary without quantiles: two lines a series, where a histogram has twenty."""

    kind = "summary"

    def __init__(self, name: str, text: str, names: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        super().__init__(name, text, names, Sum, registry)
        if not names:
            self.observe = self.labels().observe

    def describe(self) -> Iterator[Metric]:
        """For the registry: under which names it is found."""
        yield SummaryMetricFamily(self.name, self._text)

    def collect(self) -> Iterator[Metric]:
        """For the library."""
        family = SummaryMetricFamily(self.name, self._text, labels=self.names)
        for values, series in self._series.items():
            family.add_metric(values, series.count, series.total)
        yield family

    def _lines(self, values: tuple[str, ...]) -> list[str]:
        return [beginning(f"{self.name}_{part}", self.names, values) for part in ("count", "sum")]

    def _write(self, series: Sum, lines: list[str], out: list[str], *, openmetrics: bool) -> None:  # noqa: ARG002
        out.append(f"{lines[0]}{series.count}\n{lines[1]}{series.total!r}\n")


class Histogram(_Labelled[Distribution]):
    """A histogram; `observe` is that of one without labels."""

    kind = "histogram"

    def __init__(
        self, name: str, text: str, names: Sequence[str] = (), *, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        super().__init__(name, text, names, lambda: Distribution(buckets), registry)
        self._bounds = [*map(floatToGoString, buckets), "+Inf"]
        if not names:
            self.observe = self.labels().observe

    def describe(self) -> Iterator[Metric]:
        """For the registry: under which names it is found."""
        yield HistogramMetricFamily(self.name, self._text)

    def collect(self) -> Iterator[Metric]:
        """For the library."""
        family = HistogramMetricFamily(self.name, self._text, labels=self.names)
        for values, series in self._series.items():
            reached, buckets = 0, []
            for bound, count in zip(self._bounds, series.counts, strict=True):
                reached += count
                buckets.append((bound, reached))
            family.add_metric(values, buckets, series.total)
        yield family

    def _lines(self, values: tuple[str, ...]) -> list[str]:
        buckets = [beginning(f"{self.name}_bucket", self.names, values, f'le="{bound}"') for bound in self._bounds]
        return buckets + [beginning(f"{self.name}_{part}", self.names, values) for part in ("count", "sum")]

    def _write(self, series: Distribution, lines: list[str], out: list[str], *, openmetrics: bool) -> None:
        reached = 0
        for number, count in enumerate(series.counts):
            reached += count
            exemplar = series.exemplars.get(number, "") if openmetrics else ""
            out.append(f"{lines[number]}{reached}{exemplar}\n")
        out.append(f"{lines[-2]}{reached}\n{lines[-1]}{series.total!r}\n")


class State(Shown):
    """One of `States`: what is asked for when the page is made, and begins empty each time."""

    def __init__(
        self, name: str, text: str, names: Sequence[str] = (), *, kind: Literal["gauge", "counter"] = "gauge"
    ) -> None:
        self.name = name
        self.names = tuple(names)
        self.kind: Kind = kind
        self._text = text
        self._samples: list[tuple[tuple[str, ...], float]] = []
        self._lines: Mapping[tuple[str, ...], str] = {}

    def begin(self) -> None:
        """Forget the samples."""
        self._samples = []

    def add(self, value: float, *values: str) -> None:
        """A sample, with its labels' values in the order of the names. O(values)."""
        self._samples.append((values, value))

    def page(self, *, openmetrics: bool) -> Iterator[str]:
        """This metric's part of the page."""
        line = f"{self.name}_total" if self.kind == "counter" else self.name
        known, kept = self._lines, dict[tuple[str, ...], str]()
        out = [heading(self.name, self._text, self.kind, openmetrics=openmetrics)]
        for values, value in self._samples:
            start = kept[values] = known.get(values) or beginning(line, self.names, values)
            out.append(f"{start}{float(value)!r}\n")
        self._lines = kept  # of series that are no more nothing is kept
        yield "".join(out)

    def collect(self) -> Iterator[Metric]:
        """For the library."""
        make = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = make(self.name, self._text, labels=self.names)
        for values, value in self._samples:
            family.add_metric(values, float(value))
        yield family


class States(Shown):
    """Several states that are found in one go. `ask` adds their samples."""

    def __init__(self, states: Iterable[State], ask: Callable[[], None], registry: CollectorRegistry) -> None:
        self._states = tuple(states)
        self._ask = ask
        registry.register(self)

    def _asked(self) -> tuple[State, ...]:
        for state in self._states:
            state.begin()
        self._ask()
        return self._states

    def page(self, *, openmetrics: bool) -> Iterator[str]:
        """Their part of the page."""
        for state in self._asked():
            yield from state.page(openmetrics=openmetrics)

    def collect(self) -> Iterator[Metric]:
        """For the library."""
        for state in self._asked():
            yield from state.collect()

    def describe(self) -> Iterator[Metric]:
        """For the registry: under which names they are found."""
        for state in self._states:
            yield from state.collect()
