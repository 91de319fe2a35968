"""Draw by total, the best ones nearly always."""

from bisect import bisect
from collections.abc import Sequence
from math import exp, inf
from typing import Annotated

import msgspec

from scorers.base import require_coordinate


class Softmax(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="softmax"):
    """A candidate's probability is its share of the sum of exp(-(max total - total) ÷ temperature).

    Between max-score and random: totals that differ by less than the temperature are nearly as likely as each other,
    so a burst that sees the same totals spreads over the pods that are about as good; one that is worse by ten
    temperatures gets one request in 22,000. Weighted-random, in contrast, keeps sending to pods that are far worse. No
    exponent is positive and the best one's is 0, so nothing overflows and the sum is at least 1. O(candidates).
    """

    temperature: Annotated[float, msgspec.Meta(gt=0)] = 0.02
    """Difference of totals at which a candidate is e times less likely."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < inf:
            raise ValueError(f"temperature must be finite and > 0, not {self.temperature}")

    def pick(self, totals: Sequence[float], coordinate: float) -> int:
        """Return the index at the coordinate in [0, 1). Raises ValueError for no totals or another coordinate."""
        if not 0.0 <= coordinate < 1.0:
            require_coordinate(coordinate)
        if not totals:
            raise ValueError("totals are empty")
        best, temperature = max(totals), self.temperature
        reached, shares = 0.0, []
        for total in totals:
            reached += exp((total - best) / temperature)
            shares.append(reached)
        chosen = bisect(shares, coordinate * reached)
        return chosen if chosen < len(shares) else chosen - 1  # where the product was rounded up
