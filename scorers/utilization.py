"""Keep pods that are not known to be overloaded."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from scorers.base import Candidate, Fraction, PlacementRequest

_Count = Annotated[int, msgspec.Meta(ge=0)]


class UtilizationFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="utilization"):
    """Keeps the candidates that are over none of the bounds which are set.

    What is unknown is over none: a pod whose metrics fail is not overloaded. Where all are over one, the filter is
    skipped like any other. O(candidates).
    """

    name: ClassVar[str] = "utilization"

    max_kv_usage: Fraction | None = None
    """Used share of the KV cache at the last poll."""
    max_waiting: _Count | None = None
    """Waiting requests at the last poll."""
    max_in_flight: _Count | None = None
    """Requests of this gateway under way."""

    def __post_init__(self) -> None:
        if self.max_kv_usage is None and self.max_waiting is None and self.max_in_flight is None:
            raise ValueError("max_kv_usage, max_waiting or max_in_flight is needed")
        if self.max_kv_usage is not None and not 0 <= self.max_kv_usage <= 1:
            raise ValueError(f"max_kv_usage must be in 0 … 1, not {self.max_kv_usage}")

    def keep(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[bool]:  # noqa: ARG002
        """Return whether each candidate is within the bounds."""
        return [
            _within(candidate.kv_usage, self.max_kv_usage)
            and _within(candidate.waiting, self.max_waiting)
            and _within(candidate.in_flight_requests, self.max_in_flight)
            for candidate in candidates
        ]


def _within(value: float | None, bound: float | None) -> bool:
    return value is None or bound is None or value <= bound
