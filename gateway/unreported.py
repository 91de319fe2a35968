"""Pulls whose answers do not say what they brought, held against the consumer's own counter: pure.

The counter says what came from all peers together, to requests of everybody. So it proves little: that nothing came to
anybody while a pull was under way, or that something came just when pulls of one pair only ended. A pod counts a pull
at about the first byte of a stream, a little before or after; so a pull is judged by the counter from a poll before it
was asked for to one after it was over.

Time is an argument, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, takewhile
from typing import Final, Generic, NamedTuple, TypeVar

P = TypeVar("P")

_SPANS: Final = 4  # of pulls that are looked at together: the one that is judged, with one behind and two before it
_RISES: Final = 256  # that are remembered; of a pull that was under way for more of them nothing is said


class Verdict(NamedTuple, Generic[P]):
    """Pairs of which something is known now. `unknown`: the pod does not count."""

    failed: tuple[P, ...] = ()
    succeeded: tuple[P, ...] = ()
    unknown: tuple[P, ...] = ()


class _Ended(NamedTuple, Generic[P]):
    """A pull, and from when until when it was counted, if it brought anything."""

    pair: P
    since: float
    until: float


class _Rise(NamedTuple):
    """The poll that found the counter higher, and the poll two before it: a pod may count a little late."""

    before: float
    at: float


class Unreported(Generic[P]):
    """One consumer's, told of every poll of it as long as it lives."""

    def __init__(self) -> None:
        self._now: list[_Ended[P]] = []
        self._spans: deque[list[_Ended[P]]] = deque(maxlen=_SPANS)
        self._polls: deque[float] = deque(maxlen=_SPANS)
        self._rises: deque[_Rise] = deque(maxlen=_RISES)
        self._count: float | None = None
        self._known_since = 0.0

    def answered(self, pair: P, since: float, until: float) -> None:
        """A pull was asked for and was over then, at the latest; its answer has ended since the last poll. O(1)."""
        self._now.append(_Ended(pair, since, until))

    def polled(self, count: float | None, now: float) -> Verdict[P]:
        """The counter says this now; None: there is none. O(pulls of some polls, and what was counted meanwhile)."""
        span, self._now = self._now, []
        if count is None:
            unknown = tuple(dict.fromkeys(each.pair for each in [*span, *chain(*self._spans)]))
            self._spans.clear()
            self._polls.clear()
            self._rises.clear()
            self._count = None
            return Verdict(unknown=unknown)
        self._note(count, now)
        self._spans.append(span)
        if len(self._spans) < 2:
            return Verdict()
        judged = self._spans[-2]
        failed = tuple(dict.fromkeys(each.pair for each in judged if self._is_quiet(each)))
        everybody = {each.pair for each in chain(*self._spans)}
        lately = any(rise.at > self._polls[0] for each in judged for rise in self._risen(each))
        return Verdict(failed, tuple(everybody) if lately and len(everybody) == 1 and not failed else ())

    def _note(self, count: float, now: float) -> None:
        if self._count is None:
            self._known_since = now
        elif count > self._count:
            self._rises.append(_Rise(self._polls[-2] if len(self._polls) > 1 else self._known_since, now))
            if len(self._rises) == _RISES:
                self._known_since = self._rises[0].at
        self._count = count
        self._polls.append(now)

    def _risen(self, pull: _Ended[P]) -> Iterator[_Rise]:
        later = takewhile(lambda rise: rise.at > pull.since, reversed(self._rises))
        return (rise for rise in later if rise.before <= pull.until)

    def _is_quiet(self, pull: _Ended[P]) -> bool:
        """Whether nothing came to anybody meanwhile."""
        return pull.since >= self._known_since and next(self._risen(pull), None) is None
