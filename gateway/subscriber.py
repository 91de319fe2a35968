"""One publisher's KV events, from its ZMQ sockets into the index.

    SUB connect → replay from 0 → live frames, one after the other → (gap → replay from the gap) …

While a replay runs, live frames wait in the SUB socket's queue, which is bounded; what overflows it is seen as a gap
and replayed. Frames are decoded and applied in slices, with a turn for everyone else on the loop in between.

Frames, as vLLM sends them: live `[topic, seq, payload]`; a replay is asked for with `[b"", start]` and answered by
`[b"", topic, seq, payload]` (older publishers: no topic), then an end marker with seq -1. Sequence numbers are 8 bytes,
big endian.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec
import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from gateway.agreement import Agreement, Matter
from gateway.metrics import Metrics
from gateway.pods import EventStream, Pod
from gateway.poller import EventSource
from index import Action, BlockStored, DecodeError, Publisher, RadixIndex, decode_batch
from index import Sequence as SequenceNumbers

_log = structlog.get_logger("gateway.events")

_QUEUED_FRAMES = 10_000  # live frames that may wait while a replay runs; a publisher's own buffer holds as many batches
_SLICE_FRAMES = 16
_HANDSHAKE_S = 2.0
_REPLAY_ANSWER_S = 5.0  # the publisher looks for replay requests every 0.1 s, between its steps
_REPLAY_ATTEMPTS = 3
# A batch published while the subscription was on its way is in neither the replay nor the stream: look once more.
_TAIL_CHECK_S = 1.0
_END = (-1).to_bytes(8, "big", signed=True)

_FIXES: dict[Matter, str] = {
    "block-size": "give both the same --block-size",
    "hash": "give both the same PYTHONHASHSEED, --prefix-caching-hash-algo and adapter paths",
}

Frame = tuple[int, bytes]


class _EngineRestarted(Exception):
    """Seen while a replay of the old engine's events ran; `frame` is the new engine's."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame[0])
        self.frame = frame


class Subscriber:
    """Runs until cancelled; the pod's supervisor owns it."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        pod: Pod,
        publisher: Publisher,
        source: EventSource,
        *,
        index: RadixIndex,
        agreement: Agreement,
        metrics: Metrics,
    ) -> None:
        self._context = context
        self._pod = pod
        self._publisher = publisher
        self._source = source
        self._index = index
        self._agreement = agreement
        self._metrics = metrics
        self._numbers = SequenceNumbers(replay=source.replay is not None)
        self._stream: EventStream = pod.streams[source.rank]
        self._kept: deque[Frame] = deque()
        self._live_frames: zmq.Socket[bytes]
        self._connected = asyncio.Event()
        self._tail_check_at: float | None = None
        self._reported: set[str] = set()
        self._lost = 0

    async def run(self) -> None:
        """Subscribe and follow."""
        socket = self._context.socket(zmq.SUB)
        socket.set(zmq.RCVHWM, _QUEUED_FRAMES)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IPV6, 1)
        socket.subscribe(self._source.topic.encode())
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            socket.connect(self._source.events)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch_connection(monitor))
                group.create_task(self._follow(socket))
        finally:
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)

    async def _watch_connection(self, monitor: zmq.asyncio.Socket) -> None:
        """The connection breaks the moment a pod dies: sooner than any poll."""
        while True:
            event = await recv_monitor_message(monitor)
            if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected.set()
                self._tail_check_at = time.monotonic() + _TAIL_CHECK_S
            else:
                self._pod.suspected()

    async def _follow(self, socket: zmq.asyncio.Socket) -> None:
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                await self._connected.wait()
        except TimeoutError:
            _log.warning("no connection to event stream", pod=self._pod.name, endpoint=self._source.events)
        self._live_frames = zmq.Socket.shadow(socket.underlying)
        await self._repair()
        while True:
            self._report()
            await socket.poll(int(_TAIL_CHECK_S * 1000))
            for number, payload in self._waiting(_SLICE_FRAMES):
                await self._live(number, payload)
            if self._tail_check_at is not None and time.monotonic() >= self._tail_check_at:
                self._tail_check_at = None
                await self._check_tail()
            await asyncio.sleep(0)

    async def _live(self, number: int, payload: bytes) -> None:
        action = self._numbers.live(number).action
        if action is Action.RESTART:
            self._forget()
            action = self._numbers.live(number).action
        if action is Action.APPLY:
            self._apply(payload)
            return
        self._count(action.value)
        if action is Action.GAP:
            self._kept.append((number, payload))
            await self._repair()

    def _forget(self) -> None:
        """The engine is a new one: what the old one held is gone, and so is what was kept of its events."""
        _log.warning("engine restarted", pod=self._pod.name, rank=self._source.rank)
        self._index.clear(self._publisher)
        self._kept.clear()

    async def _repair(self) -> None:
        """Replay what is missing, then the frames kept meanwhile; after some attempts give up what cannot be had."""
        for attempt in range(1, _REPLAY_ATTEMPTS + 1):
            if (start := self._numbers.missing()) is None:
                return
            last = attempt == _REPLAY_ATTEMPTS
            try:
                await self._replay(start, last=last)
            except _EngineRestarted as restart:
                self._forget()
                await self._live(*restart.frame)
                return
            if self._offer_kept(last=last):
                return

    def _offer_kept(self, *, last: bool) -> bool:
        """Apply what follows of the kept frames; whether nothing is missing any more."""
        while self._kept:
            number, payload = self._kept[0]
            action = self._numbers.held(number).action
            if action is Action.GAP and last:
                self._numbers.lose_before(number)
                self._numbers.replay_end(complete=False)
                action = self._numbers.held(number).action
            if action is Action.APPLY:
                self._apply(payload)
            elif action is not Action.DUPLICATE:
                return False
            self._kept.popleft()
        return self._numbers.missing() is None

    async def _check_tail(self) -> None:
        """Ask for whatever came after the last batch: usually nothing."""
        if self._source.replay is not None:
            applied = self._numbers.last_applied
            self._numbers.replay_begin(0 if applied is None else applied + 1)
            await self._repair()

    async def _replay(self, start: int, *, last: bool) -> None:
        """One replay from `start`. A hole breaks it off, to be asked for again, unless this was the last attempt."""
        assert self._source.replay is not None  # noqa: S101 - a sequence without replay never has something missing
        self._numbers.replay_begin(start)
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.RCVHWM, 0)  # the answer is bounded by the publisher's buffer, and a dropped part of it is a hole
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IPV6, 1)
        try:
            socket.connect(self._source.replay)
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            result = await self._answers(socket, last=last)
        except TimeoutError:
            self._numbers.replay_end(complete=False)
            result = "timeout"
        finally:
            socket.close()
        self._metrics.replays.labels(self._pod.name, result).inc()

    async def _answers(self, socket: zmq.asyncio.Socket, *, last: bool) -> str:
        result, frames = "complete", 0
        while True:
            async with asyncio.timeout(_REPLAY_ANSWER_S):
                parts = await socket.recv_multipart()
            if len(parts) < 2 or len(parts[-2]) != len(_END):
                continue
            if parts[-2] == _END:
                self._keep_waiting()
                self._numbers.replay_end(complete=True)
                return result
            number = int.from_bytes(parts[-2], "big")
            decision = self._numbers.replayed(number)
            if decision.action is Action.GAP:
                if not last:
                    return "hole"
                self._numbers.lose_before(number)
                decision = self._numbers.replayed(number)
                result = "incomplete"
            if decision.action is Action.APPLY:
                self._apply(parts[-1])
            frames += 1
            if frames % _SLICE_FRAMES == 0:
                await asyncio.sleep(0)

    def _keep_waiting(self) -> None:
        """Take the live frames that came while the replay ran.

        It has brought some of them too; once it is over, those could be taken for a new engine's.
        """
        for number, payload in self._waiting(_QUEUED_FRAMES):
            if self._numbers.live(number).action is Action.RESTART:
                raise _EngineRestarted((number, payload))
            self._kept.append((number, payload))

    def _waiting(self, limit: int) -> Iterator[Frame]:
        """The frames that have arrived, read without the event loop: a future per frame costs more than the frame."""
        for _ in range(limit):
            try:
                parts: Sequence[bytes] = self._live_frames.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(parts) >= 2 and len(parts[-2]) == len(_END):
                yield int.from_bytes(parts[-2], "big"), parts[-1]

    def _apply(self, payload: bytes) -> None:
        try:
            batch = decode_batch(payload)
        except DecodeError as error:
            self._count("undecodable")
            self._report_once("undecodable", str(error))
            return
        self._count("applied")
        self._stream.last_event_at = time.monotonic()
        effects = msgspec.structs.asdict(self._index.apply(self._publisher, batch.events))
        for reason, count in (*batch.errors.items(), *effects.items()):
            if count:
                self._metrics.event_effects.labels(self._pod.name, reason).inc(count)
        for reason in batch.errors:
            self._report_once(reason, "event not used")
        for event in batch.events:
            if isinstance(event, BlockStored) and event.parent_block_hash is None:
                self._compare(event)

    def _compare(self, event: BlockStored) -> None:
        for found in self._agreement.observe(self._publisher, self._pod.base_model, event):
            _log.warning(
                "pods cannot pull from each other: every pull between them will be a miss",
                pod=found.pod,
                peer=found.peer,
                differ_in=found.matter,
                fix=_FIXES[found.matter],
            )

    def _count(self, outcome: str) -> None:
        self._metrics.events.labels(self._pod.name, outcome).inc()

    def _report_once(self, reason: str, detail: str) -> None:
        if reason not in self._reported:
            self._reported.add(reason)
            _log.warning("unusable events", pod=self._pod.name, reason=reason, detail=detail[:200])

    def _report(self) -> None:
        stream, numbers = self._stream, self._numbers
        stream.last_seq, stream.gaps, stream.restarts = numbers.last_applied, numbers.gaps, numbers.restarts
        stream.certain = numbers.certain
        if numbers.certain:
            stream.trust.restored()
        elif numbers.lost > self._lost:
            stream.trust.lost(time.monotonic())
        self._lost = numbers.lost
