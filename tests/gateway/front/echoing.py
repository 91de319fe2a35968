"""A connection without sockets: what is fed in pieces, and what comes back. Whoever serves it says what arrived."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from aiohttp import web
from httptools import HttpParserError, HttpResponseParser

from config.schema import Limits
from gateway.bodies import read_body
from gateway.errors import GatewayError
from gateway.front.connection import Connection, Service
from gateway.front.request import Request

LIMITS = Limits(max_body=4096, max_header=1000, max_request_line=1000, max_headers=32)
_TURNS = 12  # of the loop, after which what can happen has happened


class Said(NamedTuple):
    """An answer of the echo, or of whoever refused the request."""

    status: int
    body: Any


class Line(asyncio.Transport):
    """The client's side."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.paused = False
        self.closed = False
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: Any) -> None:
        self.sent += data

    def writelines(self, lines: Iterable[Any]) -> None:
        self.sent += b"".join(lines)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._lost)

    abort = close

    def _lost(self) -> None:
        assert isinstance(self.protocol, asyncio.Protocol)
        self.protocol.connection_lost(None)

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default


class Echo:
    """Serves plain requests and aiohttp's alike. `plain` counts the former; `gate` holds requests up while unset."""

    def __init__(self) -> None:
        self.plain = 0
        self.refused: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.early = False  # answer without having read the body

    async def exchange(self, request: Request) -> web.StreamResponse | None:
        self.plain += 1
        await self.gate.wait()
        if self.early:
            return _echoed(request.method, request.path, {}, b"")
        try:
            body = await read_body(request, LIMITS) if request.body_exists else b""
        except GatewayError as error:
            return web.Response(status=error.status)
        return _echoed(request.method, request.path, request.headers, body)

    async def unusual(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.gate.wait()
        return _echoed(request.method, request.path, request.headers, await request.read())


def _echoed(method: str, path: str, headers: Any, body: bytes) -> web.Response:
    told = sorted((name.lower(), value) for name, value in headers.items() if name.lower() != "content-length")
    shown = [[ascii(name), ascii(value)] for name, value in told]
    return web.Response(body=msgspec.json.encode([method, path, shown, body.hex()]))


@asynccontextmanager
async def connected(echo: Echo, *, plainly: bool = True) -> AsyncIterator[tuple[Connection, Line]]:
    """A connection; unless `plainly`, aiohttp serves everything on it."""
    server, line = web.Server(echo.unusual, handler_cancellation=True), Line()
    connection = Connection(
        server,
        limits=LIMITS,
        refused=echo.refused.append,
        loop=asyncio.get_running_loop(),
        service=Service(echo.exchange, lambda: False) if plainly else None,
    )
    line.protocol = connection
    connection.connection_made(line)
    try:
        yield connection, line
    finally:
        line.close()
        await turns()


async def turns(count: int = _TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def fed(connection: Connection, line: Line, *pieces: bytes) -> None:
    """Hand over the pieces, one in a turn, as far as the connection reads and stands."""
    for piece in pieces:
        if line.closed:
            return
        connection.data_received(piece)
        await turns(3)
    await turns()


def answers(sent: bytes | bytearray) -> list[Said]:
    """Parse what came back."""
    parsed = _Answers()
    try:
        parsed.parser.feed_data(bytes(sent).replace(b"HTTP/0.9 ", b"HTTP/1.1 "))  # as aiohttp answers if asked so
    except HttpParserError as error:
        raise AssertionError(bytes(sent)) from error
    return parsed.said


class _Answers:
    def __init__(self) -> None:
        self.parser = HttpResponseParser(self)
        self.said: list[Said] = []
        self._body = b""

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.said.append(Said(self.parser.get_status_code(), msgspec.json.decode(self._body) if self._body else None))
