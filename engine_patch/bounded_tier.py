"""The P2P tier that `engine_patch.p2p_tier` names. What it changes in vLLM's:

* **Waits end.** A request waits for its source for `deadline_s` (2 s), or for its own `deadline_ms`, from its first
  lookup through its last block (`waits`). Then it computes. vLLM's lookups, or pending hits, have no end.
* **A given-up pull spoils nothing.** Its memory stays out of use while the source may write to it (`quarantine`).
* **A pull that does not fit ends.** What is pulled is not pushed out by what is pulled behind it, over and over.
* **No half-open pairs.** A peer that kept silent meanwhile has no session any more, on either side (`handshake`).
* **A peer that failed costs nobody a second wait.** Requests that name it compute at once, until it answers the tier's
  own tries (`peers`).
* **An idle engine sleeps** until a peer speaks (`waking`).
* **Pulls are counted** per peer, on the pod's `/metrics` (`pull_counts`).

Prefill/decode disaggregation goes through this tier too. There a consumer waits for a prefill, which takes what it
takes: vLLM's own limit of 30 s holds, and ends in the same way.

As vLLM's, this is entered by one thread at a time. It reaches into vLLM's tier at places that `p2p_tier` checks.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.logger import init_logger
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.p2p import manager as stock
from vllm.v1.kv_offload.tiering.p2p.session import client, server

from engine_patch import handshake, pull_counts
from engine_patch.p2p_transport import BoundedNixlTransport, BoundedZmqTransport
from engine_patch.peers import Peers
from engine_patch.probing import PortProbes
from engine_patch.pull_counts import PullCounts
from engine_patch.quarantine import Quarantine
from engine_patch.waits import DEADLINE_S, Waits, deadline_of, is_sound
from engine_patch.waking import Watch, engine_around

logger = init_logger("vllm.engine_patch.bounded_tier")

_PREFILL_S = 30.0
"""How long a decoder waits for a prefiller's blocks: vLLM's own limit."""

_PENDING_S = 1.0
"""How long a source looks for blocks that are just being stored before it answers without them. vLLM's 5 s are longer
than a consumer waits for the answer."""

_ABORT_S = 10.0
"""How long a source that speaks may take to acknowledge that a transfer was given up."""

_DRAIN_S = 10.0
"""How long a reset of the cache waits for peers that may still write to it."""

_TICK_S = 1.0
_BUSY_TICK_S = 0.25
"""How often a sleeping engine looks at its peers in any case; more often while one is being tried."""


@dataclass(slots=True, frozen=True)
class _Load:
    """A transfer into this pod that is under way."""

    request: str
    peer: str
    chunks: tuple[int, ...]
    began: float
    ends: float
    is_pull: bool
    """Not the decoding half of a disaggregated request, which waits for a prefill."""


@contextlib.contextmanager
def _bounded_transports() -> Iterator[None]:
    """The tier of vLLM makes its transports by name: give it ours."""
    before = stock.ZmqTransport, stock.NixlTransport
    stock.ZmqTransport, stock.NixlTransport = BoundedZmqTransport, BoundedNixlTransport
    try:
        yield
    finally:
        stock.ZmqTransport, stock.NixlTransport = before


class BoundedP2PTier(stock.P2PSecondaryTierManager):
    """vLLM's P2P tier with an end to every wait. Settings beyond vLLM's: `deadline_s`, `idle_sleep`."""

    def __init__(
        self,
        offloading_spec: Any,  # noqa: ANN401
        primary_kv_view: memoryview,
        tier_type: str = "p2p",  # noqa: ARG002
        *,
        deadline_s: float = DEADLINE_S,
        idle_sleep: bool = True,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        if not float(deadline_s) > 0:
            raise ValueError(f"deadline_s must be positive, not {deadline_s!r}")
        with _bounded_transports():
            # In metrics the tier keeps the name that its readers know.
            super().__init__(offloading_spec, primary_kv_view, "p2p", **settings)
        # An abort that is not acknowledged is no end of the transfer. vLLM takes it for one.
        client._ABORT_ACK_TIMEOUT_S = float("inf")  # noqa: SLF001
        server._LOOKUP_PENDING_TIMEOUT_S = _PENDING_S  # noqa: SLF001
        self._deadline_s = float(deadline_s)
        self._waits = Waits()
        self._peers = Peers()
        self._quarantine = Quarantine()
        self._probes = PortProbes()
        self._counts = PullCounts()
        self._told_totals: dict[str, int] = {}
        # Requests under way that name a peer, by their `kv_request_id`.
        self._active: set[str] = set()
        self._capacity = len(primary_kv_view)
        # The blocks that each request has asked for once: it pulls none twice.
        self._brought: dict[str, set[OffloadKey]] = {}
        self._loads: dict[int, _Load] = {}
        # Loads that were reported as failed while their session goes on with them: job → when.
        self._given_up: dict[int, tuple[_Load, float]] = {}
        self._failures: list[Any] = []
        # Peers whose session is being ended from here; their failure is noted already.
        self._ended: set[str] = set()
        self._primary: Any = None
        self._watch = _watch(self._control) if idle_sleep else None

    # What the engine asks

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Start the request's clock and open the session to its source, unless that is one to leave alone."""
        # A farewell that came while the engine slept would otherwise cost this request its pull.
        self._poll_once()
        params = req_context.kv_transfer_params
        if not is_sound(params):
            logger.warning("A request's kv_transfer_params are not as they should be; it computes.")
            return RequestOffloadingContext()
        context = super().on_new_request(req_context)
        source = req_context.get_state(stock.P2PSourceInfo)
        if source is not None:
            self._active.add(source.kv_request_id)
        if source is not None and source.do_probe and params is not None:
            allowed_s, exact = deadline_of(params["remote_kv_source"], self._deadline_s)
            self._waits.admit(source.kv_request_id, allowed_s, exact=exact)
        return context

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """As vLLM's, until the request has waited long enough: then the source has nothing."""
        source = req_context.get_state(stock.P2PSourceInfo)
        if source is None or not source.do_probe:
            return super().lookup(key, req_context)
        request, peer = source.kv_request_id, source.peer_id
        brought = self._brought.get(request)
        if brought is not None and (key in brought or len(brought) >= self._capacity):
            # What does not fit would push out what was pulled before, and that again, as long as the request waits.
            return LookupResult.MISS
        result = super().lookup(key, req_context)
        if result is LookupResult.RETRY:
            now = time.monotonic()
            since = self._waits.start(request, now)
            if since is None:  # another request had the same id, and is over
                self._waits.admit(request, self._deadline_s, exact=False)
                return result
            if not self._waits.expired(request, now):
                return result
            self._give_up(request, peer, since, "lookup")
            return LookupResult.MISS
        if result is LookupResult.MISS and request not in self._failed_req_ids and peer in self._sessions:
            self._peers.answered(peer)
        return result

    def submit_load(self, job_metadata: Any) -> None:  # noqa: ANN401
        """Ask the source for blocks, and note until when they have to be here."""
        now = time.monotonic()
        source = job_metadata.req_context.get_state(stock.P2PSourceInfo)
        if source is not None:
            request = source.kv_request_id
            if request in self._failed_req_ids:
                self._finished_jobs.append(stock.JobResult(job_id=job_metadata.job_id, success=False))
                return
            if source.do_probe:
                self._brought.setdefault(request, set()).update(job_metadata.keys)
            chunks = tuple(int(chunk) for chunk in job_metadata.chunk_ids)
            ends = self._waits.transfer_ends(request, len(chunks) * self.block_size_bytes, now)
            if source.peer_id in self._sessions:  # else it fails at once, and nobody was told of its chunks
                self._loads[job_metadata.job_id] = _Load(
                    request, source.peer_id, chunks, now, now + _PREFILL_S if ends is None else ends, source.do_probe
                )
        super().submit_load(job_metadata)

    def get_finished_jobs(self) -> Iterable[Any]:
        """Look at the peers, give up what has taken too long, and tell what has ended, each job once."""
        if self._watch is not None and self._watch.asleep:
            return ()  # nothing has come, and no time has passed that matters; vLLM 0.33 asks a thousand times a second
        finished = [result for result in super().get_finished_jobs() if not self._is_told(result)]
        for result in finished:
            self._count(result)
        finished += self._failures
        self._failures = []
        return finished

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Stop the request's clock."""
        super().on_request_finished(req_context)
        source = req_context.get_state(stock.P2PSourceInfo)
        if source is not None:
            self._active.discard(source.kv_request_id)
            self._waits.finish(source.kv_request_id)
            self._brought.pop(source.kv_request_id, None)

    def serve_external_requests(self, parent: Any) -> None:  # noqa: ANN401
        """Answer peers; the first call also tells where the chunks are kept."""
        if self._primary is None:
            self._keep_out_of_use(parent)
        super().serve_external_requests(parent)

    def has_pending_work(self) -> bool:
        """Whether the engine has to step. If not, it may sleep: the watch wakes it."""
        if self._watch is None or not self._watch.alive:
            return True
        if self._watch.woken or self._is_busy():
            return True
        self._watch.arm(self._sleep_s())
        return False

    def drain_jobs(self) -> None:
        """As vLLM's; a moment longer while a peer may still write to what is to be reset."""
        super().drain_jobs()
        until = time.monotonic() + _DRAIN_S
        while self._quarantine.peers() and time.monotonic() < until:
            time.sleep(0.01)
            self._poll_once()
        self._quarantine.clear()

    def shutdown(self) -> None:
        """End the watch and the tier."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._probes.close()
        super().shutdown()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """What `get_stats` will tell."""
        definitions: dict[str, OffloadingMetricMetadata] = dict(super().build_metric_definitions(extra_config))
        for name, (documentation, labels) in pull_counts.COUNTERS.items():
            definitions[name] = OffloadingCounterMetadata(documentation=documentation, labelnames=labels)
        for name, documentation in pull_counts.GAUGES.items():
            definitions[name] = OffloadingGaugeMetadata(documentation=documentation)
        return definitions

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What was counted since the last call."""
        for name, total in (
            (pull_counts.FAREWELLS, self._control.farewells),
            (pull_counts.DROPPED, self._control.dropped),
        ):
            if (more := total - self._told_totals.get(name, 0)) > 0:
                self._counts.add(name, value=more)
                self._told_totals[name] = total
        stats = super().get_stats() or OffloadingConnectorStats()
        for name, labels, value in self._counts.take():
            stats.increase_counter(name, value, labels)
        stats.set_gauge(pull_counts.QUARANTINED, len(self._quarantine))
        stats.set_gauge(pull_counts.LEFT_ALONE, self._peers.left_alone())
        return stats

    # One look at the peers

    def _poll_once(self) -> None:
        if self._watch is not None:
            self._watch.looked()
        super()._poll_once()
        self._ended &= self._sessions.keys()
        if len(self._failed_req_ids) > len(self._active):
            # A request may be over before its pull has failed. vLLM remembers it for good.
            self._failed_req_ids &= self._active
        now = time.monotonic()
        # Before what is late is given up: a pull of the new process is none of the old one's.
        for peer in self._control.take_replaced():
            self._quarantine.let_go(peer, now)
        self._end_late_transfers(now)
        self._try_again(now)
        if self._quarantine.peers():
            self._look_at_quarantine(now)

    def _end_late_transfers(self, now: float) -> None:
        # What has ended is not late, well or not: it is told with the next results.
        ended = {result.job_id for result in self._finished_jobs}
        for job, load in list(self._loads.items()):
            if now < load.ends or job in ended:
                continue
            del self._loads[job]
            self._quarantine.put(job, load.peer, load.chunks, now)
            self._given_up[job] = (load, now)
            self._failures.append(stock.JobResult(job_id=job, success=False))
            if (session := self._sessions.get(load.peer)) is not None:
                session.finish_request(load.request)  # asks the source to stop
            self._give_up(load.request, load.peer, load.began, "fetch", leave_alone=load.is_pull)
        for job, (load, since) in self._given_up.items():
            if job in ended:
                continue
            # A source that speaks is only slow, and will acknowledge.
            limit = _ABORT_S if self._control.heard_since(load.peer, since) else self._deadline_s
            if now - since >= limit and load.peer in self._sessions and load.peer not in self._ended:
                self._give_up(load.request, load.peer, since, "abort")
                self._end_session(load.peer)

    def _give_up(self, request: str, peer: str, since: float, phase: str, *, leave_alone: bool = True) -> None:
        """The request waits no more, and the next ones do not wait for this peer.

        A peer that has not said a word since the wait began has no session any more.
        """
        logger.warning("Gave up on the %s at %s after %.2f s.", phase, peer, time.monotonic() - since)
        self._counts.add(pull_counts.TIMEOUTS, peer, phase)
        self._failed_req_ids.add(request)
        if peer in self._ended:
            return
        if leave_alone:
            self._peers.failed(peer, time.monotonic(), waited=True)
        if not self._control.heard_since(peer, since):
            self._end_session(peer)

    def _end_session(self, peer: str) -> None:
        session = self._sessions.get(peer)
        connection = None if session is None else session._conn  # noqa: SLF001
        if connection is None or peer in self._ended:
            return
        self._ended.add(peer)
        with contextlib.suppress(Exception):
            connection.send({handshake.TYPE: handshake.DISCONNECT})
        connection.mark_dead()

    def _try_again(self, now: float) -> None:
        for peer in self._peers.due(now):
            session = self._sessions.get(peer)
            if session is None:
                if super()._get_or_create_session(peer) is None:
                    self._peers.failed(peer, now, waited=False)
            elif session.ready:
                self._peers.connected(peer)
                # Those that were given up in this very session are under way in it still.
                self._quarantine.let_go(peer, now, but=self._given_up)

    def _look_at_quarantine(self, now: float) -> None:
        for peer in self._probes.refusing(self._quarantine.peers(), now):
            self._quarantine.let_go(peer, now)
        self._use_again(self._quarantine.expire(now))

    # What vLLM's tier calls on the way

    def _get_or_create_session(self, peer_id: str) -> Any:  # noqa: ANN401
        if not self._peers.may_ask(peer_id, time.monotonic()):
            self._counts.add(pull_counts.SKIPPED, peer_id)
            return None
        return super()._get_or_create_session(peer_id)

    def _accept_new_peers(self, new_connections: Sequence[Any]) -> None:
        # One that starts over has a dead session here still.
        self._reap_dead_sessions()
        super()._accept_new_peers(new_connections)

    def _reap_dead_sessions(self) -> None:
        dead = [peer for peer, session in self._sessions.items() if session.connected and not session.alive]
        if not dead:
            return
        told = len(self._finished_jobs)
        super()._reap_dead_sessions()
        now = time.monotonic()
        kept = []
        for result in self._finished_jobs[told:]:
            if self._given_up.pop(result.job_id, None) is not None:
                continue  # told already; nobody will acknowledge the abort
            if (load := self._loads.get(result.job_id)) is not None:
                self._quarantine.put(result.job_id, load.peer, load.chunks, now)
            kept.append(result)
        ended = {result.job_id for result in self._finished_jobs[:told]}
        for job in [job for job, (load, _) in self._given_up.items() if load.peer in dead and job not in ended]:
            del self._given_up[job]
        self._finished_jobs[told:] = kept
        for peer in dead:
            if peer in self._ended:
                self._ended.discard(peer)
            else:
                self._peers.failed(peer, now, waited=False)

    # Small steps

    def _sleep_s(self) -> float:
        """How long the engine may sleep at most."""
        if not all(session.ready for session in self._sessions.values()):
            return _BUSY_TICK_S
        due = self._peers.next_due()
        return _TICK_S if due is None else min(max(due - time.monotonic(), _BUSY_TICK_S), _TICK_S)

    def _is_busy(self) -> bool:
        """Whether something is under way that only steps bring forward."""
        return bool(
            self._loads
            or self._finished_jobs
            or self._failures
            or self._failed_serve_ctxs
            or any(session.has_pending_work or _is_serving(session) for session in self._sessions.values())
        )

    def _is_told(self, result: Any) -> bool:  # noqa: ANN401
        """Whether the job was reported as failed before. Keeps the chunks of one that failed out of use.

        Only a transfer that is done is over. A source acknowledges an abort though its writes may still land: vLLM's
        own in 0.32 at once, one with this package after it has waited for them for 10 s.
        """
        job, now = result.job_id, time.monotonic()
        told = self._given_up.pop(job, None) is not None
        if result.success:
            self._use_again(self._quarantine.release(job))
        elif told:
            self._quarantine.ended(job, now)
        elif (load := self._loads.get(job)) is not None and job not in self._quarantine:
            self._quarantine.put(job, load.peer, load.chunks, now)
            self._quarantine.ended(job, now)
        return told

    def _count(self, result: Any) -> None:  # noqa: ANN401
        load = self._loads.pop(result.job_id, None)
        if load is None or not result.success:
            return
        took = time.monotonic() - load.began
        result.transfer_time = took
        self._peers.answered(load.peer)
        self._counts.add(pull_counts.PULLS, load.peer)
        self._counts.add(pull_counts.PULL_BYTES, load.peer, value=len(load.chunks) * self.block_size_bytes)
        self._counts.add(pull_counts.PULL_SECONDS, load.peer, value=took)

    def _keep_out_of_use(self, parent: Any) -> None:  # noqa: ANN401
        """Have the primary tier ask the quarantine before it uses a freed chunk again."""
        self._primary = parent._m.primary_tier  # noqa: SLF001
        free = self._primary._free_chunk  # noqa: SLF001

        def free_unless_held(chunk: Any) -> None:  # noqa: ANN401
            if not self._quarantine.hold(chunk.chunk_id):
                free(chunk)

        self._primary._free_chunk = free_unless_held  # noqa: SLF001

    def _use_again(self, chunks: set[int]) -> None:
        if chunks:
            self._primary._free_list.extend(chunks)  # noqa: SLF001


def _is_serving(session: Any) -> bool:  # noqa: ANN401
    """Whether a session owes its peer an answer that only a step gives."""
    role = session._server  # noqa: SLF001
    return bool(role._serve_pending or role._pending_aborts or role._finished_lookup_ctxs)  # noqa: SLF001


def _watch(control: BoundedZmqTransport) -> Watch | None:
    engine = engine_around()
    if engine is None:
        logger.warning("No engine to wake was found: an idle engine keeps stepping, as with vLLM's own tier.")
        return None
    queue, message = engine.input_queue, (EngineCoreRequestType.WAKEUP, None)
    return Watch(control.descriptor, lambda: queue.put_nowait(message))
