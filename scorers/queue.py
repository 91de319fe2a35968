"""Prefer the pod with the shorter waiting queue."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from scorers.base import UNKNOWN, Candidate, PlacementRequest, Weight, require_weight


class Queue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="queue"):
    """Waiting requests, relative to the other candidates.

        score = (max - waiting) ÷ (max - min), over the candidates whose queue is known; 1 when max = min

    An unknown queue scores 0.5 beside known ones, so that a pod whose metrics fail neither starves nor attracts
    everything; when no queue is known all score 1, as any equal queues do.

    Source: the reference router's published rule; the treatment of unknowns is ours. O(candidates).
    """

    name: ClassVar[str] = "queue"

    weight: Weight = 2.0

    def __post_init__(self) -> None:
        require_weight(self.weight)

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:  # noqa: ARG002
        """Return the standing of each candidate's queue; falls as its queue grows."""
        known = [candidate.waiting for candidate in candidates if candidate.waiting is not None]
        if not known:
            return [1.0] * len(candidates)
        longest = max(known)
        spread = longest - min(known)
        return [
            UNKNOWN if candidate.waiting is None else (longest - candidate.waiting) / spread if spread else 1.0
            for candidate in candidates
        ]
