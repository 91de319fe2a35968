"""Keep pods that hold most of the prompt, as long as waiting for them costs little."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from scorers.base import Candidate, Column, Fraction, PlacementRequest


class PrefixAffinityFilter(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="prefix-affinity"
):
    """Keeps the candidates that hold at least `share` of the prompt.

        held = max(credit · any, speculative) ÷ prompt tokens

    All are kept where nobody holds as much, where the prompt's tokens are not known, and where the best holder is
    expected to answer later than the best of the others by more than `ttft_penalty_ms`. A time that is not known is
    no reason to give up a prefix.

    Source: the reference router's published rule; the treatment of unknowns is ours. O(candidates).
    """

    name: ClassVar[str] = "prefix-affinity"
    needs: ClassVar[tuple[Column, ...]] = ("expected_ttft",)

    share: Fraction = 0.8
    """From which on a pod counts as a holder; 0: everybody is one."""
    ttft_penalty_ms: Annotated[float, msgspec.Meta(ge=0)] = 1000.0
    """Milliseconds by which a holder may be expected to be slower."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be in 0 … 1, not {self.share}")
        if not 0 <= self.ttft_penalty_ms < math.inf:
            raise ValueError(f"ttft_penalty_ms must be finite and >= 0, not {self.ttft_penalty_ms}")

    def keep(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[bool]:
        """Return whether each candidate is a holder; all true where the condition does not apply."""
        if not request.prompt_tokens:
            return [True] * len(candidates)
        needed = self.share * request.prompt_tokens
        holds = [
            max(candidate.credit * candidate.any_tokens, candidate.speculative_tokens) >= needed
            for candidate in candidates
        ]
        if not any(holds) or self._too_slow(candidates, holds):
            return [True] * len(candidates)
        return holds

    def _too_slow(self, candidates: Sequence[Candidate], holds: list[bool]) -> bool:
        times: dict[bool, list[float]] = {True: [], False: []}
        for candidate, holder in zip(candidates, holds, strict=True):
            if candidate.expected_ttft is not None:
                times[holder].append(candidate.expected_ttft)
        if not times[True] or not times[False]:
            return False
        return min(times[True]) - min(times[False]) > self.ttft_penalty_ms / 1000.0
