"""A client's connection: plain requests, and between them aiohttp's.

A request is looked at when its first bytes arrive. If its head is there and plain, it is served here, and aiohttp never
hears of it. Else aiohttp gets these bytes and, since only its parser knows where what it was given ends, all that
follow on this connection; but for a GET without a body that came alone, after which the next may be plain again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog
from aiohttp import web

from config.schema import Limits
from gateway.front.aiohttp_side import AiohttpSide
from gateway.front.head import Head, cut, digits_at, plain
from gateway.front.plain import LINES, Plain
from gateway.front.request import Request
from gateway.surface import Endpoint
from gateway.wire.shape import MOST_DIGITS, Around

_log = structlog.get_logger("gateway.connection")
_HEAD_END = b"\r\n\r\n"
_BEHIND_BYTES = 64 * 1024  # of further requests, while one is under way; then the client is not read
_LINGER_S = 10.0  # for the rest of a body that nobody waits for, as aiohttp does


class Service(NamedTuple):
    """Who serves the plain requests of a listener, and whether its clients are to connect elsewhere after them.

    `exchange` returns what to answer; None where it has been answered.
    """

    exchange: Callable[[Request], Awaitable[web.StreamResponse | None]]
    leaving: Callable[[], bool]


class _Known(NamedTuple):
    """A request's line and head that came twice, and what came of them."""

    around: Around
    endpoint: Endpoint
    head: Head


class Connection(AiohttpSide):
    """One connection; without a `service` aiohttp serves it alone.

    Relies, beside what `AiohttpSide` does, on `_close` and `_force_close`: no further request is to be served; on
    how the keep-alive timer is armed; and on the helpers that pause and resume reading.
    """

    def __init__(
        self,
        manager: web.Server,
        *,
        limits: Limits,
        refused: Callable[[str], None],
        loop: asyncio.AbstractEventLoop,
        service: Service | None = None,
    ) -> None:
        super().__init__(manager, limits=limits, refused=refused, loop=loop)
        self._service = service
        self._boundary = service is not None  # aiohttp's parser is between two requests, for certain
        self._plain: Plain | None = None  # under way; or answered, while the rest of its body is waited for
        self._task: asyncio.Task[None] | None = None  # that serves it
        self._last = b""  # head, without the length, and what came of it
        self._last_head: Head | None = None
        self._known: _Known | None = None
        self._behind = bytearray()  # what came behind it
        self._held_up = False  # the client is not read for that

    def data_received(self, data: bytes) -> None:
        """Serve what is plain; hand aiohttp the rest."""
        if self._plain is not None:
            self._during(self._plain, data)
            return
        if self._boundary and data:
            self._boundary = False  # unless it shows that aiohttp's parser will be at one after these
            if self._idle and self._takes(data):
                return
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End what is under way."""
        if self._task is not None:
            self._task.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not keep up."""
        super().pause_writing()
        if self._plain is not None:
            self._plain.pause()

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        if self._plain is not None:
            self._plain.resume()

    def leave(self) -> None:
        """Take no further request: close now, or, called again, after the one under way."""
        if self._task is not None:
            self.close()
        elif self._plain is not None:
            self.force_close()  # nobody waits for the rest of its body
        else:
            super().leave()

    def cut_off(self) -> None:
        """End the request under way; without one, what the client has not read yet is lost."""
        if self._task is not None:
            self._task.cancel()
        else:
            super().cut_off()

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109 - aiohttp's
        """End, and wait for what is under way, for so long at most."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=timeout)
        await super().shutdown(timeout)

    # Plain requests.

    def _takes(self, data: bytes) -> bool:
        """Begin to serve what has come, if it is plain. If not, tell whether aiohttp's parser stays at a boundary."""
        if self._close or self._force_close:
            return False
        known = self._known
        if known is not None and (found := known.around.cut(data)) is not None:
            return self._begin(known.endpoint, known.head, data, found[1], int(found[0]))
        at, end = data.find(b"\r\n"), data.find(_HEAD_END)
        if end < 0:
            return False
        begin = end + len(_HEAD_END)
        endpoint = LINES.get(data[:at])
        if endpoint is None and not (data.startswith(b"GET /") and begin == len(data)):
            return False
        last = self._last_head
        head, length = self._head(data[at:end], at)
        if head is None or endpoint is None or length is None:
            self._boundary = head is not None and endpoint is None and length is None
            return False
        if head is last and end - at + MOST_DIGITS <= self._limits.max_header:
            first, behind = digits_at(data[:end])
            self._known = _Known(Around(data[:first], data[behind:begin]), endpoint, head)
        return self._begin(endpoint, head, data, begin, length)

    def _head(self, block: bytes, line_bytes: int) -> tuple[Head | None, int | None]:
        """The head if it is plain, and so short that no limit is exceeded; the length of the body."""
        limits = self._limits
        if line_bytes > limits.max_request_line or len(block) > limits.max_header:
            return None, None
        rest, length = cut(block)
        if rest != self._last:
            self._last, self._last_head = rest, plain(rest)
        head = self._last_head
        return None if head is None or len(head.headers) >= limits.max_headers else head, length

    def _begin(self, endpoint: Endpoint, head: Head, data: bytes, begin: int, length: int) -> bool:
        service, transport = self._service, self.transport
        if length > self._limits.max_body or service is None or transport is None:
            return False
        self._boundary = True
        if self._deadline is not None:
            self._stop()
        end = begin + length
        request = Plain(head, length, data[begin:end], endpoint, transport, self._loop, service.leaving)
        request.paused = self._paused
        self._plain = request
        self._task = self._loop.create_task(self._serve(request, service))
        if len(data) > end:
            self._keep(data[end:])
        return True

    async def _serve(self, request: Plain, service: Service) -> None:
        try:
            answer = await service.exchange(request)
            if answer is not None:
                await request.answer(answer)
        except asyncio.CancelledError:
            self.force_close()
            raise
        except Exception:  # noqa: BLE001 - what is not the routes' to see, such as a pod's head that cannot be passed on
            _log.exception("unexpected error", request_id=request.id)
            self.force_close()
        finally:
            self._task = None
            self._over(request)

    def _during(self, request: Plain, data: bytes) -> None:
        """Something came while a plain request is under way."""
        if request.missing:
            data = request.feed(data)
        if data:
            self._keep(data)
        if self._task is None and not request.missing:
            self._next()

    def _keep(self, data: bytes) -> None:
        self._behind += data
        if len(self._behind) > _BEHIND_BYTES:
            self._held_up = True
            self._pause_transport_reading()

    def _over(self, request: Plain) -> None:
        """A request has been answered, or will not be."""
        if self._close or self._force_close or not request.whole or request.closing:
            self._plain = None
            self._stop()
            self.force_close()
        elif request.missing:
            self._deadline = self._loop.call_later(_LINGER_S, self.force_close)
        else:
            self._next()

    def _next(self) -> None:
        """Between two requests."""
        self._plain = None
        if self._deadline is not None:
            self._stop()
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(self._next_keepalive_close_time, self._process_keepalive)
        if self._behind:
            behind = bytes(self._behind)
            self._behind.clear()
            if self._held_up:
                self._held_up = False
                self._resume_transport_reading()
            self.data_received(behind)

    def _process_keepalive(self) -> None:
        """Aiohttp's timer rings; it is armed again after a plain request."""
        if self._plain is None:
            super()._process_keepalive()
        else:
            self._keepalive_handle = None
