"""The page that Prometheus scrapes: its text format, or OpenMetrics for who asks for it.

The library builds an object with a dict for each sample and sorts and escapes its labels at every scrape: forty
milliseconds for a large fleet, in which no request is served. Here a sample's line up to its value is a text that is
made once and kept for as long as there is the series; and the page is made piece by piece, so that others get their
turn between. When a series began (`_created`) is not told: it would be half of the page, and Prometheus takes it for
series.
"""

from __future__ import annotations

import asyncio
import re
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

Kind = Literal["counter", "gauge", "histogram", "summary"]

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})(?:-.*)?", re.DOTALL)
_NO_TRACE: Final = b"0" * 32
_SLICE_S: Final = 0.001
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Exemplar(NamedTuple):
    """One request among those that a bucket counts: its trace, what was observed, seconds since 1970."""

    trace: str
    value: float
    at: float

    def __str__(self) -> str:
        return f' # {{trace_id="{self.trace}"}} {self.value!r} {self.at:.3f}'


def openmetrics_wanted(accept: str) -> bool:
    """Whether the one who sends this `Accept` would rather have OpenMetrics than text. Never raises."""
    found = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for each in accept[:1000].split(","):
        kind, *parameters = (part.strip().lower() for part in each.split(";"))
        if kind in found:
            found[kind] = max(found[kind], _quality(parameters))
    openmetrics, text = found.values()
    return openmetrics > 0 and openmetrics >= text


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


def trace_of(traceparent: bytes) -> str:
    """The trace's id of a W3C `traceparent`, as 32 hexadecimal digits; empty where it is none, or is not recorded."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return found[1].decode() if found is not None and int(found[2], 16) & 1 and found[1] != _NO_TRACE else ""


async def in_turns(pieces: Iterable[str]) -> list[str]:
    """All pieces; whoever waits gets a turn of the event loop after each slice of time."""
    made: list[str] = []
    until = time.perf_counter() + _SLICE_S
    for piece in pieces:
        made.append(piece)
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + _SLICE_S
    return made


def beginning(name: str, names: Sequence[str], values: Sequence[str], more: str = "") -> str:
    """A sample's line up to its value, labels in the order of their names; `more` are some as they are written."""
    labels = ",".join([f'{name}="{_escaped(value)}"' for name, value in sorted(zip(names, values, strict=True))])
    both = f"{labels},{more}" if labels and more else labels or more
    return f"{name}{{{both}}} " if both else f"{name} "


def _escaped(value: str) -> str:
    return value.translate(_ESCAPES) if "\\" in value or "\n" in value or '"' in value else value


def heading(name: str, text: str, kind: str, *, openmetrics: bool) -> str:
    """The lines before a metric's samples."""
    family = f"{name}_total" if kind == "counter" and not openmetrics else name
    return f"# HELP {family} {text.translate(_ESCAPES)}\n# TYPE {family} {kind}\n"


class Shown(Collector):
    """A metric that writes its own part of the page."""

    @abstractmethod
    def page(self, *, openmetrics: bool) -> Iterator[str]:
        """Pieces of the page, of whole lines."""


class Registry(CollectorRegistry):
    """All metrics of a gateway, in the order in which they came. The library's own are shown as well, slowly."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[Collector] = []

    def register(self, collector: Collector) -> None:
        """Show it from now on."""
        super().register(collector)
        self._shown.append(collector)

    def page(self, *, openmetrics: bool) -> Iterator[str]:
        """The page, piece by piece. O(series)."""
        for collector in self._shown:
            if isinstance(collector, Shown):
                yield from collector.page(openmetrics=openmetrics)
            else:
                yield from (_of_library(family, openmetrics=openmetrics) for family in collector.collect())
        if openmetrics:
            yield "# EOF\n"


def _of_library(family: Metric, *, openmetrics: bool) -> str:
    lines = [
        f"{beginning(sample.name, [*sample.labels], [*sample.labels.values()])}{float(sample.value)!r}\n"
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return heading(family.name, family.documentation, family.type, openmetrics=openmetrics) + "".join(lines)
