"""A fleet's event streams under load: `PODS BLOCKS_PER_SECOND BLOCKS_PER_POD`, in one process.

Prints `{"http": [PORT, …]}` when the pods answer; `{"blocks": …, "seconds": …}` when every stream has a subscriber and
every pod holds its blocks; and then, for each line of standard input, which is a number of seconds, the same again for
what was published in that time. Ends when standard input does.

A batch is what a vLLM step publishes that fills 64 blocks of a full cache: a removal per block that had to go, the ends
of the oldest prompts first, then the store. Every prompt is 2,048 blocks long and unlike all others.
"""

import asyncio
import sys
import time
from array import array
from collections import deque
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
import uvloop
import zmq

from tests.bench.backend import ByLength, Connection, pages
from tests.bench.workload import BLOCK_TOKENS, PROMPT_BLOCKS, STORE_BLOCKS, VOCABULARY

_SUBSCRIBED_S: Final = 60.0
_TICK_S: Final = 0.001
_STORE_TOKENS: Final = STORE_BLOCKS * BLOCK_TOKENS
_CONTENTS: Final = 64
_NO_EXTRAS: Final = msgspec.Raw(msgspec.msgpack.encode([None] * STORE_BLOCKS))


class Published(NamedTuple):
    """Blocks stored, and how long that took."""

    blocks: int
    seconds: float


class Stream:
    """One pod's events."""

    def __init__(self, number: int, size: int) -> None:
        self._number, self._size = number, size
        self._rng = Random(number)
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.XPUB)
        self._socket.set(zmq.SNDHWM, 0)  # what is sent is bounded by the time asked for
        self._socket.set(zmq.LINGER, 0)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        # Content that follows a prompt's beginning may be the same in all: as a prefix it is another one.
        self._contents = [_encoded(self._tokens()) for _ in range(_CONTENTS)]
        self._prompts: deque[list[int]] = deque()
        self._begun = self._held = self._sent = 0

    def wait_for_subscriber(self) -> None:
        """Raises TimeoutError."""
        if not self._socket.poll(int(_SUBSCRIBED_S * 1000)):
            raise TimeoutError("nobody subscribed")
        self._socket.recv()

    @property
    def is_full(self) -> bool:
        """Whether the next store needs room."""
        return self._held + STORE_BLOCKS > self._size

    def publish(self) -> None:
        """A batch with one store."""
        events = [self._removed() for _ in range(STORE_BLOCKS)] if self.is_full else []
        events.append(self._stored())
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self._socket.send_multipart([b"", self._sent.to_bytes(8, "big"), payload])
        self._sent += 1

    def _removed(self) -> dict[str, Any]:
        while not self._prompts[0]:
            self._prompts.popleft()
        self._held -= 1
        return {"type": "BlockRemoved", "block_hashes": [self._prompts[0].pop()], "medium": "GPU", "group_idx": 0}

    def _stored(self) -> dict[str, Any]:
        if not self._prompts or self._begun == PROMPT_BLOCKS:
            self._prompts.append([])
            self._begun = 0
        prompt = self._prompts[-1]
        parent = prompt[-1] if self._begun else None
        hashes = array("Q", self._rng.randbytes(STORE_BLOCKS * 8)).tolist()
        prompt += hashes
        self._begun += STORE_BLOCKS
        self._held += STORE_BLOCKS
        return {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": self._rng.choice(self._contents) if parent is not None else _encoded(self._tokens()),
            "block_size": BLOCK_TOKENS,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": _NO_EXTRAS,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }

    def _tokens(self) -> list[int]:
        return [drawn % VOCABULARY for drawn in array("I", self._rng.randbytes(_STORE_TOKENS * 4))]


def fill(streams: list[Stream], rate: int) -> Published:
    """Until every pod holds what it has room for, at the rate."""
    began, blocks = time.perf_counter(), 0
    for stream in streams:
        while not stream.is_full:
            stream.publish()
            blocks += STORE_BLOCKS
            time.sleep(max(0.0, began + blocks / rate - time.perf_counter()))
    return Published(blocks, time.perf_counter() - began)


def play(streams: list[Stream], rate: int, seconds: float) -> Published:
    """The streams in turn, as many batches by any moment as the clock says."""
    began, batches = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        while batches < passed * rate / STORE_BLOCKS:
            streams[batches % len(streams)].publish()
            batches += 1
        time.sleep(_TICK_S)
    return Published(batches * STORE_BLOCKS, passed)


def _encoded(tokens: list[int]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(tokens))


def _say(what: object) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


def _obey(streams: list[Stream], rate: int) -> None:
    for stream in streams:
        stream.wait_for_subscriber()
    _say(fill(streams, rate)._asdict())
    for line in sys.stdin:
        _say(play(streams, rate, float(line))._asdict())


async def serve(pods: int, rate: int, size: int) -> None:
    """Until standard input ends."""
    loop = asyncio.get_running_loop()
    streams = [Stream(number, size) for number in range(pods)]
    prompts = ByLength()
    ports = []
    for stream in streams:
        served = pages(stream.port)
        server = await loop.create_server(lambda served=served: Connection(served, prompts), "127.0.0.1", 0)  # type: ignore[misc]
        ports.append(server.sockets[0].getsockname()[1])
    _say({"http": ports})
    await asyncio.to_thread(_obey, streams, rate)


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:4])))
