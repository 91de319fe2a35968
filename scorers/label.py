"""Keep pods by a label."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from scorers.base import Candidate, Column, PlacementRequest

LabelValues = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
"""Values of a label, none of them twice."""


def require_values(values: tuple[str, ...]) -> None:
    """Raise ValueError unless there are values, and each is there once."""
    if not values or len(set(values)) < len(values):
        raise ValueError(f"values must be at least one, each once, not {list(values)}")


class LabelFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="label"):
    """Keeps the candidates whose label `key` has one of `values`; one without the label is none of them.

    O(candidates).
    """

    name: ClassVar[str] = "label"
    needs: ClassVar[tuple[Column, ...]] = ("labels",)

    key: str
    values: LabelValues

    def __post_init__(self) -> None:
        require_values(self.values)

    def keep(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[bool]:  # noqa: ARG002
        """Return whether each candidate has such a label."""
        return [candidate.labels.get(self.key) in self.values for candidate in candidates]
