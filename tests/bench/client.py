"""Load over raw connections, and what it cost the router: `OPTIONS` as JSON → `Result` as JSON.

Each connection sends its next request when it has the answer to the last. Not before every connection has warmed up is
the router's CPU clock read; then again when the last answer of the measured time is there.
"""

import asyncio
import re
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Final, Literal, cast

import msgspec
import uvloop

from tests.bench.backend import MODEL
from tests.bench.clock import cpu_seconds

Kind = Literal["small", "long", "fresh", "stream"]
"""A chat of some 230 bytes; one of 128 KB; one of 128 KB that was never seen before; a small one answered by 200
chunks. All but the third repeat 16 prompts.
"""

LONG_BYTES: Final = 128 * 1024
STREAM_CHUNKS: Final = 200
_PROMPTS: Final = 16
_WARM_UP_CHUNKS: Final = 8
_WARM_UP_REQUESTS: Final = 2 * _PROMPTS
_GRACE_S: Final = 30.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)")


class Options(msgspec.Struct, kw_only=True):
    """`pids` are the router's processes; `requests` and `seconds` bound the measured part, whichever comes first."""

    port: int
    kind: Kind
    connections: int
    requests: int
    seconds: float
    pids: list[int]


class Result(msgspec.Struct, kw_only=True):
    """Of the measured part. `events` are SSE events, without the end marker."""

    requests: int
    events: int
    seconds: float
    cpu_s: float


class Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._received = bytearray()
        self._end = 0  # of the answer in `received`; 0: its head is incomplete, -1: told by an empty chunk

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.fail(f"connection lost: {exc}")

    def send(self, request: bytes) -> None:
        """The answer will be told to the load."""
        self._transport.write(request)

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if not self._end:
            at = received.find(b"\r\n\r\n")
            if at < 0:
                return
            head = bytes(received[: at + 2]).lower()
            if not head.startswith(b"http/1.1 200"):
                self._load.fail(bytes(received[:500]).decode(errors="replace"))
            length = _LENGTH.search(head)
            self._end = at + 4 + int(length[1]) if length else -1
        if len(received) >= self._end > 0 or (self._end < 0 and received.endswith(b"0\r\n\r\n")):
            events = received.count(b"data: ")
            received.clear()
            self._end = 0
            self._load.answered(self, max(0, events - 1))


class Load:
    """Requests on all connections until a bound is reached."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.finished = False

    async def run(self, requests: Callable[[], bytes], limit: int, seconds: float) -> tuple[int, int]:
        """Answers and SSE events. Raises RuntimeError for any answer but a 200."""
        self._requests, self._left = requests, limit
        self._until = time.monotonic() + seconds
        self._answers = self._events = self._busy = 0
        self._done = asyncio.get_running_loop().create_future()
        for connection in self.connections:
            self._next(connection)
        async with asyncio.timeout(seconds + _GRACE_S):
            await self._done
        return self._answers, self._events

    def answered(self, connection: Connection, events: int) -> None:
        """The connection is free again."""
        self._busy -= 1
        self._answers += 1
        self._events += events
        self._next(connection)

    def fail(self, reason: str) -> None:
        """End the run, unless everything has ended."""
        if not self.finished and not self._done.done():
            self._done.set_exception(RuntimeError(reason))

    def _next(self, connection: Connection) -> None:
        if self._left and time.monotonic() < self._until:
            self._left -= 1
            self._busy += 1
            connection.send(self._requests())
        elif not self._busy and not self._done.done():
            self._done.set_result(None)


def post(port: int, body: bytes) -> bytes:
    """A chat completion's request."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def chat(number: int, length: int, **fields: object) -> bytes:
    """A chat body whose prompt is `number`'s from its first words on, about `length` bytes long."""
    words = f"Question {number}: what is the capital of country {number}? Answer in a single word, please."
    filler = " ".join(
        f"{chr(97 + (at * 7 + number) % 26)}{at * (number + 1) % 9973}" for at in range(max(0, length // 5))
    )
    system = {"role": "system", "content": f"You are a helpful assistant, number {number}."}
    user = {"role": "user", "content": f"{words} {filler}"[: max(length, len(words))]}
    return msgspec.json.encode({"model": MODEL, "messages": [system, user], "temperature": 0, **fields})


def prompts(options: Options, *, chunks: int) -> Callable[[], bytes]:
    """A source of requests."""
    port, kind = options.port, options.kind
    if kind == "fresh":
        before, after = chat(0, LONG_BYTES, max_tokens=16).split(b"number 0.", 1)
        numbers = count(time.monotonic_ns())
        return lambda: post(port, b"%bnumber %020d.%b" % (before, next(numbers), after))
    length = LONG_BYTES if kind == "long" else 0
    extra = {"stream": True, "max_tokens": chunks} if kind == "stream" else {"max_tokens": 16}
    made = [post(port, chat(number, length, **extra)) for number in range(_PROMPTS)]
    turn = count()
    return lambda: made[next(turn) % _PROMPTS]


async def measure(options: Options) -> Result:
    """Connect, warm up, measure."""
    loop = asyncio.get_running_loop()
    load = Load()
    for _ in range(options.connections):
        _, connection = await loop.create_connection(lambda: Connection(load), "127.0.0.1", options.port)
        load.connections.append(connection)
    warm_up = max(_WARM_UP_REQUESTS, options.connections)
    await load.run(prompts(options, chunks=_WARM_UP_CHUNKS), warm_up, options.seconds)
    requests = prompts(options, chunks=STREAM_CHUNKS)
    cpu, began = cpu_seconds(options.pids), time.monotonic()
    answers, events = await load.run(requests, options.requests, options.seconds)
    seconds, cpu = time.monotonic() - began, cpu_seconds(options.pids) - cpu
    load.finished = True
    for connection in load.connections:
        connection.close()
    return Result(requests=answers, events=events, seconds=seconds, cpu_s=cpu)


if __name__ == "__main__":
    measured = uvloop.run(measure(msgspec.json.decode(sys.argv[1], type=Options)))
    sys.stdout.write(msgspec.json.encode(measured).decode())
