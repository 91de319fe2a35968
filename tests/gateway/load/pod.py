"""A pod that streams what `script` says, at the pace that it is asked for; raw HTTP, so that it is cheap.

`python -m tests.gateway.load.pod ENDS`: writes `port PORT` to standard output when it listens, and ends when its
standard input does. Each stream whose reader left becomes a line of the file ENDS at once, so that it outlives a kill:
`ID TIME BYTES`, with the machine's monotonic clock and the bytes that were sent.
"""

import asyncio
import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Final, cast

import msgspec
import uvloop

from tests.gateway.load.script import DONE, MODEL, Asked, events

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_IDENTITY: Final = re.compile(rb"\r\nx-request-id:[ \t]*(\S+)", re.IGNORECASE)
_BACKLOG: Final = 4096
_METRICS: Final = b"""process_start_time_seconds 1.0
vllm:num_requests_running{engine="0"} 0.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:kv_cache_usage_perc{engine="0"} 0.0
"""


def _answer(body: bytes, content_type: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (status, content_type, len(body)) + body


_NOT_FOUND: Final = _answer(b"{}", status=b"404 Not Found")
_PAGES: Final = {
    b"/health": _answer(b""),
    b"/v1/models": _answer(msgspec.json.encode({"object": "list", "data": [{"id": MODEL, "object": "model"}]})),
    b"/metrics": _answer(_METRICS, b"text/plain"),
}


class Connection(asyncio.Protocol):
    """Requests one after the other."""

    def __init__(self, ends: int) -> None:
        self._ends = ends
        self._received = bytearray()
        self._identity = b""  # of the stream that goes on
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it
        self._loop = asyncio.get_running_loop()

    def connection_lost(self, _: Exception | None) -> None:
        if self._identity:
            os.write(self._ends, b"%b %f %d\n" % (self._identity, time.monotonic(), self._sent))
            self._identity = b""

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._next()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[: end + 2])
        length = _LENGTH.search(head)
        whole = end + 4 + (int(length[1]) if length else 0)
        if len(self._received) < whole:
            return
        body = bytes(self._received[end + 4 : whole])
        del self._received[:whole]
        method, path, _ = head.split(b" ", 2)
        if method == b"POST" and (named := _IDENTITY.search(head)):
            self._begin(named[1], msgspec.json.decode(body, type=Asked))
        else:
            self._transport.write(_PAGES.get(path, _NOT_FOUND))

    def _begin(self, identity: bytes, asked: Asked) -> None:
        self._identity, self._sent = identity, 0
        self._pace, self._at = asked.pace, self._loop.time()
        self._events: Iterator[bytes] = events(identity.decode(), asked.max_tokens, fill=asked.fill)
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            b"x-began: %f\r\n\r\n" % time.monotonic()
        )
        self._next()

    def _next(self) -> None:
        if not self._identity or self._paused:
            return
        piece = next(self._events, None)
        if piece is None:
            self._identity = b""
            self._transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE))
            return
        self._sent += len(piece)
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self._at += self._pace
        if self._pace:
            self._loop.call_at(self._at, self._next)
        else:
            self._loop.call_soon(self._next)


async def serve(ends: str) -> None:
    """Until standard input ends."""
    file = os.open(ends, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(file), "127.0.0.1", 0, backlog=_BACKLOG)
    sys.stdout.write(f"port {server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
