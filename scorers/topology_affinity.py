"""Prefer pods that are near those which hold the prompt."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from scorers.base import UNKNOWN, Candidate, Column, PlacementRequest, Weight, require_weight
from scorers.kv_source import best_holders


class TopologyAffinity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="topology-affinity"):
    """Whether a pull to the candidate would stay in its zone.

        score = 1 where a pod that the source would be drawn from has the same value of label `key`, else 0
        score = 0.5 for all, where no pod holds any of the prompt in a tier that pulls are served from, or none of
                those that hold most of it has the label

    Those that hold most of it are among them: where they compute themselves, nothing is pulled at all.

    The rule is ours. O(candidates).
    """

    name: ClassVar[str] = "topology-affinity"
    needs: ClassVar[tuple[Column, ...]] = ("labels",)

    weight: Weight = 1.0
    key: str = "zone"
    """The label that says where a pod is."""

    def __post_init__(self) -> None:
        require_weight(self.weight)

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return 1 in the zones of the holders, 0 elsewhere."""
        key = self.key
        zones = {holder.labels[key] for holder in best_holders(request.block_size, candidates) if key in holder.labels}
        if not zones:
            return [UNKNOWN] * len(candidates)
        return [1.0 if candidate.labels.get(key) in zones else 0.0 for candidate in candidates]
