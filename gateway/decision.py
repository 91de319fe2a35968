"""From a request and what is known now to a decision: which pod, which rank, which source.

Only gathers the inputs and calls the pure code of `index` and `scorers`; used alike to serve, to retry and to explain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from config.schema import P2P, Placement
from gateway.errors import NoPodReady, Overloaded
from gateway.openai import Peek
from gateway.pods import Pod, PodTable
from gateway.tokens import Prompt
from index import Cached, Publisher, RadixIndex
from scorers import Candidate, PlacementRequest, SourceDecision, choose_source, place, pullable_tokens, sample_source
from scorers import Placement as Placed

SourceReason = Literal["named", "self", "below-floor", "no-holder", "disabled", "batch", "endpoint"]
_NOTHING = Cached(0, 0, 0)
_DEFAULT_BLOCK_SIZE = 16  # vLLM's own; where nothing is indexed yet, nothing depends on it


class Ask(Struct, frozen=True):
    """A request, understood.

    `model` None: it does not say, and any pod will do. `only`: no other pods than these. `response_id`: that of a
    response which the request needs. `computes` false: the pod computes no prompt for it.
    """

    request_id: str
    peek: Peek
    model: str | None
    prompt: Prompt
    only: frozenset[str] | None = None
    response_id: str | None = None
    computes: bool = True
    pulls: bool = True

    @property
    def is_batch(self) -> bool:
        """Whether the engine makes several sequences of it."""
        return len(self.prompt.sequences) > 1 or self.peek.sequences > 1


class Decision(Struct, frozen=True, kw_only=True):
    """Where a request goes and what it pulls, with all that led there."""

    pod: Pod
    candidates: list[Candidate]
    placed: Placed
    source: Candidate | None
    source_pod: Pod | None
    source_reason: SourceReason
    source_tokens: int
    prompt: Prompt
    block_size: int
    predicted_cached: int | None

    @property
    def chosen(self) -> Candidate:
        """The candidate that computes."""
        return self.candidates[self.placed.chosen]

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that the pod has to compute, as predicted; 0 when the prompt's length is unknown."""
        return max(0, (self.prompt.tokens or 0) - (self.predicted_cached or 0))


class Decider:
    """`coordinate` yields uniform numbers in [0, 1): the only randomness, handed to the pure code."""

    def __init__(
        self, index: RadixIndex, pods: PodTable, placement: Placement, p2p: P2P, *, coordinate: Callable[[], float]
    ) -> None:
        self._index = index
        self._pods = pods
        self._coordinate = coordinate
        self.reconfigure(placement, p2p)

    def reconfigure(self, placement: Placement, p2p: P2P) -> None:
        """Decisions from now on go by these."""
        self._placement = placement
        self._p2p = p2p

    def decide(self, ask: Ask, tried: Mapping[str, object] | None = None) -> Decision:
        """Choose among the pods that can serve now, less those already tried. Raises NoPodReady."""
        tried = tried or {}
        pods = self._pods.serving(ask.model, frozenset(tried), ask.only)
        if not pods:
            serving = "" if ask.model is None else f" that serves {ask.model!r}"
            if self._pods.overloaded(ask.model, ask.only):
                raise Overloaded(f"Every pod{serving} is at its limit.", code="overloaded", refused="pod_limit")
            raise NoPodReady(f"No pod{serving} is ready.", code="no_pod_ready")
        matched = self._match(ask, pods)
        candidates = self._pods.candidates(pods, matched.cached)
        prompt = ask.prompt
        request = PlacementRequest(
            request_id=f"{ask.request_id}#{len(tried)}" if tried else ask.request_id,
            prompt_tokens=prompt.tokens,
            block_size=matched.block_size,
            model=ask.model or "",
        )
        placement, coordinate = self._placement, self._coordinate()
        placed = place(request, candidates, placement.scorers, placement.picker, coordinate=coordinate)
        chosen = candidates[placed.chosen]
        source, reason = self._source(ask, request, candidates, chosen)
        source_tokens = pullable_tokens(source) if source is not None else 0
        pod = _of(chosen, pods)
        return Decision(
            pod=pod,
            candidates=candidates,
            placed=placed,
            source=source,
            source_pod=None if source is None else _of(source, pods),
            source_reason=reason,
            source_tokens=source_tokens,
            prompt=prompt,
            block_size=matched.block_size,
            predicted_cached=matched.reused(pod.publishers[chosen.rank], source_tokens, prompt),
        )

    def _source(
        self, ask: Ask, request: PlacementRequest, candidates: list[Candidate], chosen: Candidate
    ) -> tuple[Candidate | None, SourceReason]:
        if not self._p2p.enabled:
            return None, "disabled"
        if not ask.pulls:
            return None, "endpoint"
        if ask.is_batch:
            # The engine would start one pull per sequence under one kv_request_id, which must be unique.
            return None, "batch"
        sampled = sample_source(request.request_id, request.block_size, candidates)
        decision: SourceDecision = choose_source(
            sampled, chosen, min_cached_token_delta=self._p2p.min_cached_token_delta
        )
        return decision.source, decision.reason

    def _match(self, ask: Ask, pods: Iterable[Pod]) -> _Matched:
        """What each publisher holds of the request's sequences, in each block size that its model's blocks have."""
        model, salt, match = ask.model, ask.peek.cache_salt, self._index.match
        namespaces = () if model is None else {pod.models[model].namespace for pod in pods}
        sizes = [(namespace, self._index.block_sizes(namespace)) for namespace in namespaces]
        largest = max([known[-1] for _, known in sizes if known], default=_DEFAULT_BLOCK_SIZE)
        found: list[tuple[int, dict[Publisher, Cached]]] = []
        for tokens in ask.prompt.sequences:
            cached = [match({size: tokens.keys(name, size, salt) for size in known}) for name, known in sizes]
            found.append((len(tokens), _summed(cached)))
        return _Matched(largest, found)


def _of(candidate: Candidate, pods: Iterable[Pod]) -> Pod:
    for pod in pods:
        if pod.url == candidate.pod:
            return pod
    raise LookupError(candidate.pod)


class _Matched:
    """Cached tokens per publisher, summed over a request's sequences, and what of them its engine will reuse.

    `found` holds, for each sequence, its length and what was found of it.
    """

    def __init__(self, block_size: int, found: list[tuple[int, dict[Publisher, Cached]]]) -> None:
        self.block_size = block_size
        self.cached = found[0][1] if len(found) == 1 else _summed([cached for _, cached in found])
        self._found = found

    def reused(self, publisher: Publisher, source_tokens: int, prompt: Prompt) -> int | None:
        """What the engine will report as cached; a source only exists for a single sequence."""
        if prompt.tokens_from == "none":
            return None
        more = not prompt.whole  # the last token known is not the prompt's last
        reused = 0
        for tokens, cached in self._found:
            reused += reused_tokens(cached.get(publisher, _NOTHING), source_tokens, tokens + more, self.block_size)
        return reused


def _summed(found: Sequence[dict[Publisher, Cached]]) -> dict[Publisher, Cached]:
    if len(found) == 1:
        return found[0]
    total: dict[Publisher, Cached] = {}
    for each in found:
        for publisher, cached in each.items():
            total[publisher] = Cached(*map(sum, zip(total.get(publisher, _NOTHING), cached, strict=True)))
    return total


def reused_tokens(cached: Cached, source_tokens: int, tokens: int, block_size: int) -> int:
    """Prompt tokens, of `tokens`, that an engine will not compute, given what it and its source hold.

    vLLM looks for at most tokens - 1 in its GPU cache, since the last token has to be computed for its logits. Its
    offloading connector continues from there over all full blocks; a block-aligned prompt found to its end there is
    reported as cached as a whole (scheduler and offloading connector, 0.32).
    """
    reach = max(cached.any, source_tokens)
    only_gpu_reaches = cached.gpu == reach > max(cached.cpu, source_tokens)
    return min(reach, (tokens - only_gpu_reaches) // block_size * block_size)


def explanation(decision: Decision) -> dict[str, Any]:
    """The decision as `POST /explain` answers it."""
    source = decision.source
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
                "credit": candidate.credit,
                "waiting": candidate.waiting,
                "running": candidate.running,
                "kv_usage": candidate.kv_usage,
                "in_flight_requests": candidate.in_flight_requests,
                "in_flight_tokens": candidate.in_flight_tokens,
                "scores": {name: scores[i] for name, scores in decision.placed.scores.items()},
                "total": decision.placed.totals[i],
            }
            for i, candidate in enumerate(decision.candidates)
        ],
        "chosen": decision.chosen.pod,
        "chosen_rank": decision.chosen.rank,
        "predicted_cached_tokens": decision.predicted_cached,
        "source": source and {"pod": source.pod, "rank": source.rank, "cached_tokens": decision.source_tokens},
        "source_reason": decision.source_reason,
    }
