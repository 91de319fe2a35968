"""Load over raw connections, and what it cost the router: `OPTIONS` as JSON → `Result` as JSON.

Each connection sends its next request when it has the answer to the last. Not before every connection has warmed up is
the router's CPU clock read; then again when the last answer of the measured time is there.
"""

import asyncio
import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final, Literal, cast

import msgspec
import uvloop

from tests.bench.backend import CHUNK_INTERVAL_S
from tests.bench.chats import CONVERSATIONS, LONG_BYTES, chat, long_chats, turns
from tests.bench.clock import cpu_seconds

Kind = Literal["small", "long", "turn", "fresh", "stream"]
"""A chat of some 230 bytes; one of 128 KB; the next turn of one of 32 chats of 128 KB; a chat of 128 KB that was never
seen before; a small one answered by 400 chunks. `small`, `long` and `stream` repeat 16 prompts.
"""

STREAM_CHUNKS: Final = 400
_PROMPTS: Final = 16
_WARM_UP_CHUNKS: Final = 8
_WARM_UP_REQUESTS: Final = max(2 * _PROMPTS, CONVERSATIONS)
_WARM_UP_S: Final = 5.0
_GRACE_S: Final = 30.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)")


class Options(msgspec.Struct, kw_only=True):
    """`pids` are the router's processes; `requests` and `seconds` bound the measured part, whichever comes first.

    Connections are spread over `ports`; `chunks` is the length of a streamed answer. Chats that are not repeated are
    numbered from `first` on; None: from a number that never was.
    """

    ports: list[int]
    kind: Kind
    connections: int
    requests: int
    seconds: float
    pids: list[int]
    chunks: int = STREAM_CHUNKS
    first: int | None = None


class Result(msgspec.Struct, kw_only=True):
    """Of the measured part. `events` are SSE events, without the end marker; of streams `events` and `cpu_s` are those
    from when all had begun until the first one ended, so that what a request costs is not among them.

    `wait` is from a request to the first SSE event of its answer, or to the end of an answer without.
    """

    requests: int
    events: int
    seconds: float
    cpu_s: float
    wait_p50_s: float
    wait_p99_s: float


class Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._received = bytearray()
        self._end = 0  # of the answer in `received`; 0: its head is incomplete, -1: told by an empty chunk
        self._asked: float | None = None  # when; None once it is answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.fail(f"connection lost: {exc}")

    def send(self, request: bytes) -> None:
        """The answer will be told to the load."""
        self._asked = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        self._load.seen += data.count(b"data: ")
        if not self._end:
            at = received.find(b"\r\n\r\n")
            if at < 0:
                return
            head = bytes(received[: at + 2]).lower()
            if not head.startswith(b"http/1.1 200"):
                self._load.fail(bytes(received[:500]).decode(errors="replace"))
            length = _LENGTH.search(head)
            self._end = at + 4 + int(length[1]) if length else -1
        if self._asked is not None and b"data: " in received:
            self._begins()
        if len(received) >= self._end > 0 or (self._end < 0 and received.endswith(b"0\r\n\r\n")):
            events = received.count(b"data: ")
            received.clear()
            self._end = 0
            self._begins()
            self._load.answered(self, max(0, events - 1))

    def _begins(self) -> None:
        if self._asked is not None:
            self._load.waits.append(time.perf_counter() - self._asked)
            self._asked = None
            self._load.has_begun()


class Load:
    """Requests on all connections until a bound is reached. `clock` reads the router's CPU time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.connections: list[Connection] = []
        self.seen = 0  # SSE events, end markers among them
        self._clock = clock
        self.waits: list[float] = []  # of the last run, seconds
        self.finished = False

    async def run(
        self, requests: Callable[[], bytes], limit: int, seconds: float, *, begin_within_s: float = 0.0
    ) -> tuple[int, int]:
        """Answers and SSE events. Raises RuntimeError for any answer but a 200."""
        self.waits = []
        self._requests, self._left = requests, limit
        self._until = time.monotonic() + seconds
        self._answers = self._events = self._busy = self._begun = 0
        self._all_began: tuple[float, int] | None = None
        self._first_ended: tuple[float, int] | None = None
        self._still = len(self.connections)  # that have not begun
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        for number, connection in enumerate(self.connections):
            loop.call_later(begin_within_s * number / len(self.connections), self._begin, connection)
        async with asyncio.timeout(seconds + _GRACE_S):
            await self._done
        return self._answers, self._events

    def steady(self) -> tuple[float, int] | None:
        """CPU seconds and SSE events from when all connections' answers had begun to the first one's end, if any."""
        if self._all_began is None or self._first_ended is None or self._first_ended <= self._all_began:
            return None
        return self._first_ended[0] - self._all_began[0], self._first_ended[1] - self._all_began[1]

    def has_begun(self) -> None:
        """One more answer has."""
        self._begun += 1
        if self._begun == len(self.connections):
            self._all_began = (self._clock(), self.seen)

    def answered(self, connection: Connection, events: int) -> None:
        """The connection is free again."""
        if self._first_ended is None:
            self._first_ended = (self._clock(), self.seen)
        self._busy -= 1
        self._answers += 1
        self._events += events
        self._next(connection)

    def fail(self, reason: str) -> None:
        """End the run, unless everything has ended."""
        if not self.finished and not self._done.done():
            self._done.set_exception(RuntimeError(reason))

    def _begin(self, connection: Connection) -> None:
        self._still -= 1
        self._next(connection)

    def _next(self, connection: Connection) -> None:
        if self._left and time.monotonic() < self._until:
            self._left -= 1
            self._busy += 1
            connection.send(self._requests())
        elif not self._busy and not self._still and not self._done.done():
            self._done.set_result(None)


def post(body: bytes) -> bytes:
    """A chat completion's request."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def prompts(kind: Kind, *, chunks: int, first: int) -> Callable[[], bytes]:
    """A source of requests. They ask for one token: some routers handle every token of an answer, streamed or not."""
    if kind in ("fresh", "turn"):
        return map(post, long_chats(first) if kind == "fresh" else turns(first)).__next__
    length = LONG_BYTES if kind == "long" else 0
    extra = {"stream": True, "max_tokens": chunks} if kind == "stream" else {"max_tokens": 1}
    made = [post(chat(number, length, **extra)) for number in range(_PROMPTS)]
    turn = count()
    return lambda: made[next(turn) % _PROMPTS]


async def measure(options: Options) -> Result:
    """Connect, warm up, measure."""
    loop = asyncio.get_running_loop()
    load = Load(partial(cpu_seconds, options.pids))
    for number in range(options.connections):
        port = options.ports[number % len(options.ports)]
        _, connection = await loop.create_connection(lambda: Connection(load), "127.0.0.1", port)
        load.connections.append(connection)
    begin_within_s = 0.0
    warm_up = max(_WARM_UP_REQUESTS, options.connections)
    first = time.monotonic_ns() if options.first is None else options.first
    requests = prompts(options.kind, chunks=_WARM_UP_CHUNKS, first=first)
    await load.run(requests, warm_up, _WARM_UP_S)
    if options.kind == "stream":
        requests = prompts(options.kind, chunks=options.chunks, first=first)
        begin_within_s = options.chunks * CHUNK_INTERVAL_S / 2  # so that none waits behind the beginnings of 63 others
    cpu, began = cpu_seconds(options.pids), time.monotonic()
    answers, events = await load.run(requests, options.requests, options.seconds, begin_within_s=begin_within_s)
    seconds, cpu = time.monotonic() - began, cpu_seconds(options.pids) - cpu
    if options.kind == "stream" and (steady := load.steady()) is not None:
        cpu, events = steady
    load.finished = True
    for connection in load.connections:
        connection.close()
    waits = sorted(load.waits)
    return Result(
        requests=answers,
        events=events,
        seconds=seconds,
        cpu_s=cpu,
        wait_p50_s=statistics.median(waits),
        wait_p99_s=waits[len(waits) * 99 // 100],
    )


if __name__ == "__main__":
    measured = uvloop.run(measure(msgspec.json.decode(sys.argv[1], type=Options)))
    sys.stdout.write(msgspec.json.encode(measured).decode())
