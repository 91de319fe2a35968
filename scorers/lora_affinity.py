"""Prefer the pod that has the request's LoRA adapter in use."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import msgspec

from scorers.base import UNKNOWN, AdapterState, Candidate, Column, PlacementRequest, Weight, require_weight

_SCORES: Final[Mapping[AdapterState | None, float]] = {
    "loaded": 1.0,
    "slot": 0.8,
    "waiting": 0.6,
    "full": 0.0,
    None: UNKNOWN,
}


class LoraAffinity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="lora-affinity"):
    """Where the request's adapter stands on the candidate.

        score = 1 in use, 0.8 a slot is free, 0.6 requests wait for it, 0 otherwise; unknown → 0.5

    A batch holds so many adapters at once and no more; requests for another wait until one of them is done with. A
    request for a base model leaves all unknown, so all score 0.5.

    Source: the reference router's published rule; the treatment of unknowns is ours. O(candidates).
    """

    name: ClassVar[str] = "lora-affinity"
    needs: ClassVar[tuple[Column, ...]] = ("adapter",)

    weight: Weight = 1.0

    def __post_init__(self) -> None:
        require_weight(self.weight)

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:  # noqa: ARG002
        """Return the worth of each candidate's state."""
        return [_SCORES[candidate.adapter] for candidate in candidates]
