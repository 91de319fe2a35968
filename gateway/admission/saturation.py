"""When pods have enough to do, as a pure function of this gateway's own counts and of polled load.

Own counts are of now; polled numbers are as old as the last poll. If these were taken as they are, one poll that shows
room would let a whole queue through before the next one. So requests that were sent since the poll and have no first
byte yet count as waiting, and each as `KV_OF_A_REQUEST` of the KV cache, until a poll has seen them.

What is not known does not saturate: a pod whose load nobody knows is asked as if there were no such bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from config.schema import Admission as Bounds

# What a request is taken to occupy of a rank's KV cache before a poll shows it. Engines run some tens to some hundreds
# of sequences in it; too much holds requests back for a poll's interval, too little lets more through than fit.
KV_OF_A_REQUEST = 0.01


class SincePoll:
    """What was sent to a rank between two polls. `freed` is called whenever a request gives something back.

    A request keeps the one that it was counted in, so it never counts in the span after a poll that has seen it.
    """

    __slots__ = ("_freed", "unanswered")

    def __init__(self, freed: Callable[[], None]) -> None:
        self._freed = freed
        self.unanswered = 0

    def sent(self) -> None:
        """A request goes to the rank."""
        self.unanswered += 1

    def answered(self) -> None:
        """It has its first byte, or will have none."""
        self.unanswered -= 1
        self._freed()

    def ended(self) -> None:
        """It is over; `answered` came before."""
        self._freed()


class Occupied(NamedTuple):
    """A rank: own requests, their prompt tokens still to be computed, those `unseen` by its last poll; what that said.

    `waiting` and `kv_usage` None: not known.
    """

    requests: int
    tokens: int
    unseen: int
    waiting: int | None
    kv_usage: float | None


def saturated(ranks: Iterable[Occupied], bounds: Bounds) -> bool:
    """Whether each of the ranks is at one of its bounds. O(ranks); it ends at the first that is not."""
    return all(_is_full(rank, bounds) for rank in ranks)


def _is_full(rank: Occupied, bounds: Bounds) -> bool:
    if bounds.max_in_flight is not None and rank.requests >= bounds.max_in_flight:
        return True
    if bounds.max_in_flight_tokens is not None and rank.tokens >= bounds.max_in_flight_tokens:
        return True
    if bounds.max_waiting is not None and rank.waiting is not None and rank.waiting + rank.unseen >= bounds.max_waiting:
        return True
    if bounds.max_kv_usage is None or rank.kv_usage is None:
        return False
    return rank.kv_usage + rank.unseen * KV_OF_A_REQUEST >= bounds.max_kv_usage
