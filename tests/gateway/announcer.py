"""A publisher of KV events under a test's hand, for streams that a well-behaved pod does not send."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from tests.gateway.fleet import BLOCK, DEADLINE_S

END = (-1).to_bytes(8, "big", signed=True)


def stored(*hashes: int, tokens: Sequence[int], parent: int | None = None, medium: str = "GPU") -> dict[str, Any]:
    """An event that announces consecutive blocks."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": BLOCK,
        "lora_id": None,
        "medium": medium,
        "lora_name": None,
    }


def batch(*events: Any) -> bytes:
    return msgspec.msgpack.encode([0.0, events, 0])


class Announcer:
    """One rank's PUB and ROUTER sockets; each replay is asked for, then answered by the test."""

    def __init__(self, pub: zmq.asyncio.Socket, router: zmq.asyncio.Socket) -> None:
        self._pub = pub
        self._router = router
        self._client = b""
        self.events = pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replays = router.getsockopt_string(zmq.LAST_ENDPOINT)

    async def subscribed(self) -> None:
        """Return when somebody follows."""
        async with asyncio.timeout(DEADLINE_S):
            assert (await self._pub.recv()).startswith(b"\x01")

    async def send(self, number: int, payload: bytes) -> None:
        await self._pub.send_multipart([b"", number.to_bytes(8, "big"), payload])

    async def send_frames(self, *frames: bytes) -> None:
        await self._pub.send_multipart(list(frames))

    async def asked(self) -> int:
        """Where the next replay is to start."""
        async with asyncio.timeout(DEADLINE_S):
            self._client, _, start = await self._router.recv_multipart()
        return int.from_bytes(start, "big")

    async def answer_frames(self, *frames: bytes) -> None:
        """Answer with one message of these frames, whatever they are."""
        await self._router.send_multipart([self._client, *frames])

    async def answer(self, *frames: tuple[int, bytes], topic: bool = True, end: bool = True) -> None:
        """Answer the replay asked for last."""
        head = [self._client, b""] + ([b""] if topic else [])
        for number, payload in frames:
            await self._router.send_multipart([*head, number.to_bytes(8, "big"), payload])
        if end:
            await self._router.send_multipart([*head, END, b""])

    def break_off(self) -> None:
        """Close every connection to the event stream."""
        self._pub.unbind(self.events)
        self._pub.close()


@asynccontextmanager
async def announcing() -> AsyncIterator[Announcer]:
    with zmq.asyncio.Context() as context, context.socket(zmq.XPUB) as pub, context.socket(zmq.ROUTER) as router:
        for socket in (pub, router):
            socket.linger = 0
            socket.sndhwm = 0  # a test decides what gets lost
            socket.bind("tcp://127.0.0.1:*")
        yield Announcer(pub, router)
