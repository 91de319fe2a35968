"""A pod on a bare socket, for what no HTTP library would send."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from loadgen.ports import reset
from tests.gateway.fleet import MODEL
from tests.gateway.scripted import METRICS

Act = Callable[["RawPod", asyncio.StreamWriter], Awaitable[bool]]
OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"Content-Type: application/json\r\n"
SSE = b"Content-Type: text/event-stream\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
EVENT = b'data: {"object":"text_completion","choices":[{"index":0,"text":"Hi","finish_reason":null}]}\n\n'
ROLE = (
    b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)
ABORTED = b'data: {"object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"abort"}]}\n\n'
FAILED = b'data: {"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}\n\n'
DONE = b"data: [DONE]\n\n"
GOOD = b'{"object":"text_completion","choices":[{"text":"Hi"}],"usage":{"prompt_tokens":3,"completion_tokens":7}}'
_POLLED = {
    "/health": b"",
    "/metrics": METRICS,
    "/v1/models": b'{"object":"list","data":[{"id":"%b"}]}' % MODEL.encode(),
}


class RawPod:
    """Healthy; to anything but polls it does what `act` does, which says whether the connection goes on.

    `early`: it acts at a request's head, without reading the body.
    """

    def __init__(self, act: Act, *, early: bool = False) -> None:
        self.url = ""
        self.p2p_host, self.p2p_port = "127.0.0.1", 1
        self.heard = 0  # requests other than polls
        self._act = act
        self._early = early
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Refuse connections; end those there are."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            polled = _POLLED.get(head.split(" ")[1])
            if polled is not None:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(polled), polled))
                continue
            if head.split(" ")[1] in ("/kv_event_sources", "/version", "/kv/identity"):
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            if not self._early:
                await _body(reader, head.lower())
            self.heard += 1
            if not await self._act(self, writer):
                return


async def _body(reader: asyncio.StreamReader, head: str) -> None:
    if "transfer-encoding: chunked" in head:
        while (await reader.readuntil(b"\r\n")) != b"0\r\n":
            pass
        await reader.readuntil(b"\r\n")
    elif "content-length: " in head:
        await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))


@asynccontextmanager
async def raw(act: Act, *, early: bool = False) -> AsyncIterator[RawPod]:
    pod = RawPod(act, early=early)
    await pod.start()
    try:
        yield pod
    finally:
        await pod.stop()


def sends(*pieces: bytes, goes_on: bool = False) -> Act:
    """Send these, in a segment each, then close, or go on."""

    async def act(_: RawPod, writer: asyncio.StreamWriter) -> bool:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        return goes_on

    return act


def then_resets(*pieces: bytes) -> Act:
    """Send these, then reset the connection."""

    async def act(pod: RawPod, writer: asyncio.StreamWriter) -> bool:
        await sends(*pieces)(pod, writer)
        reset(writer.get_extra_info("socket"))
        return False

    return act


def then_stalls(*pieces: bytes) -> Act:
    """Send these, then nothing more."""

    async def act(pod: RawPod, writer: asyncio.StreamWriter) -> bool:
        await sends(*pieces)(pod, writer)
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    return act


def answered(body: bytes, head: bytes = OK + JSON) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*events: bytes) -> Act:
    return sends(OK + SSE + CHUNKED + b"\r\n", *map(chunk, events), b"0\r\n\r\n", goes_on=True)
