"""Prefer the pod where the first token comes soonest, by what the fleet's work has cost so far."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from scorers.base import Candidate, PlacementRequest, Weight, require_weight
from scorers.ttft import FORESIGHT, PATIENCE, Factor, Forecast, require_factors


class ExpectedTtft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="expected-ttft"):
    """How much dearer than the best a candidate is.

        score = (lowest price + slack) ÷ (price + slack)

    with the price of `scorers.ttft`: the wait, computing what is missing or pulling it, and what others lose by it.
    `slack` is what predictions are off by anyway, so that a few milliseconds do not decide among short prompts.

    Source: the step model of `scorers.costs`. O(candidates).
    """

    name: ClassVar[str] = "expected-ttft"

    weight: Weight = 1.0
    foresight: Factor = FORESIGHT
    """Worth of a second that others wait for their first tokens; 0: each request for itself."""
    patience: Factor = PATIENCE
    """Worth of a second of anybody's answer."""
    slack_ms: Annotated[float, msgspec.Meta(gt=0)] = 5.0

    def __post_init__(self) -> None:
        require_weight(self.weight)
        require_factors(self.foresight, self.patience)
        if not 0 < self.slack_ms < math.inf:
            raise ValueError(f"slack_ms must be finite and > 0, not {self.slack_ms}")

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
        """Return 1 for the lowest price, less for every higher one."""
        forecast = Forecast(request, candidates, self.foresight, self.patience)
        prices = forecast.prices(candidates, self.slack_ms * 1e-3)
        if not prices:
            return []
        lowest = min(prices)
        return [lowest / price for price in prices]
