"""Spread what nobody has cached: to the pod that has gone longest without such a request."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from scorers.base import UNKNOWN, Candidate, Column, PlacementRequest, Weight, require_weight


def is_cold(prompt_tokens: int | None, candidates: Sequence[Candidate]) -> bool:
    """Return whether a prompt's tokens are known, and no candidate holds any, or is about to. O(candidates)."""
    if not prompt_tokens:
        return False
    for candidate in candidates:  # noqa: SIM110 - several times as fast as `any`
        if candidate.any_tokens or candidate.speculative_tokens:
            return False
    return True


class NoHitLru(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="no-hit-lru"):
    """Candidates by their last cold request, the longest ago first.

        score = 1 - (candidates whose last one is longer ago) ÷ (candidates - 1), where nobody holds any of the prompt
        score = 0.5 for all, where somebody does, or the prompt's tokens are not known

    A new prefix brings the work that all its later requests save, and then draws these to its pod. Load shows that only
    afterwards; taken in turn, new prefixes are shared out evenly beforehand. Who never had a cold request comes first;
    equals score alike; a candidate alone scores 1.

    Source: the reference router's published rule. O(n log n) in the candidates.
    """

    name: ClassVar[str] = "no-hit-lru"
    needs: ClassVar[tuple[Column, ...]] = ("cold_turn",)

    weight: Weight = 2.0

    def __post_init__(self) -> None:
        require_weight(self.weight)

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return each candidate's place in the order; falls as its turn grows."""
        if not is_cold(request.prompt_tokens, candidates):
            return [UNKNOWN] * len(candidates)
        turns = sorted(candidate.cold_turn for candidate in candidates)
        others = len(turns) - 1 or 1
        return [1 - bisect_left(turns, candidate.cold_turn) / others for candidate in candidates]
