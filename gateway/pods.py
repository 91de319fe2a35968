"""The pod table: what is known of each pod now, and what this gateway has under way on it.

State changes are synchronous calls on one event loop; tasks (`fleet`, `poller`, `subscriber`) call them and do the I/O.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from config.schema import Breaker as BreakerConfig
from config.schema import PodConfig
from gateway.agreement import Agreement
from gateway.breaker import Breaker
from gateway.in_flight import InFlight
from gateway.leases import Lease
from gateway.pairs import Pairs
from gateway.progress import Progress, Work
from gateway.pull_lease import Pull
from index import Arrival, Audit, Cached, Coming, Counted, Expected, Publisher, Trust, Turnover
from index import Sequence as SequenceNumbers
from index.audit import Verdict
from scorers import AdapterState, Candidate, Costs

PodState = Literal["starting", "ready", "down"]
_NOTHING_CACHED = Cached(0, 0, 0)


class Adapters(NamedTuple):
    """The LoRA adapters of a pod's requests, and for how many at once a batch has slots."""

    slots: int
    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()

    def state(self, name: str) -> AdapterState:
        """Where the adapter stands. Those that are waited for take free slots first."""
        if name in self.running:
            return "loaded"
        if len(self.running | self.waiting) < self.slots:
            return "slot"
        return "waiting" if name in self.waiting else "full"


class Load(NamedTuple):
    """One rank's load as its pod's /metrics said; None: not said. Of those waiting, `deferred` wait for KV blocks.

    `kv_tokens`: for how many tokens the GPU has blocks; 0: not said.
    """

    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None
    adapters: Adapters | None = None
    deferred: int | None = None
    kv_tokens: int = 0


_UNKNOWN_LOAD = Load()
_UNKNOWN_LOADS: Mapping[int, Load] = {}
_NO_WORK = Work()
_TIERED = True
_NOTHING_EXPECTED: Mapping[Publisher, int] = {}
_NOTHING_COMES: Mapping[Publisher, Arrival] = {}


class Model(NamedTuple):
    """A model id as a pod serves it.

    `namespace` is what its blocks are indexed under: the adapter's name, or the first of the base model's ids (the
    others are aliases). `card` is the pod's own entry of /v1/models, as JSON; `root` is what the pod was started with:
    a directory or a hub's name.
    """

    id: str
    namespace: str
    card: bytes = b""
    adapter: bool = False
    root: str = ""


class EventStream(Struct):
    """Where one publisher's event stream stands, and how far what came of it is believed.

    The subscriber writes it; answers do by what they report, and polls by what the pod's counters say where answers
    report nothing. Placement, /pods and /metrics read it.
    """

    last_event_at: float | None = None
    last_seq: int | None = None
    gaps: int = 0
    restarts: int = 0
    certain: bool = False
    lost: int = 0
    followed_at: float | None = None  # when `last_seq` last changed
    trust: Trust = field(default_factory=Trust)
    turnover: Turnover = field(default_factory=Turnover)
    audit: Audit = field(default_factory=Audit)

    def follows(self, numbers: SequenceNumbers, now: float) -> None:
        """The sequence numbers say this of it now. Claims of a stream with more missing for good lose credit."""
        if numbers.certain:
            self.trust.restored()
        elif numbers.lost > self.lost:
            self.trust.lost(now, self._missed_s(numbers, now))
        if numbers.last_applied != self.last_seq or numbers.restarts > self.restarts:
            self.followed_at = now
        self.last_seq, self.gaps, self.restarts = numbers.last_applied, numbers.gaps, numbers.restarts
        self.certain, self.lost = numbers.certain, numbers.lost

    def _missed_s(self, numbers: SequenceNumbers, now: float) -> float | None:
        """Of the time since the last batches, as large a share as of the batches since is lost; None: nobody knows."""
        if self.followed_at is None or self.last_seq is None or numbers.restarts > self.restarts:
            return None
        published = (numbers.last_applied or 0) - self.last_seq
        if published <= 0:
            return None
        return (now - self.followed_at) * (numbers.lost - self.lost) / published


class Restored(NamedTuple):
    """What a snapshot said of a pod: when its process started, and where each rank's events stood."""

    started: float | None
    positions: dict[int, int | None]


class Pod:
    """One pod. `name` (`host:port`) is its identity in the index and in metrics."""

    def __init__(self, spec: PodConfig, *, p2p: tuple[str, int] | None, breaker: BreakerConfig) -> None:
        self.spec = spec
        self.name = spec.name
        self.url = spec.url.rstrip("/")
        self.state: PodState = "starting"
        self.reason = "not polled yet"
        self.suspect = False
        self.stalled = False
        self._progress: dict[int, Progress] = {}
        self.wake = asyncio.Event()
        self.models: dict[str, Model] = {}
        self.ranks: tuple[int, ...] = tuple(range(spec.data_parallel_size))
        self.publishers: dict[int, Publisher] = {}
        self.publishes = True
        self.load: dict[int, Load] = {}
        self.load_at = 0.0
        self.streams: dict[int, EventStream] = {}
        self.started: float | None = None
        self.restored: Restored | None = None
        self.in_flight: dict[int, InFlight] = {}
        self.cold_turns: dict[int, int] = {}
        self.takes_token_ids = False
        self.renders: bool | None = None  # None: not asked yet
        self.breaker = Breaker(failures=breaker.failures, cooldown=breaker.cooldown)
        self.p2p = p2p
        self._breaker_config = breaker

    def reconfigure(self, spec: PodConfig, *, p2p: tuple[str, int] | None, breaker: BreakerConfig) -> None:
        """The configuration says this of it now. What is known of the pod, and under way on it, stays."""
        self.spec = spec
        self.url = spec.url.rstrip("/")
        self.p2p = p2p
        self._breaker_config = breaker
        self.breaker.reconfigure(failures=breaker.failures, cooldown=breaker.cooldown)

    def joined(self, models: Mapping[str, Model], ranks: tuple[int, ...], *, publishes: bool = True) -> None:
        """The pod can serve. Counts start from zero: nothing of an earlier incarnation is under way on this one.

        `publishes`: whether it tells of its blocks. Of one that does not, nothing is expected either.
        """
        self.models = dict(models)
        self.ranks = ranks
        self.publishers = {rank: Publisher(self.name, rank) for rank in ranks}
        self.publishes = publishes
        self.in_flight = {rank: InFlight() for rank in ranks}
        self.cold_turns = {}
        self.streams = {rank: EventStream() for rank in ranks}
        self._progress = {rank: Progress() for rank in ranks}
        self.stalled = False
        self.takes_token_ids, self.renders = False, None
        self.breaker = Breaker(failures=self._breaker_config.failures, cooldown=self._breaker_config.cooldown)
        self.suspect = False
        self.state, self.reason = "ready", ""

    def left(self, reason: str) -> None:
        """The pod cannot serve. Its models stay known, so that a request for one gets 503, not 404."""
        self.state, self.reason = "down", reason
        self.load = {}
        self.streams = {rank: EventStream() for rank in self.ranks}
        self.stalled = False

    def suspected(self) -> None:
        """Something of the pod broke: poll it at once, and name it as a source only when it is known to be alive."""
        self.suspect = True
        self.wake.set()

    def progressed(self, work: Mapping[int, Work], now: float, stall_after: float | None) -> None:
        """A poll found `work` on its ranks. The pod is stalled if one of them is."""
        self.stalled = False
        for rank, progress in self._progress.items():
            requests = self.in_flight[rank].requests
            self.stalled |= progress.polled(work.get(rank, _NO_WORK), requests, now, stall_after)

    def moves(self) -> dict[int, int]:
        """What `audited` needs to know of the moment before a poll, per rank."""
        return {rank: stream.audit.moves for rank, stream in self.streams.items()}

    def audited(self, moves: Mapping[int, int], counted: Mapping[int, Counted], now: float) -> list[Verdict]:
        """Hold predictions against the counters of a poll that began at `moves`; the verdicts of what was judged."""
        verdicts: list[Verdict] = []
        for rank, stream in self.streams.items():
            finding = stream.audit.polled(moves[rank], counted.get(rank))
            if finding is None:
                continue
            verdicts.append(finding.verdict)
            if finding.verdict == "compared":
                stream.trust.compared(finding.predicted, finding.reported, now)
        return verdicts

    def rank_load(self, rank: int, oldest: float) -> Load:
        """The polled load, or all-unknown when it is older than `oldest`."""
        return self.load.get(rank, _UNKNOWN_LOAD) if self.load_at >= oldest else _UNKNOWN_LOAD

    @property
    def requests(self) -> int:
        """How many this gateway has under way on it."""
        return sum(counts.requests for counts in self.in_flight.values())

    @property
    def base_model(self) -> str:
        """The namespace of blocks that belong to no adapter."""
        return next((model.namespace for model in self.models.values() if not model.adapter), "")


class PodTable:
    """All configured pods, by name, and what is known between them.

    `changed` is called with a pod that has come or is gone, and after each poll.
    """

    def __init__(
        self,
        pods: Iterable[Pod],
        *,
        max_load_age: float,
        max_requests: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agreement = Agreement(self._differ)
        self.pairs = Pairs()
        self.costs = Costs()
        self.expected = Expected()
        self.coming = Coming()
        self.clock = clock
        self.changed: Callable[[Pod], None] = _told_nobody
        self.reconfigure(pods, max_load_age=max_load_age, max_requests=max_requests)

    def reconfigure(self, pods: Iterable[Pod], *, max_load_age: float, max_requests: int | None) -> None:
        """From now on these pods and bounds."""
        self._pods = {pod.name: pod for pod in pods}
        self._max_load_age = max_load_age
        self._max_requests = max_requests

    def __contains__(self, name: str) -> bool:
        return name in self._pods

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods.values())

    def __getitem__(self, name: str) -> Pod:
        return self._pods[name]

    @property
    def oldest_load(self) -> float:
        """Load that was polled before this counts as unknown."""
        return self.clock() - self._max_load_age

    @property
    def ready(self) -> bool:
        """Whether any pod can serve."""
        return any(pod.state == "ready" for pod in self)

    def knows(self, model: str) -> bool:
        """Whether a pod is known to serve the model, ready or not."""
        for pod in self._pods.values():  # noqa: SIM110 - several times as fast as `any`, in every request
            if model in pod.models:
                return True
        return False

    def models(self) -> dict[str, list[Pod]]:
        """Model id → the pods known to serve it, ready or not."""
        serving: dict[str, list[Pod]] = {}
        for pod in self:
            for model in pod.models:
                serving.setdefault(model, []).append(pod)
        return serving

    def serving(
        self,
        model: str | None,
        excluded: frozenset[str] = frozenset(),
        only: frozenset[str] | None = None,
        now: float | None = None,
    ) -> list[Pod]:
        """Ready pods for a model, best kind only: healthy; else suspect or stalled; else those with an open breaker.

        A pod under suspicion, or stalled, is still better than no answer, so it drops out only while another can serve.
        A pod with as many requests as it may have serves no more. `model` None: any; `only`: no others than these.
        """
        now = self.clock() if now is None else now
        ready = self.ready_for(model, only)
        if excluded:
            ready = [pod for pod in ready if pod.name not in excluded]
        if self._max_requests is not None:
            ready = [pod for pod in ready if pod.requests < self._max_requests]
        for pod in ready:  # nearly always nothing is wrong with any, and nobody has to be left out
            if pod.suspect or pod.stalled or not (pod.breaker.closed or pod.breaker.admits(now)):
                break
        else:
            return ready
        admitted = [p for p in ready if p.breaker.admits(now)]
        return [p for p in admitted if not (p.suspect or p.stalled)] or admitted or ready

    def overloaded(self, model: str | None, only: frozenset[str] | None = None) -> bool:
        """Whether ready pods serve a model, and all have as many requests as they may."""
        ready = self.ready_for(model, only)
        return self._max_requests is not None and bool(ready) and all(p.requests >= self._max_requests for p in ready)

    def ready_for(self, model: str | None, only: frozenset[str] | None = None) -> list[Pod]:
        """Ready pods for a model, whatever else is known of them. `model` and `only` as in `serving`."""
        pods = self._pods.values()
        ready = [pod for pod in pods if pod.state == "ready" and (model is None or model in pod.models)]
        return ready if only is None else [pod for pod in ready if pod.name in only]

    def candidates(
        self,
        pods: Iterable[Pod],
        cached: Mapping[Publisher, Cached],
        speculative: Mapping[Publisher, int] = _NOTHING_EXPECTED,
        now: float | None = None,
        coming: Mapping[Publisher, Arrival] = _NOTHING_COMES,
    ) -> list[Candidate]:
        """One candidate per rank; `speculative`: tokens that are expected there, `coming`: being pulled. O(ranks)."""
        now = self.clock() if now is None else now
        oldest = now - self._max_load_age
        found: list[Candidate] = []
        for pod in pods:
            loads = pod.load if pod.load_at >= oldest else _UNKNOWN_LOADS
            host, port = (None, None) if pod.p2p is None or pod.suspect or pod.stalled else pod.p2p
            for rank in pod.ranks:
                publisher, counts, stream = pod.publishers[rank], pod.in_flight[rank], pod.streams[rank]
                gpu, cpu, longest = cached.get(publisher, _NOTHING_CACHED)
                waiting, running, kv_usage, _, _, kv_tokens = loads.get(rank, _UNKNOWN_LOAD)
                found.append(
                    Candidate(  # by position: a call with over 15 names goes by way of a dict, in four times the time
                        pod.url,
                        rank,
                        host,
                        None if port is None else port + rank,
                        gpu,
                        cpu,
                        longest,
                        1.0 if stream.trust.whole else stream.trust.credit(now),
                        speculative.get(publisher, 0) if speculative else 0,
                        _TIERED,
                        waiting,
                        running,
                        kv_usage,
                        counts.requests,
                        counts.tokens,
                        counts.unanswered,
                        counts.square,
                        counts.context,
                        counts.progress_s(now) if counts.unanswered else 0.0,
                        counts.pulls,
                        counts.pulled_tokens,
                        counts.serving,
                        counts.serving_tokens,
                        counts.awaited,
                        stream.turnover.share,
                        kv_tokens,
                    )
                )
        if not coming:
            return found
        publishers = [pod.publishers[rank] for pod in pods for rank in pod.ranks]
        return [_with(each, coming.get(publisher), now) for publisher, each in zip(publishers, found, strict=True)]

    def leased(
        self,
        pod: Pod,
        rank: int,
        uncached_tokens: int,
        *,
        square: int = 0,
        prompts: Sequence[array[int]] = (),
        pull: Pull | None = None,
    ) -> Lease:
        """A request under way on a pod for as long as the lease's context lasts; see `Lease` and `InFlight`."""
        return Lease(self, pod, rank, uncached_tokens, square, prompts, pull)

    def forget(self, name: str) -> None:
        """The pod has left, and may come back as another: nothing is known of what it holds, or will."""
        self.agreement.forget(name)
        self.expected.forget(name)
        if name in self._pods:
            self.pairs.parted(self._pods[name].url)
            self.costs.parted(self._pods[name].url)

    def prune(self) -> None:
        """Costs of pods that are not in the table are not worth keeping. O(pairs)."""
        urls = [pod.url for pod in self]
        self.costs.keep(urls)
        self.pairs.keep(urls)

    def _differ(self) -> None:
        """Other pods than before can never pull from each other."""
        found = [(self._pods.get(each.pod), self._pods.get(each.peer)) for each in self.agreement.found]
        self.pairs.differ((pod.url, peer.url) for pod, peer in found if pod is not None and peer is not None)


def _told_nobody(_: Pod) -> None:
    pass


def _with(candidate: Candidate, arrival: Arrival | None, now: float) -> Candidate:
    """A candidate to which something comes. What is late is expected to take as long again as it is."""
    if arrival is None:
        return candidate
    tokens, due, (pod, rank) = arrival
    return replace(candidate, coming_tokens=tokens, coming_s=abs(due - now), coming_from=pod, coming_rank=rank)
