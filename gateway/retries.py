"""How many retries the traffic bears, as a pure state machine.

A retry is work that a fleet in trouble gets on top. One pod that fails costs few; a fleet that fails would be asked
`attempts` times for everything, just when it can least afford it. So retries are held to a share of the requests that
are under way or have been lately, and to a few besides, lest a gateway with hardly any traffic could not retry at all.
"Lately" fades: both counts decay exponentially with `MEMORY_S`.
"""

from __future__ import annotations

from math import exp

MEMORY_S = 10.0  # within this time a count falls to 37 %
FLOOR = 10.0  # retries within about `MEMORY_S` that need no traffic to bear them


class RetryBudget:
    """Time is an argument, in seconds of any monotonic clock. Every operation is O(1)."""

    def __init__(self, share: float) -> None:
        """`share`: retries per request, 0 … 1."""
        self._share = share
        self._under_way = 0
        self._ended = 0.0
        self._retries = 0.0
        self._at = 0.0

    def reconfigure(self, share: float) -> None:
        """From now on this share."""
        self._share = share

    def began(self) -> None:
        """A request arrived."""
        self._under_way += 1

    def ended(self, now: float) -> None:
        """It has ended, whatever came of it."""
        left = exp((self._at - now) / MEMORY_S)  # as in `_fade`, which every request would have to call
        self._ended = self._ended * left + 1.0
        self._retries *= left
        self._at = now
        self._under_way -= 1

    def take(self, now: float) -> bool:
        """Whether one more retry is within the budget; if so it is counted."""
        self._fade(now)
        if self._retries + 1.0 > FLOOR + self._share * (self._under_way + self._ended):
            return False
        self._retries += 1.0
        return True

    def _fade(self, now: float) -> None:
        left = exp((self._at - now) / MEMORY_S)
        self._ended *= left
        self._retries *= left
        self._at = now
