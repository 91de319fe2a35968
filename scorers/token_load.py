"""Prefer the pod that has the fewest tokens to compute, this request's included."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from scorers.base import Candidate, PlacementRequest, Weight, require_weight


class TokenLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="token-load"):
    """Prompt tokens that the pod would have to compute before this request's first token.

        score = 1 - min(1, (in-flight tokens + missing) ÷ threshold)
        missing = prompt tokens - max(credit · any, speculative), at least 0

    In-flight tokens are this gateway's own, uncached and not yet answered, so they are never a poll old. What of the
    prompt is cached counts by lowering the work, in the same unit as the queue that it is weighed against. A prompt of
    unknown length is missing as a whole everywhere, and adds nothing.

    Source: the reference router's published rule, of which the strongest published arm consists. O(candidates).
    """

    name: ClassVar[str] = "token-load"

    weight: Weight = 2.0
    threshold: Annotated[int, msgspec.Meta(ge=1)] = 1 << 20
    """Tokens at which a pod scores 0 and pods are no longer told apart: half a minute's work of a fast one."""

    def __post_init__(self) -> None:
        require_weight(self.weight)
        if self.threshold < 1:
            raise ValueError(f"threshold must be >= 1, not {self.threshold}")

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return the room left on each candidate; falls as it has more to compute, rises with what it holds."""
        prompt_tokens, threshold = request.prompt_tokens or 0, self.threshold
        scores = []
        for candidate in candidates:
            held = max(candidate.credit * candidate.any_tokens, candidate.speculative_tokens)
            work = candidate.in_flight_tokens + max(0.0, prompt_tokens - held)
            scores.append(1 - min(1.0, work / threshold))
        return scores
