"""What is known of a pod now: what it serves, its load, how far its events are believed, what is under way on it.

State changes are synchronous calls on one event loop; tasks (`fleet`, `poller`, `subscriber`) call them and do the I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct, field

from config.schema import Breaker as BreakerConfig
from config.schema import PodConfig
from gateway.breaker import Breaker
from gateway.in_flight import InFlight
from gateway.progress import Progress, Work
from index import Audit, Counted, Publisher, Trust, Turnover
from index import Sequence as SequenceNumbers
from index.audit import Verdict
from scorers import AdapterState

PodState = Literal["starting", "ready", "down"]


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


UNKNOWN_LOAD = Load()
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


class Row(NamedTuple):
    """What is kept of a rank of a pod that can serve: candidates are made of it, for every request."""

    rank: int
    publisher: Publisher
    counts: InFlight
    stream: EventStream


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
        self.rows: list[Row] = []
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
        self.rows = [Row(rank, self.publishers[rank], self.in_flight[rank], self.streams[rank]) for rank in ranks]
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
        self.rows = []  # they have the streams of before
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
        return self.load.get(rank, UNKNOWN_LOAD) if self.load_at >= oldest else UNKNOWN_LOAD

    @property
    def requests(self) -> int:
        """How many this gateway has under way on it."""
        return sum(counts.requests for counts in self.in_flight.values())

    @property
    def base_model(self) -> str:
        """The namespace of blocks that belong to no adapter."""
        return next((model.namespace for model in self.models.values() if not model.adapter), "")
