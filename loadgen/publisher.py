"""One rank's event publisher: a PUB socket, and a ROUTER that replays what is still buffered.

Each batch is sent as [topic, sequence number, payload]. Sequence numbers are 8 bytes, big endian, from 0 for each
engine, and nothing tells one engine's numbers from the next one's. A replay request [empty, start] is answered with
every buffered batch from start on and an end marker; a start older than the buffer is silently answered from where the
buffer begins.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import zmq
import zmq.asyncio

from loadgen.events import Event, EventEncoder

BUFFERED_BATCHES: Final = 10_000
END_OF_REPLAY: Final = b"\xff" * 8
# vLLM's limit for the PUB socket, and libzmq's default, which its ROUTER keeps: slow readers lose replayed batches.
PUB_HWM, REPLAY_HWM = 100_000, 1000


class Publisher:
    """Publishes the batches of one rank, each ``delay_s`` after it is handed over.

    ``pub`` and ``replay`` are bound, and closed by their owner once ``serve_replay`` has ended.
    """

    def __init__(
        self,
        pub: zmq.Socket[bytes],
        replay: zmq.asyncio.Socket | None,
        encoder: EventEncoder,
        topic: str = "",
        *,
        delay_s: float = 0.0,
    ) -> None:
        self._pub = pub
        self._replay = replay
        self._encoder = encoder
        self._topic = topic.encode()
        self._delay_s = delay_s
        self._delayed: deque[bytes] = deque()
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=BUFFERED_BATCHES)
        self._to_drop = 0
        self.next_seq = 0

    def publish(self, events: Sequence[Event]) -> None:
        """Send one batch; none when there are no events."""
        if events:
            self.publish_payload(self._encoder.encode(time.time(), events))

    def publish_payload(self, payload: bytes) -> None:
        """Send these bytes as the next batch, whatever they are."""
        if self._delay_s:
            self._delayed.append(payload)
            asyncio.get_running_loop().call_later(self._delay_s, self._send_delayed)
        else:
            self._send(payload)

    def _send_delayed(self) -> None:
        # Each call sends the longest waiting batch, not one of its own: calls due at the same time have no order.
        if self._delayed:
            self._send(self._delayed.popleft())

    def _send(self, payload: bytes) -> None:
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        self._buffer.append((seq, payload))
        if self._to_drop:
            self._to_drop -= 1
        else:
            self._pub.send_multipart([self._topic, seq.to_bytes(8, "big"), payload])

    def drop(self, count: int) -> None:
        """Lose the next ``count`` batches on the way; a replay still has them."""
        self._to_drop += count

    async def serve_replay(self) -> None:
        """Answer replay requests until cancelled; then what is still delayed is lost."""
        try:
            if self._replay is None:
                await asyncio.get_running_loop().create_future()  # until cancelled
                return
            while True:
                match await self._replay.recv_multipart():
                    case [client, _, start]:
                        await self._answer(self._replay, client, int.from_bytes(start, "big"))
        finally:
            self._delayed.clear()

    async def _answer(self, replay: zmq.asyncio.Socket, client: bytes, start: int) -> None:
        for seq, payload in list(self._buffer):
            if seq >= start:
                await replay.send_multipart([client, b"", self._topic, seq.to_bytes(8, "big"), payload])
        await replay.send_multipart([client, b"", b"", END_OF_REPLAY, b""])
