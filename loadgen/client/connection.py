# ruff: noqa: D102 - callbacks are described where they come from, asyncio and httptools
"""One HTTP/1.1 connection: a request out, its answer in, one at a time.

All that happens per piece of a stream happens in `data_received`, without a task that wakes: 5,000 streams of some
tokens a second each are 100,000 calls a second at most, which is what a core of Python can do. The clock is read before
anything else is done with what came, and it is the system's: the loop's is rounded to milliseconds.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import cast

from httptools import HttpParserError, HttpResponseParser

from loadgen.client.answer import Answer
from loadgen.client.failures import Disconnected, Failure, Unreadable

_LARGEST_HEAD_BYTES = 64 * 1024


class Connection(asyncio.Protocol):
    """Made by the loop; `parked` is called when it is fit for another request."""

    __slots__ = (
        "_answer",
        "_got",
        "_head_bytes",
        "_keep",
        "_over",
        "_parked",
        "_parser",
        "_transport",
        "_until_close",
        "_whole",
        "heard",
        "on_body",
    )
    _transport: asyncio.Transport

    def __init__(self, parked: "Callable[[Connection], None]") -> None:
        self.heard = False  # anything, since the request was sent
        self._parked = parked
        self._answer: Answer | None = None
        self._over: asyncio.Future[None] | None = None
        self._got: list[bytes] = []
        self.on_body = self._got.append  # the parser calls this for each piece: no frame of Python's
        self._parser = HttpResponseParser(self)
        self._head_bytes = 0
        self._keep = self._until_close = self._whole = False

    @property
    def usable(self) -> bool:
        """It stands, for all that is known."""
        return not self._transport.is_closing()

    async def exchange(self, head: bytes, body: bytes, answer: Answer) -> None:
        """Send a request and return when `answer` has arrived. Raises Disconnected, Unreadable.

        A caller that is cancelled loses the connection with it, which is how an endpoint learns that nobody waits.
        """
        self._answer, self._head_bytes = answer, 0
        self.heard = self._keep = self._until_close = self._whole = False
        self._over = asyncio.get_running_loop().create_future()
        try:
            self._transport.writelines((head, body))
            await self._over
        except BaseException:
            self._answer = None
            self._transport.abort()
            raise

    def close(self) -> None:
        """End it now. Idempotent."""
        self._end(Disconnected("given up on this side"))

    def _end(self, fault: Failure) -> None:
        self._answer, over = None, self._over
        if over is not None and not over.done():
            over.set_exception(fault)
        self._transport.abort()

    def _finish(self) -> None:
        self._answer = None
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
        if self._keep and not self._transport.get_write_buffer_size():
            self._parked(self)
        else:
            self._transport.abort()

    # The loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it

    def data_received(self, data: bytes) -> None:
        at = perf_counter()
        answer = self._answer
        if answer is None:  # nobody asked; it would be taken for the next request's answer
            self._transport.abort()
            return
        self.heard = True
        fault: Failure | None = None
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            fault = Unreadable(f"not HTTP/1.1: {error}")
        try:
            if got := self._got:
                answer.take(got[0] if len(got) == 1 else b"".join(got), at)
                got.clear()
            elif not answer.status:
                self._measure_head(data)
        except Failure as unreadable:
            fault = unreadable
        if self._whole:
            self._keep = self._keep and fault is None
            answer.ended = at
            self._finish()
        elif fault is not None:
            self._end(fault)

    def _measure_head(self, data: bytes) -> None:
        self._head_bytes += len(data)
        if self._head_bytes > _LARGEST_HEAD_BYTES:
            raise Unreadable(f"a head of more than {_LARGEST_HEAD_BYTES} bytes")

    def eof_received(self) -> None:
        self._closed(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed(exc)
        del self._parser  # it knows this connection: a circle, which would stand until the collector comes

    def _closed(self, error: Exception | None) -> None:
        answer = self._answer
        if answer is not None and error is None and self._until_close:
            answer.ended = perf_counter()
            self._finish()
            return
        when = "in the middle of the answer" if answer is not None and answer.status else "before the answer"
        self._end(Disconnected(f"closed {when}" if error is None else f"{error} {when}"))

    # The parser's side.

    def on_message_begin(self) -> None:
        if self._whole:
            raise Unreadable("more than one answer")  # which spoils the connection, not the first answer

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None:
            self._answer.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        answer, status = self._answer, self._parser.get_status_code()
        if answer is None:
            return
        if status < 200:  # an interim answer; the answer proper follows
            answer.headers.clear()
            return
        self._keep = self._parser.should_keep_alive()
        delimited = b"content-length" in answer.headers or b"transfer-encoding" in answer.headers
        self._until_close = not self._keep and not delimited
        answer.begin(status)

    def on_message_complete(self) -> None:
        if self._answer is not None and self._answer.status:
            self._whole = True
