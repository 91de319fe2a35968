"""Prefer the pod that the session was on."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from scorers.base import UNKNOWN, Candidate, Column, PlacementRequest, Weight, require_weight


class SessionAffinity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="session-affinity"):
    """Whether the request's session was last placed on the candidate.

        score = 1 for that rank, 0 for the others
        score = 0.5 for all, where the request names no session, or none that is known to be on a candidate

    A hint beside the other scorers, never a pin: it also serves where a prompt's tokens are not known, or where what a
    session left on a pod is none of its KV blocks.

    Source: the reference router's published rule. O(candidates).
    """

    name: ClassVar[str] = "session-affinity"
    needs: ClassVar[tuple[Column, ...]] = ("session",)

    weight: Weight = 1.0

    def __post_init__(self) -> None:
        require_weight(self.weight)

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:  # noqa: ARG002
        """Return 1 where the session is, 0 elsewhere."""
        scores = [1.0 if candidate.session else 0.0 for candidate in candidates]
        return scores if 1.0 in scores else [UNKNOWN] * len(scores)
