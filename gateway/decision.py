"""From a request and what is known now to a decision: which pod, which rank, which source.

Only gathers the inputs and calls the pure code of `index` and `scorers`; used alike to serve, to retry and to explain.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from config.schema import P2P, Placement
from gateway.columns import Columns
from gateway.errors import NoPodReady, Overloaded
from gateway.forecasts import first_token_s
from gateway.leases import Lease, Predicted
from gateway.matching import match
from gateway.openai import Peek
from gateway.pod import Pod
from gateway.pods import PodTable
from gateway.pull_lease import Pull
from gateway.tokens import Prompt
from index import Arrival, Counted, RadixIndex
from scorers import Barred, Candidate, PlacementRequest, Timed, place, pullable_tokens, pulling_seconds, timed
from scorers import Placement as Placed
from scorers.kv_source import SourceDecision

Barrier = Literal["endpoint", "batch", "late"]
SourceReason = Literal[
    "named", "self", "below-floor", "no-holder", "cost", "disabled", "breaker", "differ", "endpoint", "batch", "late"
]


class Ask(Struct, frozen=True):
    """A request, understood.

    `model` None: it does not say, and any pod will do. `only`: no other pods than these. `response_id`: that of a
    response which the request needs. `computes` false: the pod computes no prompt for it. `session`: what the client
    calls its session, where a scorer wants to know. `streams`: its answer begins with its first token. `is_batch`:
    the engine makes several sequences of it. `late`: it has pulled in vain, and is not to pull again.
    """

    request_id: str
    peek: Peek
    model: str | None
    prompt: Prompt
    only: frozenset[str] | None = None
    response_id: str | None = None
    computes: bool = True
    pulls: bool = True
    session: str | None = None
    streams: bool = False
    is_batch: bool = False
    late: bool = False

    @property
    def no_pull(self) -> Barrier | None:
        """Why it is not to pull, whoever holds what; None: it may."""
        if not self.pulls:
            return "endpoint"
        if self.late:
            return "late"
        # The engine would start one pull per sequence under one kv_request_id, which must be unique.
        return "batch" if self.is_batch else None

    @property
    def timely(self) -> bool:
        """Whether the first byte of its answer tells when a prompt was computed of which every token is known."""
        return self.streams and self.prompt.whole and not self.is_batch


class Decision(Struct, frozen=True):
    """Where a request goes and what it pulls, with all that led there. `Decider` makes it by position.

    `uncached_tokens` and `uncached_square` are what the pod is expected to have to compute (see `leases.InFlight`), 0
    where no tokens are known. `prompts` are the keys of the blocks that it holds then. `expected_s` is when the first
    token was expected as the source was chosen, 0.0 where that was not worked out, and `tried_s` what of it is for
    learning what a pull costs. `salt`: what the body is to bring in the place of its own, to share nothing with what
    hangs at the pod.
    """

    request: PlacementRequest
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
    uncached_tokens: int = 0
    uncached_square: int = 0
    prompts: tuple[array[int], ...] = ()
    expected_s: float = 0.0
    tried_s: float = 0.0
    coordinate: float = 0.0
    salt: str | None = None

    @property
    def chosen(self) -> Candidate:
        """The candidate that computes."""
        return self.candidates[self.placed.chosen]

    @property
    def pulled_tokens(self) -> int:
        """By how many tokens the source leads what is believed to be there or to come anyway; 0 without one.

        0 with one: the request waits for what another one pulls.
        """
        if self.source is None:
            return 0
        chosen = self.chosen
        return max(0, self.source_tokens - max(int(chosen.credit * chosen.any_tokens), chosen.coming_tokens))

    @property
    def predicted_s(self) -> float | None:
        """Seconds from placement to the first token, as expected; None where the prompt's length is not known."""
        if self.request.prompt_tokens is None:
            return None
        return self.expected_s or first_token_s(self.request, self.chosen, self.source)

    def leased(self, pods: PodTable, counted: Counted | None = None, *, streams: bool = True) -> Lease:
        """Take the request onto the books of its pod and its source, for as long as the lease's context lasts.

        `streams`: its first byte tells when its first token came, from which costs are learned.
        """
        pull, source, costs = None, self.source, pods.costs
        chosen, tokens, lead = self.chosen, self.request.prompt_tokens, 0 if source is None else self.pulled_tokens
        if self.expected_s:
            costs.expected(self.expected_s, self.tried_s)
        work = None
        if tokens and (streams or source is not None):
            work = timed(costs, chosen, tokens, (self.uncached_tokens, self.uncached_square), source, lead)
        if source is not None and self.source_pod is not None:
            arrival = self._arrival(pods, work) if work is not None and work.pulling is not None else None
            pull = Pull(self.source_pod.in_flight[source.rank], lead, arrival)
        return Lease(
            pods,
            self.pod,
            chosen.rank,
            self.uncached_tokens,
            self.uncached_square,
            self.prompts,
            pull,
            Predicted(counted, work if streams else None),
        )

    def _arrival(self, pods: PodTable, work: Timed) -> Arrival | None:
        """What its pull brings to its pod, and when: what is behind blocks that come already, not before these."""
        if work.source is None:
            return None
        seconds = max(self.chosen.coming_s, pulling_seconds(pods.costs, work))
        return Arrival(self.source_tokens, pods.clock() + seconds, work.source)


class Sourced(NamedTuple):
    """A `SourceDecision`, and what else may be a reason against one."""

    source: Candidate | None
    reason: SourceReason
    expected_s: float = 0.0
    tried_s: float = 0.0


def decided(
    request: PlacementRequest,
    candidates: Sequence[Candidate],
    placement: Placement,
    p2p: P2P,
    *,
    coordinate: float,
    no_pull: Barrier | None,
    between: Callable[[], None] | None = None,
) -> tuple[Placed, Sourced | SourceDecision]:
    """Place and choose a source, from nothing but the arguments: what is done alike for a request and to replay one.

    `no_pull` as in `Ask`, `coordinate` as in `place`. `between` is called between the two.
    """
    placed = place(
        request, candidates, placement.scorers, placement.picker, coordinate=coordinate, filters=placement.filters
    )
    if between is not None:
        between()
    if not p2p.enabled:
        return placed, Sourced(None, "disabled")
    if no_pull is not None:
        return placed, Sourced(None, no_pull)
    sourced = p2p.source.choose(request, candidates, candidates[placed.chosen])
    if sourced.source is None and request.barred is not None:
        return placed, _barred(Sourced(*sourced), request, request.barred, candidates, candidates[placed.chosen], p2p)
    return placed, sourced


def _barred(
    sourced: Sourced,
    request: PlacementRequest,
    barred: Barred,
    candidates: Sequence[Candidate],
    chosen: Candidate,
    p2p: P2P,
) -> Sourced:
    """Why there is no source, where it may be that there would be one but for pulls that must not be named."""
    source = p2p.source.choose(replace(request, barred=None), candidates, chosen).source
    if source is None:
        return sourced
    differ = (source.pod, chosen.pod) in barred.strangers
    return sourced._replace(reason="differ" if differ else "breaker")


_NOBODY = frozenset[str]()
_TIMED_EVERY = 8  # of a small request's decision, to time its stages is a tenth

Stages = Callable[[float, float, float, float], None]
"""Told of moments by `time.perf_counter`: a decision's beginning, the ends of matching, placement, choice of source."""


class Decider:
    """`coordinate` yields uniform numbers in [0, 1): the only randomness, handed to the pure code."""

    def __init__(
        self,
        index: RadixIndex,
        pods: PodTable,
        placement: Placement,
        p2p: P2P,
        *,
        coordinate: Callable[[], float],
        stages: Stages | None = None,
    ) -> None:
        self._stages = stages
        self._decisions = 0
        self._placed_at = 0.0
        self._index = index
        self._pods = pods
        self._coordinate = coordinate
        self.columns = Columns(pods)
        self.reconfigure(placement, p2p)

    def reconfigure(self, placement: Placement, p2p: P2P) -> None:
        """Decisions from now on go by these."""
        self._placement = placement
        self._p2p = p2p
        self._pull_floor = p2p.floor
        self.weights = [(scorer.name, scorer.weight) for scorer in placement.scorers]
        self.columns.reconfigure((*placement.scorers, *placement.filters))

    def decide(self, ask: Ask, tried: Mapping[str, object] | None = None) -> Decision:
        """Choose among the pods that can serve now, less those already tried. Raises NoPodReady."""
        table, prompt = self._pods, ask.prompt
        now = table.clock()
        pods = table.serving(ask.model, frozenset(tried) if tried else _NOBODY, ask.only, now)
        if not pods:
            raise self._nobody(ask)
        self._decisions += 1
        stages = self._stages if self._decisions % _TIMED_EVERY == 0 else None
        began = matched_at = 0.0 if stages is None else perf_counter()
        matched = match(prompt, ask.model, ask.peek.cache_salt, pods, index=self._index, table=table, now=now)
        if stages is not None:
            matched_at = perf_counter()
        candidates = table.candidates(pods, matched.cached, matched.speculative, now, matched.coming)
        no_pull, coordinate = ask.no_pull, self._coordinate()
        request = PlacementRequest(
            request_id=f"{ask.request_id}#{len(tried)}" if tried else ask.request_id,
            prompt_tokens=prompt.tokens,
            block_size=matched.block_size,
            model=ask.model or "",
            pulls=self._p2p.enabled and no_pull is None,
            pull_floor=self._pull_floor,
            costs=table.costs,
            barred=table.pairs.barred,
            now=now,
        )
        if self.columns.wanted:
            candidates = self.columns.filled(ask, request, candidates, pods)
        placed, sourced = decided(
            request,
            candidates,
            self._placement,
            self._p2p,
            coordinate=coordinate,
            no_pull=no_pull,
            between=None if stages is None else self._lap,
        )
        if stages is not None:
            stages(began, matched_at, self._placed_at, perf_counter())
        chosen, source = candidates[placed.chosen], sourced.source
        source_tokens = pullable_tokens(source) if source is not None else 0
        # Where each pod has one rank, as usual, they are in the order of the candidates.
        pod = pods[placed.chosen] if len(pods) == len(candidates) else _of(chosen, pods)
        outlook = matched.outlook(pod.publishers[chosen.rank], source_tokens, prompt)
        return Decision(  # by position, as candidates are
            request,
            pod,
            candidates,
            placed,
            source,
            None if source is None else _of(source, pods),
            sourced.reason,
            source_tokens,
            prompt,
            matched.block_size,
            outlook.reused,
            outlook.uncached,
            outlook.square,
            matched.prompts(pod, ask.model),
            sourced.expected_s,
            sourced.tried_s,
            coordinate,
        )

    def _nobody(self, ask: Ask) -> NoPodReady:
        serving = "" if ask.model is None else f" that serves {ask.model!r}"
        if self._pods.overloaded(ask.model, ask.only):
            return Overloaded(f"Every pod{serving} is at its limit.", code="overloaded", refused="pod_limit")
        return NoPodReady(f"No pod{serving} is ready.", code="no_pod_ready")

    def _lap(self) -> None:
        self._placed_at = perf_counter()

    def uncached_at_best(self, ask: Ask) -> int:
        """Prompt tokens that the pod with most of them would compute, as far as the prompt is known. As `match`."""
        pods = self._pods.ready_for(ask.model, ask.only)  # also those that take no more now
        table, salt = self._pods, ask.peek.cache_salt
        matched = match(ask.prompt, ask.model, salt, pods, index=self._index, table=table, now=table.clock())
        most = max((cached.any for cached in matched.cached.values()), default=0)
        return max(0, (ask.prompt.tokens or 0) - most)


def _of(candidate: Candidate, pods: Iterable[Pod]) -> Pod:
    for pod in pods:
        if pod.url == candidate.pod:
            return pod
    raise LookupError(candidate.pod)
