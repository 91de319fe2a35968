"""Prefer pods that are far from a queue known to be too long."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from scorers.base import UNKNOWN, Candidate, PlacementRequest, Weight, require_weight

_EMPTY = 0.5
"""Score of an empty queue."""


class LoadAware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="load-aware"):
    """Waiting requests against a fixed threshold, whatever the other candidates have.

        score = 0.5 · (1 - min(1, waiting ÷ threshold)); unknown → 0.25

    So a short queue costs little even where all others are empty, which `queue` makes the difference between 0 and 1.
    The values end at 0.5; neutral is therefore 0.25, the middle: 0.5 would prefer an unknown queue to a short one.

    Source: the reference router's published rule; the treatment of unknowns is ours. O(candidates).
    """

    name: ClassVar[str] = "load-aware"

    weight: Weight = 1.0
    threshold: Annotated[int, msgspec.Meta(ge=1)] = 128
    """Waiting requests from which on a pod scores 0."""

    def __post_init__(self) -> None:
        require_weight(self.weight)
        if self.threshold < 1:
            raise ValueError(f"threshold must be >= 1, not {self.threshold}")

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:  # noqa: ARG002
        """Return the room left in each candidate's queue; falls as the queue grows."""
        threshold = self.threshold
        return [
            _EMPTY * (UNKNOWN if candidate.waiting is None else 1 - min(1.0, candidate.waiting / threshold))
            for candidate in candidates
        ]
