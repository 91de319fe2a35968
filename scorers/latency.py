"""Prefer the pod that is expected to answer well within an objective."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from scorers.base import UNKNOWN, Candidate, Column, PlacementRequest, Weight, require_weight


class Latency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="latency"):
    """Headroom of the expected time to first token against an objective.

        score = (objective - expected) ÷ objective, clipped to 0 … 1; unknown → 0.5

    Pods that are expected to miss the objective all score 0: by how much is not told apart.

    Source: the reference router's published rule, here for the first token; the treatment of unknowns is ours.
    O(candidates).
    """

    name: ClassVar[str] = "latency"
    needs: ClassVar[tuple[Column, ...]] = ("expected_ttft",)

    weight: Weight = 1.0
    ttft_ms: Annotated[float, msgspec.Meta(gt=0)] = 1000.0
    """The objective, milliseconds."""

    def __post_init__(self) -> None:
        require_weight(self.weight)
        if not 0 < self.ttft_ms < math.inf:
            raise ValueError(f"ttft_ms must be finite and > 0, not {self.ttft_ms}")

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:  # noqa: ARG002
        """Return each candidate's headroom; falls as its expected time grows."""
        per_second = 1000.0 / self.ttft_ms
        return [
            UNKNOWN
            if candidate.expected_ttft is None
            else min(1.0, max(0.0, 1.0 - candidate.expected_ttft * per_second))
            for candidate in candidates
        ]
