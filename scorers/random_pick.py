"""Take any."""

from collections.abc import Sequence

import msgspec

from scorers.base import require_coordinate


class RandomPick(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="random"):
    """Every candidate with the same probability, whatever its total: what placement is to be compared with. O(1)."""

    def pick(self, totals: Sequence[float], coordinate: float) -> int:
        """Return the index at the coordinate in [0, 1). Raises ValueError for no totals or another coordinate."""
        require_coordinate(coordinate)
        if not totals:
            raise ValueError("totals are empty")
        return int(coordinate * len(totals))
