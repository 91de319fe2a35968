"""Take the best total."""

from collections.abc import Sequence

import msgspec

from scorers.base import require_coordinate

_TIE = 1e-9
"""Totals closer than this are one: sums of the same terms differ by rounding, formulas by far more."""


class MaxScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="max-score"):
    """The highest total; among ties every candidate with the same probability.

    Without the shuffle the first pod in the list would get every request that nothing tells apart. O(candidates).
    """

    def pick(self, totals: Sequence[float], coordinate: float) -> int:
        """Return the index of the highest total, the coordinate in [0, 1) deciding ties.

        Raises ValueError for no totals or a coordinate outside [0, 1).
        """
        require_coordinate(coordinate)
        best = max(totals)
        tied = [index for index, total in enumerate(totals) if best - total <= _TIE]
        return tied[int(coordinate * len(tied))]
