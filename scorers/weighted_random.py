"""Draw by total."""

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from scorers.base import require_coordinate


class WeightedRandom(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="weighted-random"):
    """A candidate's probability is its share of the sum of totals; all the same where that sum is 0.

    Totals rest on load that is a poll old. Drawn from, they spread a burst that the highest one would take alone.
    Source: the reference router's published rule. O(candidates).
    """

    def pick(self, totals: Sequence[float], coordinate: float) -> int:
        """Return the index at the coordinate in [0, 1). Raises ValueError for no totals or another coordinate."""
        require_coordinate(coordinate)
        if not totals:
            raise ValueError("totals are empty")
        shares = list(accumulate(totals))
        if not shares[-1]:
            return int(coordinate * len(totals))
        return min(bisect(shares, coordinate * shares[-1]), len(totals) - 1)
