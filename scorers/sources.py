"""How the peer that a request pulls from is chosen, once it is known who computes."""

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from scorers.base import Candidate, PlacementRequest
from scorers.costs import MOST_TRIES_S
from scorers.kv_source import SourceDecision, choose_source, none_leads, sample_source
from scorers.ttft import FORESIGHT, PATIENCE, Factor, Forecast, holders_of, require_factors
from scorers.work import alone_s

_COST: Final = SourceDecision(None, "cost")


class WeightedSampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="weighted-sampling"):
    """One of those that hold the most, drawn with weight 1 ÷ (1 + waiting); see `kv_source`.

    Where the floor follows from the costs, what was drawn is still held against them. O(n log n) in the candidates.
    """

    name: ClassVar[str] = "weighted-sampling"

    def choose(self, request: PlacementRequest, candidates: Sequence[Candidate], chosen: Candidate) -> SourceDecision:
        """Return the source, or why there is none."""
        if (barred := request.barred) is not None:
            candidates = [each for each in candidates if not barred.bars(each, chosen)]
        sampled = sample_source(request.request_id, request.block_size, candidates)
        decision = choose_source(sampled, chosen, min_cached_token_delta=request.pull_floor or request.block_size)
        if decision.source is None or request.pull_floor is not None:
            return decision
        forecast = Forecast(request, [decision.source], 0.0, 0.0, [chosen])
        return decision if forecast.of(chosen).source is not None else _COST


class ExpectedSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="expected-ttft"):
    """The peer with which the first token comes soonest, none where computing is quicker; see `ttft`. O(candidates)."""

    name: ClassVar[str] = "expected-ttft"

    foresight: Factor = FORESIGHT
    patience: Factor = PATIENCE
    """As of the scorer of this name, which places where it expects the pull to be named."""

    def __post_init__(self) -> None:
        require_factors(self.foresight, self.patience)

    def choose(self, request: PlacementRequest, candidates: Sequence[Candidate], chosen: Candidate) -> SourceDecision:
        """Return the source, or why there is none."""
        if not holders_of(request.pull_floor or request.block_size, candidates):  # as in a fleet without a CPU tier
            return _alone(request, candidates, chosen)
        forecast = Forecast(request, candidates, self.foresight, self.patience, [chosen])
        if not (forecast.offers or chosen.coming_tokens):
            return _alone(request, candidates, chosen)
        expected = forecast.of(chosen)
        if expected.source is not None:
            return SourceDecision(expected.source, "named", expected.seconds)
        if (tried := forecast.try_of(chosen)) is not None:
            return SourceDecision(tried.source, "named", expected.seconds + tried.extra_s, tried.extra_s)
        reason = "cost" if forecast.leads(chosen) else none_leads(request.block_size, candidates, chosen)
        return SourceDecision(None, reason, expected.seconds)


def _alone(request: PlacementRequest, candidates: Sequence[Candidate], chosen: Candidate) -> SourceDecision:
    """Nobody has anything to offer. What is expected then is left to who asks, unless it adds to the allowance."""
    reason, costs = none_leads(request.block_size, candidates, chosen), request.costs
    if costs is None or costs.allowance_s >= MOST_TRIES_S:  # as it nearly always is
        return SourceDecision(None, reason)
    return SourceDecision(None, reason, alone_s(request, chosen))


AnySource = WeightedSampling | ExpectedSource
