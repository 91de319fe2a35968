# ruff: noqa: D102 - what a request has is described once, in `Request`
"""A plain request: its body as it comes, its answer straight from a pod's connection to the client's.

Once an answer streams, each piece goes from the one transport's callback to the other's buffer, and no task runs for
it. A client that does not keep up stops the pod's connection from being read: between the two there are at most the
client's buffer, which the transport bounds, and what was read of the pod at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.deadline import Deadline
from gateway.front.head import Head
from gateway.front.request import HOP_BY_HOP, OURS, PARTING_WORD_S, ClientLeftError, Relayed, Request, reset
from gateway.surface import ENDPOINTS, Endpoint
from gateway.wire import Answer

LINES = {b"POST %b HTTP/1.1" % each.path.encode(): each for each in ENDPOINTS if each.reads == "json"}
"""The request lines of plain requests."""

_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}".encode() for s in HTTPStatus}
_BODILESS = frozenset({204, 304})
_JOINED_BYTES = 16 * 1024  # up to here copying a piece into its frame is cheaper than more buffers
_NOTHING: frozenset[bytes] = frozenset()
_LAST_CHUNK = b"0\r\n\r\n"


class Plain(Request):
    """Made when its head is there. `leaving`: whether its client is to connect elsewhere after it."""

    __slots__ = (
        "_answer",
        "_chunked",
        "_deadline",
        "_drained",
        "_head",
        "_idle",
        "_leaving",
        "_loop",
        "_news",
        "_pieces",
        "_tail",
        "_telling",
        "_transport",
        "_written",
        "closing",
        "missing",
        "paused",
        "whole",
    )

    def __init__(
        self,
        head: Head,
        body: bytes,
        endpoint: Endpoint,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        leaving: Callable[[], bool],
    ) -> None:
        super().__init__("POST", endpoint.path, endpoint.path, endpoint, endpoint.path)
        self.missing = (head.length or 0) - len(body)  # bytes of the body that have not come
        self.paused = False  # the client does not keep up
        self.whole = False  # the answer is, and the client has taken it
        self.closing = False  # the answer says that it is the connection's last
        self._head = head
        self._pieces = [body] if body else []
        self._news: asyncio.Future[None] | None = None  # of the body
        self._drained: asyncio.Future[None] | None = None
        self._transport = transport
        self._loop = loop
        self._leaving = leaving
        self._written = 0
        self._answer: Answer | None = None  # that streams
        self._chunked = self._telling = False
        self._deadline: Deadline
        self._idle: float
        self._tail: Callable[[bytes], None]

    # What it says.

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        return self._head.headers

    @property
    def names(self) -> Sequence[bytes]:
        return self._head.names

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        told = ((_text(name), _text(value)) for name, value in self._head.headers)
        return CIMultiDictProxy(CIMultiDict(told))

    @property
    def of_connection(self) -> frozenset[bytes]:
        return _NOTHING

    @property
    def coding(self) -> str:
        return ""

    @property
    def given_id(self) -> str:
        given = self._head.value(b"x-request-id")
        return "" if given is None else _text(given)

    @property
    def response_id(self) -> str | None:
        return None

    @property
    def content_type(self) -> str:
        return (self.headers.get("content-type") or "application/octet-stream").partition(";")[0].strip().lower()

    @property
    def content_length(self) -> int | None:
        return self._head.length

    @property
    def body_exists(self) -> bool:
        return bool(self._head.length)

    @property
    def content(self) -> Plain:
        return self

    @property
    def remote(self) -> str | None:
        address = self._transport.get_extra_info("peername")
        return str(address[0]) if address else None

    @property
    def sent(self) -> int:
        return self._written

    # Its body.

    def here(self) -> bytes | None:
        return None if self.missing else self._taken()

    async def readany(self) -> bytes:
        """The next piece of the body, b"" at its end."""
        while self.missing and not self._pieces:
            self._news = self._loop.create_future()
            await self._news
        return self._taken()

    def feed(self, data: bytes) -> bytes:
        """What has arrived. Returns what follows the body."""
        mine, behind = data[: self.missing], data[self.missing :]
        self.missing -= len(mine)
        if not self.whole:
            self._pieces.append(mine)
            if self._news is not None and not self._news.done():
                self._news.set_result(None)
        return behind

    def _taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # Its answer.

    async def answer(self, answer: web.Response) -> None:
        """Answer with what the gateway itself says, unless something else has been said."""
        if self._written or self._transport.is_closing():
            return
        body = answer.body if isinstance(answer.body, bytes) else b""
        lines = [b"%b: %b" % (name.encode(), value.encode()) for name, value in answer.headers.items()]
        lines.append(b"Content-Length: %d" % len(body))
        self._write(self._block(answer.status, lines) + body)
        await self._all_out()

    async def relay(self, relayed: Relayed) -> None:
        answer, chunk, tail = relayed.answer, relayed.chunk, relayed.tail
        if self._transport.is_closing():
            raise ClientLeftError
        complete = answer.complete
        if complete and (rest := answer.take()):
            chunk += rest
        if chunk:
            tail(chunk)
        relayed.deadline.move(relayed.idle)
        head = self._answer_head(answer, relayed)
        self._write(head + self._framed(chunk, last=complete))
        try:
            if not complete:
                self._tail, self._deadline, self._idle = tail, relayed.deadline, relayed.idle
                self._answer = answer
                answer.divert(self._pass, self._end)
                if self.paused:
                    answer.hold()
                await answer.ended()
            await self._all_out()
        except asyncio.CancelledError:
            if self.paused and relayed.deadline.expired:
                raise ClientLeftError from None
            raise
        finally:
            self._answer = None

    async def break_off(self, event: bytes) -> None:
        transport = self._transport
        if self._telling and self.paused:
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=PARTING_WORD_S)
        if self._telling and not self.paused and not transport.is_closing():
            self._write(self._framed(event, last=False))
        transport.close()

    def reset(self) -> None:
        reset(self._transport)

    def pause(self) -> None:
        """The client does not keep up."""
        self.paused = True
        if self._answer is not None:
            self._answer.hold()

    def resume(self) -> None:
        """It does again."""
        self.paused = False
        if self._answer is not None:
            self._deadline.move(self._idle)
            self._answer.go_on()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def _all_out(self) -> None:
        """Return when the client has taken so much that it is no longer waited for."""
        if self.paused:
            self._drained = self._loop.create_future()
            await self._drained
        self.whole = True

    def _pass(self, piece: bytes) -> None:
        self._tail(piece)
        self._deadline.move(self._idle)
        if not self._chunked:
            self._write(piece)
        elif len(piece) <= _JOINED_BYTES:
            self._write(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            self._write(b"%x\r\n" % len(piece))
            self._write(piece)
            self._write(b"\r\n")

    def _end(self) -> None:
        if self._chunked:
            self._write(_LAST_CHUNK)

    def _framed(self, piece: bytes, *, last: bool) -> bytes:
        if not self._chunked:
            return piece
        end = _LAST_CHUNK if last else b""
        return b"%x\r\n%b\r\n%b" % (len(piece), piece, end) if piece else end

    def _write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)

    def _answer_head(self, answer: Answer, relayed: Relayed) -> bytes:
        """A pod's head as the client's; how the body is framed, and whether something can be told in it."""
        ours = relayed.headers
        lines = [
            b"%b: %b" % (name.encode("ascii"), value.encode("utf-8", "surrogateescape")) for name, value in ours.items()
        ]
        length = typed = packed = dated = stream = False
        bodiless = answer.status in _BODILESS
        for name, value in answer.headers:
            known = name.lower()
            if known in HOP_BY_HOP or known.startswith(OURS) or known == b"x-request-id":
                continue
            value = value.strip(b" \t")
            if known == b"content-length":
                if bodiless:
                    continue
                length = True
            elif known == b"content-type":
                typed, stream = True, value.partition(b";")[0].strip().lower() == b"text/event-stream"
            elif known == b"content-encoding":
                packed = True
            elif known == b"date":
                dated = True
            lines.append(name + b": " + value)
        if not typed and not bodiless:
            lines.append(b"Content-Type: application/octet-stream")
        self._chunked = not length and not bodiless
        self._telling = self._chunked and stream and not packed
        if self._chunked:
            lines.append(b"Transfer-Encoding: chunked")
        return self._block(answer.status, lines, dated=dated)

    def _block(self, status: int, lines: list[bytes], *, dated: bool = False) -> bytes:
        if not dated:
            lines.append(_date())
        if self._leaving():
            self.closing = True
            lines.append(b"Connection: close")
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status
        block = b"\r\n".join((line, *lines, b"", b""))
        if block.count(b"\n") != len(lines) + 2 or block.count(b"\r") != len(lines) + 2:
            raise ValueError("a header of an answer has CR or LF in it")
        return block


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


class _Clock:
    """The header of now, written once a second."""

    second = 0
    line = b""


def _date() -> bytes:
    now = int(time.time())
    if now != _Clock.second:
        _Clock.second = now
        _Clock.line = b"Date: " + formatdate(now, usegmt=True).encode("ascii")
    return _Clock.line
