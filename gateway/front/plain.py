# ruff: noqa: D102 - what a request has is described once, in `Request`
"""A plain request: its body as it comes, its answer straight from a pod's connection to the client's.

Once an answer streams, each piece goes from the one transport's callback to the other's buffer, and no task runs for
it. A client that does not keep up stops the pod's connection from being read: between the two there are at most the
client's buffer, which the transport bounds, and what was read of the pod at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import hdrs, web
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.front.answer import own, relayed
from gateway.front.head import Head
from gateway.front.request import PARTING_WORD_S, ClientLeftError, Relay, Request, reset
from gateway.surface import ENDPOINTS, Endpoint


def _can_be_plain(endpoint: Endpoint) -> bool:
    """Whether everything that routes look at before they serve it follows from its request line."""
    posted = endpoint.methods == (hdrs.METH_POST,) and endpoint.reads == "json"
    return posted and endpoint.placed != "here" and not endpoint.operators and "{" not in endpoint.path


LINES = {b"POST %b HTTP/1.1" % each.path.encode(): each for each in ENDPOINTS if _can_be_plain(each)}
"""The request lines of plain requests."""

_JOINED_BYTES = 16 * 1024  # up to here copying a piece into its frame is cheaper than more buffers
_LAST_CHUNK = b"0\r\n\r\n"


class Plain(Request):
    """Made when its head is there. `leaving`: whether its client is to connect elsewhere after it."""

    __slots__ = (
        "_chunked",
        "_drained",
        "_head",
        "_leaving",
        "_length",
        "_loop",
        "_news",
        "_pieces",
        "_relay",
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
        length: int,
        body: bytes,
        endpoint: Endpoint,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        leaving: Callable[[], bool],
    ) -> None:
        super().__init__("POST", endpoint.path, endpoint.path, endpoint, endpoint.path)
        self.missing = length - len(body)  # bytes of the body that have not come
        self.paused = False  # the client does not keep up
        self.whole = False  # the answer is, and the client has taken it
        self.closing = False  # the answer says that it is the connection's last
        self._head = head
        self._length = length
        self._pieces = [body] if body else []
        self._news: asyncio.Future[None] | None = None  # of the body
        self._drained: asyncio.Future[None] | None = None
        self._transport = transport
        self._loop = loop
        self._leaving = leaving
        self._written = 0
        self._relay: Relay | None = None  # of an answer that streams
        self._chunked = self._telling = False

    # What it says.

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        told = ((name.decode(), value.decode("utf-8", "surrogateescape")) for name, value in self._head.headers)
        return CIMultiDictProxy(CIMultiDict(told))

    def passed_on(self, *, unpacked: bool) -> list[tuple[bytes, bytes]]:  # noqa: ARG002 - it was not packed
        return self._head.passed_on

    @property
    def coding(self) -> str:
        return ""

    @property
    def given_id(self) -> str:
        return self._head.given_id

    @property
    def traceparent(self) -> bytes:
        return self._head.traceparent

    @property
    def response_id(self) -> str | None:
        return None

    @property
    def content_type(self) -> str:
        return (self.headers.get("content-type") or "application/octet-stream").partition(";")[0].strip().lower()

    @property
    def content_length(self) -> int | None:
        return self._length

    @property
    def body_exists(self) -> bool:
        return self._length > 0

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

    async def answer(self, answer: web.StreamResponse) -> None:
        """Answer with what the gateway itself says, unless something else has been said."""
        if self._written or self._transport.is_closing():
            return
        body = answer.body if isinstance(answer, web.Response) and isinstance(answer.body, bytes) else b""
        self.closing = self._leaving()
        self._write(own(answer, len(body), last=self.closing) + body)
        await self._all_out()

    async def relay(self, relay: Relay) -> None:
        answer, chunk, transport = relay.answer, relay.chunk, self._transport
        if transport.is_closing():
            raise ClientLeftError
        complete = answer.complete
        if complete and (rest := answer.take()):
            chunk += rest
        if chunk:
            relay.keep(chunk)
        self.closing = self._leaving()
        head = relayed(answer, relay.headers, last=self.closing)
        self._chunked, self._telling = head.chunked, head.telling
        begin = head.block + (self._framed(chunk, last=complete) if head.chunked else chunk)
        self._written += len(begin)
        transport.write(begin)
        if complete and not self.paused:
            self.whole = True
        else:
            await self._to_its_end(relay)

    async def _to_its_end(self, relay: Relay) -> None:
        """Until all has come and the client has taken it."""
        relay.deadline.move(relay.idle)
        self._relay = relay
        try:
            if not relay.answer.complete:
                relay.answer.divert(self._pass, self._end)
                if self.paused:
                    relay.answer.hold()
                await relay.answer.ended()
            await self._all_out()
        except asyncio.CancelledError:
            if self.paused and relay.deadline.expired:
                raise ClientLeftError from None
            raise
        finally:
            self._relay = None

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
        if self._relay is not None:
            self._relay.answer.hold()

    def resume(self) -> None:
        """It does again."""
        self.paused = False
        if self._relay is not None:
            self._relay.deadline.move(self._relay.idle)
            self._relay.answer.go_on()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def _all_out(self) -> None:
        """Return when the client has taken so much that it is no longer waited for."""
        if self.paused:
            self._drained = self._loop.create_future()
            await self._drained
        self.whole = True

    def _pass(self, piece: bytes) -> None:
        relay = self._relay
        if relay is None:  # its task is on the way out
            return
        relay.deadline.move(relay.idle)
        if len(piece) > _JOINED_BYTES or not self._chunked:
            relay.keep(piece)
            self._pass_long(piece)
            return
        # Every token of every stream comes by here: a call less is a twentieth of what Python takes for it.
        relay.tail.append(piece)
        transport = self._transport
        if not transport.is_closing():
            framed = b"%x\r\n%b\r\n" % (len(piece), piece)
            self._written += len(framed)
            transport.write(framed)

    def _pass_long(self, piece: bytes) -> None:
        if self._chunked:
            self._write(b"%x\r\n" % len(piece))
            self._write(piece)
            self._write(b"\r\n")
        else:
            self._write(piece)

    def _end(self) -> None:
        if self._chunked and self._relay is not None:
            self._write(_LAST_CHUNK)

    def _framed(self, piece: bytes, *, last: bool) -> bytes:
        if not self._chunked:
            return piece
        end = _LAST_CHUNK if last else b""
        return b"%x\r\n%b\r\n%b" % (len(piece), piece, end) if piece else end

    def _write(self, data: bytes) -> None:
        if self._transport.is_closing():  # the client has just left, and its task has not heard of it yet
            return
        self._written += len(data)
        self._transport.write(data)
