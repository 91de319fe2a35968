"""Pulls whose answers do not say what they brought, held against the consumer's own counter: pure.

The counter says what came from all peers together, to requests of everybody. So it proves little: that nothing came to
anybody in a span in which pulls ended, or that something came while all of them were of one pair. A pod counts a pull
at about its first byte, a little before or after; so a span of pulls is judged by the counter from a poll before it to
one after it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, NamedTuple, TypeVar

P = TypeVar("P")

_SPANS: Final = 4  # of pulls that are looked at together: the one that is judged, with one behind and two before it


class Verdict(NamedTuple, Generic[P]):
    """Pairs of which something is known now. `unknown`: the pod does not count."""

    failed: tuple[P, ...] = ()
    succeeded: tuple[P, ...] = ()
    unknown: tuple[P, ...] = ()


class Unreported(Generic[P]):
    """One consumer's, told of every poll of it as long as it lives."""

    def __init__(self) -> None:
        self._now: list[P] = []
        self._spans: deque[list[P]] = deque(maxlen=_SPANS)
        self._counts: deque[float] = deque(maxlen=_SPANS)

    def answered(self, pair: P) -> None:
        """A pull's answer has begun, some time after the last poll. O(1)."""
        self._now.append(pair)

    def polled(self, count: float | None) -> Verdict[P]:
        """The counter says this now; None: there is none. O(pulls of some polls)."""
        if count is None:
            unknown = tuple(dict.fromkeys([*self._now, *(pair for span in self._spans for pair in span)]))
            self._now = []
            self._spans.clear()
            self._counts.clear()
            return Verdict(unknown=unknown)
        span, self._now = self._now, []
        self._spans.append(span)
        self._counts.append(count)
        if len(self._spans) < 2 or not (judged := self._spans[-2]):
            return Verdict()
        pairs = tuple(dict.fromkeys(judged))
        if len(self._counts) == _SPANS and count <= self._counts[0]:
            return Verdict(failed=pairs)
        everybody = {pair for each in self._spans for pair in each}
        if len(everybody) == 1 and count > self._counts[0]:
            return Verdict(succeeded=pairs)
        return Verdict()
