"""How long it takes until those who wait have gone, as a pure state machine.

The pace is how many went while somebody waited, ÷ the time in which somebody did. Both fade with `MEMORY_S` as that
time passes, so the pace is that of the last ten seconds or so under load, however long ago they were. Who waits is gone
after the queue's timeout in any case, one way or the other, so no estimate need be longer.
"""

from __future__ import annotations

from math import ceil, exp

MEMORY_S = 10.0
SHORTEST_S, LONGEST_S = 1, 60  # clients do not wait shorter, and hardly any longer


class Pace:
    """Time is an argument, in seconds of any monotonic clock. Every operation is O(1)."""

    def __init__(self) -> None:
        self._gone = 0.0
        self._span = 0.0
        self._at = 0.0

    def begins(self, now: float) -> None:
        """Somebody waits, and nobody did before."""
        self._at = now

    def went(self, now: float) -> None:
        """One of those who wait may go."""
        self._fade(now)
        self._gone += 1.0

    def estimate(self, ahead: int, timeout: float, now: float) -> int:
        """Whole seconds until `ahead` more have gone, while somebody waits: at most `timeout`, and 1 to 60."""
        self._fade(now)
        needed = ahead * self._span / self._gone if self._gone > 0.0 else timeout
        return max(SHORTEST_S, min(LONGEST_S, ceil(min(needed, timeout))))

    def _fade(self, now: float) -> None:
        left = exp((self._at - now) / MEMORY_S)
        self._gone *= left
        self._span = self._span * left + MEMORY_S * (1.0 - left)
        self._at = now
