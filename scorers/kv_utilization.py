"""Prefer the pod with more of its KV cache free."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from scorers.base import UNKNOWN, Candidate, PlacementRequest, Weight, require_weight


class KvUtilization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="kv-utilization"):
    """Free share of the GPU KV cache.

        score = 1 - kv_usage, clipped to 0 … 1; unknown → 0.5

    Source: the reference router's published rule; the treatment of unknowns is ours. O(candidates).
    """

    name: ClassVar[str] = "kv-utilization"

    weight: Weight = 2.0

    def __post_init__(self) -> None:
        require_weight(self.weight)

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:  # noqa: ARG002
        """Return the free share of each candidate's cache; falls as its usage grows."""
        return [
            UNKNOWN if candidate.kv_usage is None else min(1.0, max(0.0, 1.0 - candidate.kv_usage))
            for candidate in candidates
        ]
