"""When a request's first token is expected from one candidate with one source, or with none.

`scorers.Forecast` says which source would be best, and what is expected then. Here the source is given: another rule
may have chosen it, and what it costs is to be shown and held against what it then took.
"""

from __future__ import annotations

from scorers import Candidate, Costs, PlacementRequest, alone_s, pullable_tokens, pulling_seconds, timed


def first_token_s(request: PlacementRequest, candidate: Candidate, source: Candidate | None) -> float:
    """Seconds from placement on; a prompt of unknown length counts as empty. O(1)."""
    tokens = request.prompt_tokens or 0
    if source is not None:
        held = min(max(int(candidate.credit * candidate.any_tokens), candidate.speculative_tokens), tokens - 1)
        reach = min(pullable_tokens(source), tokens - 1) // request.block_size * request.block_size
        if reach > held:
            lead = max(0, reach - max(held, candidate.coming_tokens))
            return _pulling_s(request.costs or Costs(), candidate, tokens, source, reach, lead)
    return alone_s(request, candidate)


def _pulling_s(costs: Costs, candidate: Candidate, tokens: int, source: Candidate, reach: int, lead: int) -> float:
    work = timed(costs, candidate, tokens, (tokens - reach, tokens * tokens - reach * reach), source, lead)
    computing = sum(map(float.__mul__, costs.prefill(work.rank), work.computing))
    return work.wait_s + computing + (pulling_seconds(costs, work) if lead else candidate.coming_s)
