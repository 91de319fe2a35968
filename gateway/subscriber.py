"""One publisher's KV events, from its ZMQ sockets into the index.

    SUB connect → replay from 0 → live frames, one after the other → (gap → replay from the gap) …

While a replay runs, live frames wait in the SUB socket's queue, which is bounded; what overflows it is seen as a gap
and replayed. Frames are taken in slices of time, one subscriber's at a time (`intake`).

Frames, as vLLM sends them: live `[topic, seq, payload]`; a replay is asked for with `[b"", start]` and answered by
`[b"", topic, seq, payload]` (older publishers: no topic), then an end marker with seq -1. Sequence numbers are 8 bytes,
big endian.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence

import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from gateway.intake import Intake, Turns
from gateway.pod import EventStream, Pod
from gateway.poller import EventSource
from index import Action
from index import Sequence as SequenceNumbers

_log = structlog.get_logger("gateway.events")

_QUEUED_FRAMES = 10_000  # live frames that may wait while a replay runs; a publisher's own buffer holds as many batches
_HANDSHAKE_S = 2.0
_REPLAY_ANSWER_S = 5.0  # the publisher looks for replay requests every 0.1 s, between its steps
_REPLAY_ATTEMPTS = 3
# A batch published while the subscription was on its way is in neither the replay nor the stream: look once more.
_TAIL_CHECK_S = 1.0
_SEQ_BYTES = 8
_END = 2**64 - 1  # -1 in 8 bytes: the end of a replay

Frame = tuple[int, bytes]


class _EngineRestarted(Exception):
    """Seen while a replay of the old engine's events ran; `frame` is the new engine's."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame[0])
        self.frame = frame


class Subscriber:
    """Runs until cancelled; the pod's supervisor owns it."""

    def __init__(
        self, context: zmq.asyncio.Context, pod: Pod, source: EventSource, *, intake: Intake, turns: Turns
    ) -> None:
        self._context = context
        self._pod = pod
        self._source = source
        self._intake = intake
        self._turns = turns
        self._stream: EventStream = pod.streams[source.rank]
        self._numbers = SequenceNumbers(replay=source.replay is not None, position=self._stream.last_seq)
        self._kept: deque[Frame] = deque()
        self._live_frames: zmq.Socket[bytes]
        self._connected = asyncio.Event()
        self._tail_check_at: float | None = None

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
            await socket.poll(int(_TAIL_CHECK_S * 1000))
            async with self._turns as until:
                self._take_live(until)
                self._report()
            await self._repair()
            if self._tail_check_at is not None and time.monotonic() >= self._tail_check_at:
                self._tail_check_at = None
                await self._check_tail()

    def _take_live(self, until: float) -> None:
        """A slice of the live frames; a gap ends it."""
        for number, payload in _waiting(self._live_frames):
            self._live(number, payload)
            if self._kept or time.perf_counter() >= until:
                return

    def _live(self, number: int, payload: bytes) -> None:
        action = self._numbers.live(number).action
        if action is Action.RESTART:
            self._forget()
            action = self._numbers.live(number).action
        if action is Action.APPLY:
            self._intake.apply(payload)
            return
        self._intake.count(action.value)
        if action is Action.GAP:
            self._kept.append((number, payload))

    def _forget(self) -> None:
        self._intake.forget()
        self._kept.clear()

    async def _repair(self) -> None:
        """Replay what is missing, then the frames kept meanwhile; after some attempts give up what cannot be had.

        Attempts are of one gap: where a replay moved on to the next one, they are counted anew.
        """
        asked, attempt = None, 0
        while (start := self._numbers.missing()) is not None:
            attempt = attempt + 1 if start == asked else 1
            asked = start
            hopeless = start if attempt >= _REPLAY_ATTEMPTS else None
            try:
                await self._replay(start, hopeless)
            except _EngineRestarted as restart:
                self._forget()
                self._live(*restart.frame)
                self._report()
                return  # if that left a gap, the next turn repairs it
            await self._offer_kept(hopeless)

    async def _offer_kept(self, hopeless: int | None) -> None:
        """Apply what follows of the kept frames, up to a gap."""
        followed = True
        while followed and self._kept:
            async with self._turns as until:
                followed = self._take_kept(until, hopeless)
                self._report()

    def _take_kept(self, until: float, hopeless: int | None) -> bool:
        """A slice of the kept frames; False at a gap, unless it is the one that is given up."""
        while self._kept and time.perf_counter() < until:
            number, payload = self._kept[0]
            action, missing = self._numbers.held(number)
            if action is Action.GAP and missing == hopeless:
                self._numbers.lose_before(number)
                self._numbers.replay_end(complete=False)
                action = self._numbers.held(number).action
            if action is Action.APPLY:
                self._intake.apply(payload)
            elif action is Action.DUPLICATE:
                self._intake.count(action.value)
            else:
                return False
            self._kept.popleft()
        return True

    async def _check_tail(self) -> None:
        """Ask for whatever came after the last batch: usually nothing."""
        if self._source.replay is not None:
            applied = self._numbers.last_applied
            self._numbers.replay_begin(0 if applied is None else applied + 1)
            await self._repair()

    async def _replay(self, start: int, hopeless: int | None) -> None:
        """One replay from `start`. A hole breaks it off, to be asked for, unless it begins at `hopeless`."""
        assert self._source.replay is not None  # noqa: S101 - a sequence without replay never has something missing
        self._numbers.replay_begin(start)
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.RCVHWM, 0)  # the answer is bounded by the publisher's buffer, and a dropped part of it is a hole
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IPV6, 1)
        try:
            socket.connect(self._source.replay)
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            result = await self._answers(socket, hopeless)
        finally:
            socket.close()
        self._intake.count_replay(result)

    async def _answers(self, socket: zmq.asyncio.Socket, hopeless: int | None) -> str:
        answers: zmq.Socket[bytes] = zmq.Socket.shadow(socket.underlying)
        result, lost = None, self._numbers.lost
        while result is None:
            if not await socket.poll(int(_REPLAY_ANSWER_S * 1000)):
                self._numbers.replay_end(complete=False)
                return "timeout"
            async with self._turns as until:
                result = self._take_answers(answers, until, hopeless)
                self._report()
        return "incomplete" if result == "complete" and self._numbers.lost > lost else result

    def _take_answers(self, answers: zmq.Socket[bytes], until: float, hopeless: int | None) -> str | None:
        """A slice of a replay; its result when it is over."""
        for number, payload in _waiting(answers):
            if number == _END:
                self._keep_waiting()
                self._numbers.replay_end(complete=True)
                return "complete"
            action, missing = self._numbers.replayed(number)
            if action is Action.GAP:
                if missing != hopeless:
                    return "hole"
                self._numbers.lose_before(number)
                action = self._numbers.replayed(number).action
            if action is Action.APPLY:
                self._intake.apply(payload)
            if time.perf_counter() >= until:
                break
        return None

    def _keep_waiting(self) -> None:
        """Take the live frames that came while the replay ran.

        It has brought some of them too; once it is over, those could be taken for a new engine's.
        """
        for number, payload in _waiting(self._live_frames):
            if self._numbers.live(number).action is Action.RESTART:
                raise _EngineRestarted((number, payload))
            self._kept.append((number, payload))
            if len(self._kept) >= _QUEUED_FRAMES:
                return

    def _report(self) -> None:
        self._stream.follows(self._numbers, time.monotonic())


def _waiting(socket: zmq.Socket[bytes]) -> Iterator[Frame]:
    """The frames that have arrived, read without the event loop: a future per frame costs more than the frame."""
    while True:
        try:
            parts: Sequence[bytes] = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(parts) >= 2 and len(parts[-2]) == _SEQ_BYTES:
            yield int.from_bytes(parts[-2], "big"), parts[-1]
