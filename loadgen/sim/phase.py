"""Steps in which nothing changes but lengths, as one thing."""

from math import ceil, sqrt
from typing import Final, NamedTuple

_ALMOST_A_STEP: Final = 1e-9


class Phase(NamedTuple):
    """So many steps from `began` on, of which the first takes `first` seconds, and each `more` than the one before.

    It knows what its steps take, so that it does not matter to those under way who leaves meanwhile.
    """

    began: float
    steps: int
    first: float
    more: float

    def end_of(self, steps: int) -> float:
        """When so many of them have ended."""
        return self.began + steps * self.first + self.more * steps * (steps - 1) / 2

    def under_way(self, now: float) -> int:
        """Which of them, counted from 1, is under way; at the very end of one: that one.

        After i steps first·i + more·i·(i - 1)/2 seconds have passed; solved for i, so that small `more` cost no digits.
        """
        passed = now - self.began
        if passed <= 0 or not (self.first or self.more):
            return 1
        linear = self.first - self.more / 2
        ended = 2 * passed / (linear + sqrt(linear * linear + 2 * self.more * passed))
        return min(self.steps, max(1, ceil(ended - _ALMOST_A_STEP)))
