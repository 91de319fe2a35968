# ruff: noqa: D102 - callbacks are described where they come from, asyncio and httptools
"""One connection to one peer: a request out, its answer in, one at a time.

httptools parses; what it cannot know is kept here. It has no notion of the method, so an answer to HEAD is ended at
its head and the parser, left waiting for a body, is replaced. It has no end of stream, so a body that neither a
length nor chunks delimit is ended here. It starts on the next answer by itself, so anything that follows a complete
answer shows as a further message or as an error, and makes the connection unfit for another request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable
from typing import NamedTuple, cast

from httptools import HttpParserError, HttpResponseParser

from gateway.wire.answer import Answer
from gateway.wire.errors import Disconnected, ProtocolError
from gateway.wire.shape import Seen, Shape

_JOINED_BYTES = 16 * 1024  # up to here copying the body behind its head is cheaper than a second buffer


class Bounds(NamedTuple):
    """Bytes: of a head (and of anything else that is not body), and of body that waits for its reader."""

    head: int = 64 * 1024
    behind: int = 256 * 1024


class Connection(asyncio.Protocol):
    """Made by the loop; `parked` is called when it is fit for another request, `gone` once when it is no more."""

    __slots__ = (
        "_answer",
        "_bounds",
        "_drained",
        "_ends",
        "_gone",
        "_got",
        "_headers",
        "_keep",
        "_missing",
        "_overhead",
        "_parked",
        "_parser",
        "_region",
        "_seen",
        "_sent",
        "_shape",
        "_to_head",
        "_transport",
        "_until_close",
        "heard",
        "loop",
        "on_body",
    )
    _transport: asyncio.Transport
    _headers: list[tuple[bytes, bytes]]

    def __init__(
        self, bounds: Bounds, parked: Callable[[Connection], None], gone: Callable[[Connection], None]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.heard = False  # a byte of the answer has arrived
        self._bounds = bounds
        self._parked = parked
        self._gone = gone
        self._answer: Answer | None = None  # None: idle, or ended
        self._got: list[bytes] = []
        self.on_body = self._got.append  # as the parser's callback: one call per piece, none of Python's
        self._parser = HttpResponseParser(self)
        self._seen = Seen()
        self._shape: Shape | None = None  # of the last answer that had one
        self._missing = 0  # bytes of the body behind a head that the parser has not seen
        self._drained: asyncio.Future[None] | None = None  # None: the peer takes what is written
        self._region: asyncio.Timeout | None = None  # of an upload that the answer may cut short

    @property
    def usable(self) -> bool:
        """The connection stands, for all that is known."""
        return not self._transport.is_closing()

    async def exchange(
        self, head: bytes, body: bytes | AsyncIterable[bytes], *, length: int | None, to_head: bool
    ) -> Answer:
        """Send a request; return its answer when the head of it has arrived. One at a time.

        `length`: of a body that comes in pieces, None to send it chunked. `to_head`: the method is HEAD. Raises
        Disconnected, ProtocolError, and what `body` raises; ValueError where it is not as long as it was said to be.
        """
        answer = self.send(head, body if isinstance(body, bytes) else b"", to_head=to_head)
        try:
            if not isinstance(body, bytes):
                await self._upload(body, length)
            while not answer.status:
                await answer.news()
        except BaseException:
            answer.release()
            raise
        return answer

    def send(self, head: bytes, body: bytes, *, to_head: bool) -> Answer:
        """Send a request; return its answer, which is still to come. Whoever stops waiting for it releases it."""
        answer = self._answer = Answer(self, self._bounds.behind)
        self._headers = answer.headers
        self._to_head = to_head
        self._sent = True
        self.heard = self._keep = self._until_close = self._ends = False
        self._overhead = 0
        if len(body) <= _JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return answer

    async def _upload(self, body: AsyncIterable[bytes], length: int | None) -> None:
        """Send a body as it comes, until the answer or the connection's end cuts in on the wait for more of it."""
        self._sent = False
        try:
            async with asyncio.timeout(None) as self._region:
                await self._send(body, length)
        except TimeoutError:
            if self._region is not None:  # the body's own
                raise
        finally:
            self._region = None

    async def _send(self, body: AsyncIterable[bytes], length: int | None) -> None:
        left = length
        async for piece in body:
            if not self.usable:
                return
            if left is not None:
                left -= len(piece)
                if left < 0:
                    raise ValueError(f"the body is longer than the {length} bytes it was said to be")
                self._transport.write(piece)
            elif piece:  # an empty chunk would be the last
                self._transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
            if self._drained is not None:
                await self._drained
        if not self.usable:
            return
        if left:
            raise ValueError(f"the body is {left} bytes short of the {length} it was said to be")
        if left is None:
            self._transport.write(b"0\r\n\r\n")
        self._sent = True

    def pause(self) -> None:
        """Read no more for now."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def abort(self) -> None:
        """End the connection now, and with it the answer that was arriving. Idempotent."""
        self._end(Disconnected("given up on this side"))

    def _end(self, fault: Exception) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.fail(fault)
            self._cut_in()
        self._transport.abort()

    def _finish(self, answer: Answer, *, clean: bool) -> None:
        self._answer = None
        answer.finish()
        self._done(clean=clean)

    def _done(self, *, clean: bool) -> None:
        """All has arrived; `clean`: and nothing else."""
        if self._region is not None:
            self._cut_in()
        if self._to_head:
            self._parser = HttpResponseParser(self)
        transport = self._transport
        if clean and self._keep and self._sent and not transport.get_write_buffer_size():
            self._parked(self)
        else:
            transport.abort()

    def _cut_in(self) -> None:
        if self._region is not None:
            region, self._region = self._region, None
            region.reschedule(self.loop.time())

    # The loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:  # what nobody asked for would be taken for the next request's answer
            self._transport.abort()
            return
        if (self._missing or not self.heard) and self._is_plain(answer, data):
            return
        self._overhead += len(data)
        fault: Exception | None = None
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            fault = error
        if got := self._got:
            self._overhead = 0
            if not self._to_head:
                (answer.sink or answer.feed)(got[0] if len(got) == 1 else b"".join(got))
            elif fault is None:
                fault = ProtocolError("a body in the answer to HEAD")
            got.clear()
        if self._ends:
            self._finish(answer, clean=fault is None)
        elif fault is not None or self._overhead > self._bounds.head:
            self._end(self._told(fault))
        elif answer.status:
            answer.wake()
            self._cut_in()

    def _is_plain(self, answer: Answer, data: bytes) -> bool:
        """Whether these are a plain head and no more than its body, or more of that, which the parser never sees."""
        if self._missing:
            self._goes_on(answer, data)
            return True
        self.heard = True
        if self._to_head:
            return False
        shape = self._shape
        found = None if shape is None else shape.cut(data)
        if shape is None or found is None:
            shape = self._seen.shape_of(data)
            found = None if shape is None else shape.cut(data)
            if shape is None or found is None or found[1] > self._bounds.head:
                return False
        digits, begin = found
        missing = int(digits) - (len(data) - begin)
        if missing < 0:  # something is behind the answer
            self._seen.missed()
            return False
        if shape is not self._shape:
            self._shape = shape
            self._seen.found()
        self._keep = True
        self._missing = missing
        answer.began(shape, digits, data[begin:], whole=not missing)
        if missing:
            self._cut_in()
        else:
            self._answer = None
            self._done(clean=True)
        return True

    def _goes_on(self, answer: Answer, data: bytes) -> None:
        """More has come of the body behind a plain head."""
        piece = data[: self._missing]
        self._missing -= len(piece)
        (answer.sink or answer.feed)(piece)
        if self._missing:
            answer.wake()
        else:
            self._finish(answer, clean=len(piece) == len(data))

    def eof_received(self) -> None:
        self._over(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over(exc)
        self._gone(self)
        del self._parser  # it knows this connection: a circle, which would stand until the collector comes

    def _over(self, error: Exception | None) -> None:
        answer = self._answer
        if answer is not None and error is None and self._until_close:
            self._finish(answer, clean=False)
            return
        when = "before its answer" if answer is None or not answer.status else "in the middle of its answer"
        self._end(Disconnected(f"the peer closed {when}" if error is None else f"{error} {when}"))

    def pause_writing(self) -> None:
        self._drained = self.loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def _told(self, fault: Exception | None) -> ProtocolError:
        if fault is None:
            return ProtocolError(f"more than {self._bounds.head} bytes that are not body")
        if isinstance(fault.__context__, ProtocolError):
            return fault.__context__
        return ProtocolError(f"not HTTP/1.1: {fault}")

    # The parser's side. What is raised here comes out of `feed_data` as the context of an error.

    def on_message_begin(self) -> None:
        if self._ends:
            raise ProtocolError("more than one answer")

    def on_status(self, reason: bytes) -> None:
        if self._answer is not None:
            self._answer.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status, headers = self._parser.get_status_code(), self._headers
        answer = cast("Answer", self._answer)
        if self._overhead > self._bounds.head and sum(len(n) + len(v) + 4 for n, v in headers) > self._bounds.head:
            raise ProtocolError(f"a head of more than {self._bounds.head} bytes")
        if status < 200:
            if status < 100 or status == 101:
                raise ProtocolError(f"status {status}")
            headers.clear()
            answer.reason = b""
            return
        codings = [value for name, value in headers if len(name) == 17 and name.lower() == b"transfer-encoding"]
        if codings and (len(codings) > 1 or codings[0].strip(b" \t").lower() != b"chunked"):
            raise ProtocolError(f"transfer coding {b', '.join(codings)!r}")
        self._keep = self._parser.should_keep_alive()
        self._until_close = not self._keep and not codings and answer.header(b"content-length") is None
        self._ends = self._to_head
        self._overhead = 0
        self._headers = []  # where trailers go, and nobody looks
        answer.status = status

    def on_message_complete(self) -> None:
        if self._answer is not None and self._answer.status:  # an interim answer has none
            self._ends = True
