"""Prefer the pod with the smaller running batch."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from scorers.base import UNKNOWN, Candidate, PlacementRequest, Weight, require_weight


class RunningRequests(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="running-requests"):
    """Running requests, relative to the other candidates.

        score = (max - running) ÷ (max - min), over the candidates whose batch is known; 1 when max = min

    An unknown batch scores 0.5 beside known ones; when none is known all score 1, as any equal batches do. Where queues
    are empty this tells pods apart: each request of the batch slows the others' answers.

    Source: the reference router's published rule; the treatment of unknowns is ours. O(candidates).
    """

    name: ClassVar[str] = "running-requests"

    weight: Weight = 1.0

    def __post_init__(self) -> None:
        require_weight(self.weight)

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:  # noqa: ARG002
        """Return the standing of each candidate's batch; falls as its batch grows."""
        known = [candidate.running for candidate in candidates if candidate.running is not None]
        if not known:
            return [1.0] * len(candidates)
        largest = max(known)
        spread = largest - min(known)
        return [
            UNKNOWN if candidate.running is None else (largest - candidate.running) / spread if spread else 1.0
            for candidate in candidates
        ]
