"""How much of what a publisher stores takes the place of something else.

    turnover = blocks removed ÷ blocks stored, over the last minutes and all tiers

0 while its caches fill, 1 once each block that comes in any tier costs one there. A full GPU tier above a CPU tier with
room is 0.5: what falls out of the one is still in the other.

Pure: time is an argument.
"""

from math import exp2
from typing import Final

from msgspec import Struct

_HALF_LIFE_S: Final = 60.0
_AT_LEAST: Final = 64.0
"""Blocks stored below which nothing is said: a few removals are no sign of full caches."""


class Turnover(Struct):
    """Of one publisher. `share` is the turnover, 0 … 1."""

    share: float = 0.0
    _stored: float = 0.0
    _removed: float = 0.0
    _at: float = 0.0

    def applied(self, stored: int, removed: int, now: float) -> None:
        """Events have been applied. O(1)."""
        kept = exp2((self._at - now) / _HALF_LIFE_S)
        self._stored = kept * self._stored + stored
        self._removed = kept * self._removed + removed
        self._at = now
        self.share = min(1.0, self._removed / self._stored) if self._stored >= _AT_LEAST else 0.0
