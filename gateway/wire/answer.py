"""An answer that is arriving: its head, and the pieces of its body as the peer sent them.

An answer that has arrived whole is independent of the connection it came on, which may already carry the next request
while this one is being read. One that has not holds its connection: leaving it ends the connection, and that is how
the peer learns that nobody waits for the rest.

Pieces that wait for their reader are bounded: beyond the high-water mark the connection is not read until half of
them are gone, so a peer that sends faster than the reader reads is held up by TCP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, Self

from gateway.wire.shape import Shape

_PIECE_BYTES = 64  # what Python adds to a piece, lest a flood of small ones pass as little


class Source(Protocol):
    """The connection an answer comes from."""

    loop: asyncio.AbstractEventLoop

    def pause(self) -> None:
        """Read no more for now."""

    def resume(self) -> None:
        """Read on."""

    def abort(self) -> None:
        """End the connection now."""


class Answer:
    """Status, headers, and a body for one reader. A context manager: leaving it is `release`.

    Of one whose head was plain its `shape` is known, and the `digits` of its length, as they came.
    """

    __slots__ = (
        "_ending",
        "_fault",
        "_held",
        "_high",
        "_paused",
        "_pieces",
        "_source",
        "_waiter",
        "complete",
        "digits",
        "headers",
        "reason",
        "shape",
        "sink",
        "status",
    )

    def __init__(self, source: Source, high_water: int) -> None:
        self.status = 0  # until the head has arrived
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []  # in the order, spelling and white space of the peer
        self.complete = False  # the last byte has arrived; pieces may still wait to be read
        self.shape: Shape | None = None
        self.digits = b""
        self._source = source
        self._high = high_water
        self._pieces: deque[bytes] = deque()
        self._held = 0
        self._paused = False
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.sink: Callable[[bytes], None] | None = None  # where pieces go instead of being read
        self._ending: Callable[[], None] | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first value under a name, given in lower case, without the white space around it."""
        for known, value in self.headers:
            if len(known) == len(name) and known.lower() == name:
                return value.strip(b" \t")
        return None

    @property
    def buffered(self) -> int:
        """Bytes of the body that are here. O(pieces)."""
        return sum(map(len, self._pieces))

    def take(self) -> bytes:
        """All of the body that is here, without waiting: the whole of it where the answer is `complete` and unread."""
        pieces, body = self._pieces, b""
        if not pieces:  # and none was to be waited for either: whoever takes the last one lets reading go on
            return body
        if len(pieces) == 1:
            body = pieces.popleft()
        else:
            body = b"".join(pieces)
            pieces.clear()
        self._held = 0
        self.go_on()
        return body

    def here(self) -> bytes:
        """The next piece, b"" where it has to be waited for, if there is one at all."""
        pieces = self._pieces
        if not pieces:
            return b""
        piece = pieces.popleft()
        self._held -= len(piece) + _PIECE_BYTES
        if self._paused and self._held <= self._high // 2:
            self._resume()
        return piece

    async def read(self) -> bytes:
        """The next piece, b"" at the end of a complete answer.

        Raises Disconnected or ProtocolError where the answer breaks off, after the pieces that came before. May be
        cancelled and called again; nothing is lost.
        """
        while not self._pieces:
            if self.complete:
                return b""
            await self.news()
        return self.here()

    def divert(self, sink: Callable[[bytes], None], ending: Callable[[], None]) -> None:
        """From now on hand each piece to `sink` as it arrives, those that are here at once, and tell a good end.

        There is nothing to `read` any more. Whoever cannot take more for now says so with `hold`.
        """
        if self._pieces:
            sink(self.take())
        if self.complete:
            ending()
        else:
            self.sink, self._ending = sink, ending

    def hold(self) -> None:
        """Read no more of the peer, until `go_on`. Idempotent."""
        if not self._paused and not self.complete and self._fault is None:
            self._paused = True
            self._source.pause()

    def go_on(self) -> None:
        """Read on. Idempotent."""
        if self._paused:
            self._resume()

    async def ended(self) -> None:
        """Return when all has arrived. Raises what `read` does."""
        while not self.complete:
            await self.news()

    def release(self) -> None:
        """Have done with the answer. One that is not complete takes its connection with it. Idempotent."""
        if not self.complete and self._fault is None:
            self._source.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    # What follows is the connection's side.

    def news(self) -> asyncio.Future[None]:
        """Until there is something to look at, the head first of all. Raises Disconnected, ProtocolError."""
        if self._fault is not None:
            # Another one each time: kept here with the frames it was raised in, it would be garbage for the collector.
            raise type(self._fault)(*self._fault.args) from self._fault.__cause__
        waiter = self._waiter = self._source.loop.create_future()
        return waiter

    def began(self, shape: Shape, digits: bytes, body: bytes, *, whole: bool) -> None:
        """A plain head has arrived, with the `whole` body or its beginning, of which nobody has had anything yet."""
        self.shape, self.digits = shape, digits
        self.status, self.reason = shape.status, shape.reason
        self.headers = shape.headers(digits)
        self.complete = whole
        if not whole and body:
            self.feed(body)
        elif body:
            self._pieces.append(body)
            self._held = len(body) + _PIECE_BYTES
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def feed(self, piece: bytes) -> None:
        """A piece has arrived, for who reads; what is diverted goes to the sink itself."""
        self._pieces.append(piece)
        self._held += len(piece) + _PIECE_BYTES
        if self._held > self._high and not self._paused:
            self._paused = True
            self._source.pause()

    def fail(self, fault: Exception) -> None:
        """Nothing more will arrive."""
        self._fault = fault
        self._paused = False
        self.sink = self._ending = None
        self.wake()

    def finish(self) -> None:
        """All has arrived. The connection is no longer this answer's to hold up."""
        self.complete = True
        if self._paused:
            self._resume()
        if self._ending is not None:
            self._ending()
            self.sink = self._ending = None
        self.wake()

    def wake(self) -> None:
        """Let the reader look. One who has pieces handed over looks for the end only."""
        waiter = self._waiter
        if self.sink is None and waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _resume(self) -> None:
        self._paused = False
        self._source.resume()
