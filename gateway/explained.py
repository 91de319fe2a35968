"""The decision as `POST /explain` answers it: all that led to it, and what it is expected to come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.decision import Decision
from scorers import Candidate, Forecast
from scorers.ttft import FORESIGHT, PATIENCE


def explanation(decision: Decision) -> dict[str, Any]:
    """What a decision was made of. To be asked at once: costs go on changing. O(candidates)."""
    source, placed = decision.source, decision.placed
    dropped = placed.dropped or (None,) * len(decision.candidates)
    return {
        "tokens": decision.prompt.tokens,
        "tokens_from": decision.prompt.tokens_from,
        "tokens_reason": decision.prompt.reason or None,
        "block_size": decision.block_size,
        "candidates": [
            {
                "pod": candidate.pod,
                "rank": candidate.rank,
                "cached_tokens": {
                    "gpu": candidate.gpu_tokens,
                    "cpu": candidate.cpu_tokens,
                    "any": candidate.any_tokens,
                },
                "speculative_tokens": candidate.speculative_tokens,
                "coming_tokens": candidate.coming_tokens,
                "credit": candidate.credit,
                "waiting": candidate.waiting,
                "running": candidate.running,
                "kv_usage": candidate.kv_usage,
                "in_flight_requests": candidate.in_flight_requests,
                "in_flight_unanswered": candidate.in_flight_unanswered,
                "in_flight_tokens": candidate.in_flight_tokens,
                "pulls": candidate.pulls,
                "pulled_tokens": candidate.pulled_tokens,
                "serving": candidate.serving,
                "serving_tokens": candidate.serving_tokens,
                "filtered_by": dropped[i],
                "scores": {} if dropped[i] else {name: scores[i] for name, scores in placed.scores.items()},
                "total": None if dropped[i] else placed.totals[i],
                "predicted_ttft_ms": None if seconds is None else round(seconds * 1e3, 1),
                "predicted_source": peer and peer.pod,
            }
            for i, (candidate, (seconds, peer)) in enumerate(zip(decision.candidates, _outlooks(decision), strict=True))
        ],
        "filters_skipped": placed.skipped,
        "chosen": decision.chosen.pod,
        "chosen_rank": decision.chosen.rank,
        "predicted_cached_tokens": decision.predicted_cached,
        "source": source and {"pod": source.pod, "rank": source.rank, "cached_tokens": decision.source_tokens},
        "source_reason": decision.source_reason,
    }


def _outlooks(decision: Decision) -> Iterator[tuple[float | None, Candidate | None]]:
    """For each candidate, when the first token would come and from whom it would pull for that."""
    request = decision.request
    forecast = Forecast(request, decision.candidates, FORESIGHT, PATIENCE)
    for candidate in decision.candidates:
        if candidate is decision.chosen:
            yield decision.predicted_s, decision.source
        elif request.prompt_tokens is None:
            yield None, None
        else:
            expected = forecast.of(candidate)
            yield expected.seconds, expected.source
