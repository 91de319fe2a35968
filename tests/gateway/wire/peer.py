"""A peer that does on the wire exactly what a test tells it to, connection by connection."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, cast

from gateway.wire import Answer, Origin, Pool
from gateway.wire.connection import Bounds
from loadgen.ports import reset

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Wire(NamedTuple):
    """A connection, from the peer's side."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> bytes:
        """One request with its head; of its body as much as Content-Length says."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        return head + (await self.reader.readexactly(int(length[1])) if length else b"")

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def left(self) -> None:
        """Return when the other side has ended the connection."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def stop_reading(self) -> None:
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    def read_on(self) -> None:
        cast("asyncio.Transport", self.writer.transport).resume_reading()

    def reset(self) -> None:
        reset(self.writer.get_extra_info("socket"))
        self.writer.transport.abort()


Script = Callable[[Wire], Awaitable[None]]


def answers(*parts: bytes, close: bool = False) -> Script:
    """Answer every request with these bytes, each part in a segment of its own."""

    async def script(wire: Wire) -> None:
        while not wire.reader.at_eof():
            await wire.request()
            for part in parts:
                await wire.send(part)
                await asyncio.sleep(0.002)
            if close:
                return

    return script


class Peer:
    """Connection n is played by script n; those after the last, by the last."""

    def __init__(self, scripts: tuple[Script, ...]) -> None:
        self.port = 0
        self.connections = 0
        self._scripts = scripts
        self._tasks: set[asyncio.Task[None]] = set()

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._scripts[min(self.connections, len(self._scripts) - 1)]
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await script(Wire(reader, writer))
        finally:
            self._tasks.discard(task)
            writer.close()

    def origin(self, tls: ssl.SSLContext | None = None) -> Origin:
        return Origin.of(f"{'https' if tls else 'http'}://localhost:{self.port}", tls)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def peer(*scripts: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    played = Peer(scripts)
    server = await asyncio.start_server(played.play, "127.0.0.1", 0, ssl=tls, limit=1 << 20)
    played.port = server.sockets[0].getsockname()[1]
    try:
        yield played
    finally:
        server.close()
        await played.stop()


@asynccontextmanager
async def pool(
    *,
    head: int = 64 * 1024,
    behind: int = 256 * 1024,
    keepalive: float = 30.0,
    clock: Callable[[], float] | None = None,
) -> AsyncIterator[Pool]:
    bounds = Bounds(head=head, behind=behind)
    made = Pool(connect_timeout=5.0, keepalive=keepalive, bounds=bounds, **({"clock": clock} if clock else {}))
    try:
        yield made
    finally:
        await made.close()


async def get(pool: Pool, origin: Origin) -> Answer:
    return await pool.request(origin, b"GET", b"/", ())


async def rest(answer: Answer) -> bytes:
    """The body from here to its end."""
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
    return b"".join(pieces)


async def once(pool: Pool, origin: Origin) -> bytes:
    """The body of an answer, which is left as it should be."""
    async with await get(pool, origin) as answer:
        return await rest(answer)
