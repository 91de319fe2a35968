"""Connections kept for the next request, per origin.

The connection that was used last is used next, so under falling load the rest grow old and are closed. One that the
peer closes while it waits is dropped at once; the race that remains, where the peer closes just as a request goes out,
shows as an end before the first byte of an answer, and such a request is sent again over a fresh connection. A body
that can be read only once is not sent over a connection that may be stale in the first place.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterable, Callable, Sequence
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.wire.answer import Answer
from gateway.wire.connection import Bounds, Connection
from gateway.wire.errors import ConnectError, ConnectTimeout, Disconnected
from gateway.wire.head import request_head


class Origin(NamedTuple):
    """Where a peer is. Connections are shared between requests to equal origins, so never across TLS contexts."""

    host: str
    port: int
    authority: bytes  # as Host
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, url: str, tls: ssl.SSLContext | None = None) -> Origin:
        """The origin of `http://HOST[:PORT]` or `https://…`; the latter needs `tls`. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an HTTP URL: {url!r}")
        if (parts.scheme == "https") is (tls is None):
            raise ValueError(f"{url!r}: an SSL context goes with https, and only with it")
        authority = parts.netloc.rpartition("@")[2].encode("ascii")
        return cls(parts.hostname, parts.port or (443 if tls else 80), authority, tls)


class Pool:
    """All connections of a process to its peers. Used from one event loop; closed when that ends."""

    def __init__(
        self,
        *,
        connect_timeout: float,
        keepalive: float = 3.0,
        bounds: Bounds = Bounds(),  # noqa: B008 - immutable
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keepalive`: seconds a connection waits for its next request; below what the peers close theirs after."""
        self.resent = 0  # requests that met a connection its peer had just closed
        self._connect_timeout = connect_timeout
        self._keepalive = keepalive
        self._bounds = bounds
        self._clock = clock
        # As stacks: in the order in which they were put back, with the time of it.
        self._idle: dict[Origin, dict[Connection, float]] = {}
        self._open: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed: asyncio.Future[None] | None = None

    def reconfigure(self, *, connect_timeout: float) -> None:
        """Connections from now on have this deadline."""
        self._connect_timeout = connect_timeout

    @property
    def open(self) -> int:
        """Connections there are, idle ones included."""
        return len(self._open)

    @property
    def idle(self) -> int:
        """Connections that wait for a request. O(origins)."""
        return sum(map(len, self._idle.values()))

    async def request(
        self,
        origin: Origin,
        method: bytes,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes | AsyncIterable[bytes] = b"",
        *,
        length: int | None = None,
    ) -> Answer:
        """Send a request; return its answer when the head of it has arrived. Leave the answer when done with it.

        `headers` without Host and without framing. `length`: of a body that comes in pieces, in bytes; None sends it
        chunked. Where the answer comes before the end of such a body, the rest is not asked for.

        Raises ConnectError, ConnectTimeout, Disconnected, ProtocolError; ValueError for what `request_head` refuses or
        a body that is not `length` bytes; what `body` raises. Cancelling it ends its connection.
        """
        size = len(body) if isinstance(body, bytes) else length
        head = request_head(method, target, origin.authority, headers, size)
        to_head = method == b"HEAD"
        if isinstance(body, bytes) and (connection := self._take(origin)) is not None:
            # As `exchange` does, but for a coroutine less on the way of nearly all requests.
            answer = connection.send(head, body, to_head=to_head)
            try:
                while not answer.status:
                    await answer.news()
            except BaseException as error:
                answer.release()
                if not isinstance(error, Disconnected) or connection.heard:
                    raise
            else:
                return answer
            self.resent += 1
        connection = await self._connect(origin)
        return await connection.exchange(head, body, length=length, to_head=to_head)

    async def close(self) -> None:
        """End all connections and what goes on over them; return when they are closed."""
        self._closed = asyncio.get_running_loop().create_future()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in tuple(self._open):
            connection.abort()
        if self._open:
            await self._closed

    def _take(self, origin: Origin) -> Connection | None:
        stack = self._idle.get(origin)
        while stack:
            connection, since = stack.popitem()
            if connection.usable:
                if self._clock() - since < self._keepalive:
                    return connection
                connection.abort()
        return None

    async def _connect(self, origin: Origin) -> Connection:
        if self._closed is not None:
            raise ConnectError("the pool is closed")
        make = partial(Connection, self._bounds, partial(self._park, origin), partial(self._forget, origin))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await loop.create_connection(make, origin.host, origin.port, ssl=origin.tls)
        except TimeoutError as error:
            raise ConnectTimeout("no connection within the deadline") from error
        except (OSError, UnicodeError) as error:  # the latter: a host name that cannot be one
            raise ConnectError(getattr(error, "strerror", None) or str(error)) from error
        if not connection.usable:  # it may be gone already, and nobody would be told again
            raise Disconnected("the peer closed before its answer")
        self._open.add(connection)
        return connection

    def _park(self, origin: Origin, connection: Connection) -> None:
        stack = self._idle.get(origin)
        if stack is None:
            stack = self._idle[origin] = {}
        stack[connection] = self._clock()
        if self._sweeper is None:
            self._sweeper = connection.loop.call_later(self._keepalive, self._sweep)

    def _forget(self, origin: Origin, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.get(origin, {}).pop(connection, None)
        if self._closed is not None and not self._open and not self._closed.done():
            self._closed.set_result(None)

    def _sweep(self) -> None:
        """Close what has waited too long, and come back when the next has. O(closed + origins)."""
        self._sweeper = None
        now, oldest = self._clock(), None
        for origin, stack in tuple(self._idle.items()):
            while stack:
                connection, since = next(iter(stack.items()))
                if now - since < self._keepalive:
                    oldest = since if oldest is None else min(oldest, since)
                    break
                del stack[connection]
                connection.abort()
            else:
                del self._idle[origin]
        if oldest is not None:
            loop = asyncio.get_running_loop()
            self._sweeper = loop.call_later(self._keepalive - (now - oldest), self._sweep)
