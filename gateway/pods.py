"""The pod table: what is known of each pod now, and what this gateway has under way on it.

State changes are synchronous calls on one event loop; tasks (`fleet`, `poller`, `subscriber`) call them and do the I/O.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from msgspec import Struct, field

from config.schema import Breaker as BreakerConfig
from config.schema import PodConfig
from gateway.agreement import Agreement
from gateway.breaker import Breaker
from gateway.leases import InFlight, Lease
from gateway.progress import Progress, Work
from index import Audit, Cached, Counted, Publisher, Trust
from index.audit import Verdict
from scorers import Candidate

PodState = Literal["starting", "ready", "down"]
_NOTHING_CACHED = Cached(0, 0, 0)


class Load(NamedTuple):
    """One rank's load as its pod's /metrics said; None: not said."""

    waiting: int | None = None
    running: int | None = None
    kv_usage: float | None = None


_UNKNOWN_LOAD = Load()
_NO_WORK = Work()


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
    trust: Trust = field(default_factory=Trust)
    audit: Audit = field(default_factory=Audit)


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
        self.load: dict[int, Load] = {}
        self.load_at = 0.0
        self.streams: dict[int, EventStream] = {}
        self.started: float | None = None
        self.restored: Restored | None = None
        self.in_flight: dict[int, InFlight] = {}
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

    def joined(self, models: Mapping[str, Model], ranks: tuple[int, ...]) -> None:
        """The pod can serve. Counts start from zero: nothing of an earlier incarnation is under way on this one."""
        self.models = dict(models)
        self.ranks = ranks
        self.publishers = {rank: Publisher(self.name, rank) for rank in ranks}
        self.in_flight = {rank: InFlight() for rank in ranks}
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
    """All configured pods, by name, and what is known between them."""

    def __init__(
        self,
        pods: Iterable[Pod],
        *,
        max_load_age: float,
        max_requests: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agreement = Agreement()
        self.clock = clock
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
        self, model: str | None, excluded: frozenset[str] = frozenset(), only: frozenset[str] | None = None
    ) -> list[Pod]:
        """Ready pods for a model, best kind only: healthy; else suspect or stalled; else those with an open breaker.

        A pod under suspicion, or stalled, is still better than no answer, so it drops out only while another can serve.
        A pod with as many requests as it may have serves no more. `model` None: any; `only`: no others than these.
        """
        now = self.clock()
        ready = self._ready(model, only)
        if excluded:
            ready = [pod for pod in ready if pod.name not in excluded]
        if self._max_requests is not None:
            ready = [pod for pod in ready if pod.requests < self._max_requests]
        admitted = [p for p in ready if p.breaker.admits(now)]
        return [p for p in admitted if not (p.suspect or p.stalled)] or admitted or ready

    def overloaded(self, model: str | None, only: frozenset[str] | None = None) -> bool:
        """Whether ready pods serve a model, and all have as many requests as they may."""
        ready = self._ready(model, only)
        return self._max_requests is not None and bool(ready) and all(p.requests >= self._max_requests for p in ready)

    def _ready(self, model: str | None, only: frozenset[str] | None) -> list[Pod]:
        pods = self._pods.values()
        ready = [pod for pod in pods if pod.state == "ready" and (model is None or model in pod.models)]
        return ready if only is None else [pod for pod in ready if pod.name in only]

    def candidates(self, pods: Iterable[Pod], cached: Mapping[Publisher, Cached]) -> list[Candidate]:
        """One candidate per rank. O(ranks)."""
        now = self.clock()
        oldest = now - self._max_load_age
        return [
            _candidate(pod, rank, cached.get(pod.publishers[rank], _NOTHING_CACHED), pod.rank_load(rank, oldest), now)
            for pod in pods
            for rank in pod.ranks
        ]

    def leased(self, pod: Pod, rank: int, uncached_tokens: int, expected: Counted | None = None) -> Lease:
        """A request under way on a pod for as long as the lease's context lasts."""
        return Lease(pod, rank, uncached_tokens, self.clock(), expected)


def _candidate(pod: Pod, rank: int, cached: Cached, load: Load, now: float) -> Candidate:
    counts = pod.in_flight[rank]
    host, port = (None, None) if pod.p2p is None or pod.suspect or pod.stalled else pod.p2p
    return Candidate(
        pod=pod.url,
        rank=rank,
        p2p_host=host,
        p2p_port=None if port is None else port + rank,
        gpu_tokens=cached.gpu,
        cpu_tokens=cached.cpu,
        any_tokens=cached.any,
        credit=pod.streams[rank].trust.credit(now),
        waiting=load.waiting,
        running=load.running,
        kv_usage=load.kv_usage,
        in_flight_requests=counts.requests,
        in_flight_tokens=counts.tokens,
    )
