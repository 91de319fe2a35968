"""Prometheus counters and histograms whose `labels` is a dict's look-up once a series is known.

The library converts and checks label values at every call, under a lock: a microsecond each, ten times a request.
"""

from __future__ import annotations

from typing import Self

import prometheus_client


class _Known:
    """Mixed into a metric before its type; with a removed series all are forgotten."""

    def labels(self, *values: object, **named: object) -> Self:
        """The series with these values, in the order of the names. O(values)."""
        known: dict[tuple[object, ...], Self] = self.__dict__.setdefault("_known", {})
        child: Self | None = known.get(values)
        if child is None or named:
            child = super().labels(*values, **named)  # type: ignore[misc]
            if not named:
                known[values] = child
        return child

    def remove(self, *values: object) -> None:
        """End a series."""
        self.__dict__.pop("_known", None)
        super().remove(*values)  # type: ignore[misc]


class Counter(_Known, prometheus_client.Counter):
    """A counter with labels."""


class Histogram(_Known, prometheus_client.Histogram):
    """A histogram with labels."""
