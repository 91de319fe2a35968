"""Prefer the pod that already holds the prompt's beginning."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from scorers.base import Candidate, Fraction, PlacementRequest, Weight, require_weight


class Prefix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="prefix"):
    """Share of the prompt that the pod would not have to compute, cheaper tiers counting for more.

        score = min(1, (hot + cpu_weight · max(0, belief · any - hot)) ÷ prompt tokens),
        hot   = max(belief · gpu, speculative),
        belief = credit ÷ the largest credit of all candidates

    all in contiguous tokens from the first block. The second term is what continues from the CPU tier. Speculative
    tokens count as GPU ones: the request they come from is about to leave its whole prompt there. Belief is relative,
    because doubt that all candidates share says nothing about which of them to choose: taken absolutely it would only
    give up prefixes for shorter queues, where most claims still come true. No tokens known (or an empty prompt): 0 for
    all, so that the other scorers decide.

    Source: the reference router's published rule (tier weights GPU 1.0, CPU 0.8 … 0.9). O(candidates).
    """

    name: ClassVar[str] = "prefix"

    weight: Weight = 3.0
    cpu_weight: Fraction = 0.8
    """Worth of a CPU-tier token beside a GPU-tier token: it still has to be loaded."""

    def __post_init__(self) -> None:
        require_weight(self.weight)
        if not 0 <= self.cpu_weight <= 1:
            raise ValueError(f"cpu_weight must be in 0 … 1, not {self.cpu_weight}")

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return the cached share of the prompt per candidate; grows with every one of its token counts."""
        prompt_tokens = request.prompt_tokens
        if not prompt_tokens:
            return [0.0] * len(candidates)
        best = max([candidate.credit for candidate in candidates], default=0.0) or 1.0
        cpu_weight = self.cpu_weight
        scores = []
        for candidate in candidates:
            belief = candidate.credit / best
            worth = hot = max(belief * candidate.gpu_tokens, candidate.speculative_tokens)
            if (reused := belief * candidate.any_tokens) > hot:
                worth += cpu_weight * (reused - hot)
            scores.append(min(1.0, worth / prompt_tokens))
        return scores
