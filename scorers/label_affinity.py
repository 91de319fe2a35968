"""Prefer pods by a label."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from scorers.base import UNKNOWN, Candidate, Column, PlacementRequest, Weight, require_weight
from scorers.label import LabelValues, require_values


class LabelAffinity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="label-affinity"):
    """Where the value of the pod's label `key` stands in `values`, the most wanted first.

        score = 1 - i ÷ n for the i-th of n values, from 0 on; 0 for any other value, and without the label
        score = 0.5 for all, where no candidate has one of them

    One value says yes or no; several grade, such as `[h200, h100]`. A label is what the operator says, not a reading
    that may fail: a pod without it is not unknown.

    The rule is ours. O(candidates).
    """

    name: ClassVar[str] = "label-affinity"
    needs: ClassVar[tuple[Column, ...]] = ("labels",)

    key: str
    values: LabelValues
    weight: Weight = 1.0

    def __post_init__(self) -> None:
        require_weight(self.weight)
        require_values(self.values)

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:  # noqa: ARG002
        """Return the standing of each candidate's value."""
        key, wanted = self.key, self.values
        worth: dict[str | None, float] = {value: 1 - i / len(wanted) for i, value in enumerate(wanted)}
        scores = [worth.get(candidate.labels.get(key), 0.0) for candidate in candidates]
        return scores if any(scores) else [UNKNOWN] * len(scores)
