"""Prefer the pod with the fewest requests of this gateway under way."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from scorers.base import Candidate, PlacementRequest, Weight, require_weight


class ActiveRequests(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="active-requests"):
    """Requests under way, relative to the busiest candidate.

        score = (max - in-flight requests) ÷ max; 1 when nothing is under way anywhere

    The counts are this gateway's own, so they are never a poll old and never unknown; other gateways' requests are not
    among them. In contrast to `queue` the least busy pod scores 1 only when it is idle: 9 beside 10 differ by a tenth.

    Source: the reference router's published rule. O(candidates).
    """

    name: ClassVar[str] = "active-requests"

    weight: Weight = 1.0

    def __post_init__(self) -> None:
        require_weight(self.weight)

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:  # noqa: ARG002
        """Return how far each candidate is below the busiest; falls as more is under way on it."""
        most = max([candidate.in_flight_requests for candidate in candidates], default=0)
        if not most:
            return [1.0] * len(candidates)
        return [(most - candidate.in_flight_requests) / most for candidate in candidates]
