"""A client's connection: between requests, and while a plain one is under way on it.

aiohttp waits an hour for headers that never end, and answers what it cannot parse with text of its own and a traceback
in the log, in which the client's headers stand. Here headers have a deadline, from the connection or from their first
byte on, and what cannot be parsed is answered in OpenAI's shape, counted, and not repeated anywhere.

A request is looked at when its first bytes arrive. If its head is there and plain, it is served here, and aiohttp never
hears of it. Else aiohttp gets these bytes and, since only its parser knows where what it was given ends, all that
follow on this connection; but for a GET without a body that came alone, after which the next may be plain again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, NamedTuple, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from config.schema import Limits
from gateway.answers import error_answer
from gateway.errors import GatewayError, HeadTimeout, HeadTooLarge, RequestError
from gateway.front.head import Head, plain
from gateway.front.plain import LINES, Plain
from gateway.front.request import Request, reset
from gateway.openai import error_body
from gateway.surface import Endpoint

_log = structlog.get_logger("gateway.connection")
_TOO_MANY = "Too many headers"  # how aiohttp words it; there is no type for it
_HEAD_END = b"\r\n\r\n"
_BEHIND_BYTES = 64 * 1024  # of further requests, while one is under way; then the client is not read
_LINGER_S = 10.0  # for the rest of a body that nobody waits for, as aiohttp does


class Service(NamedTuple):
    """Who serves the plain requests of a listener, and whether its clients are to connect elsewhere after them.

    `exchange` returns what to answer; None where it has been answered.
    """

    exchange: Callable[[Request], Awaitable[web.Response | None]]
    leaving: Callable[[], bool]


class Connection(RequestHandler):
    """aiohttp's side of one connection, and before it that of plain requests, where there is a `service` for them.

    Relies on `_waiter`: set while aiohttp waits for the next request, if for the first not from the beginning on; on
    `_request_count`: requests whose headers were complete; on `_current_request`: one is under way; on
    `_task_handler`, which ends with the connection; on `_close` and `_force_close`, no further request is to be
    served; and on how the keep-alive timer is armed.
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
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=limits.keep_alive,
            access_log=None,  # type: ignore[arg-type]
            max_line_size=limits.max_request_line,
            max_field_size=limits.max_header,
            max_headers=limits.max_headers,
            auto_decompress=False,
        )
        self._limits = limits
        self._refused = refused
        self._deadline: asyncio.TimerHandle | None = None
        self._head_begun = False
        self._service = service
        self._boundary = service is not None  # aiohttp's parser is between two requests, for certain
        self._plain: Plain | None = None  # under way; or answered, while the rest of its body is waited for
        self._task: asyncio.Task[None] | None = None  # that serves it
        self._behind: list[bytes] = []  # what came behind it
        self._held_up = False  # the client is not read for that

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a first request."""
        super().connection_made(transport)
        self._deadline = self._loop.call_later(self._limits.header_timeout, self._expired)

    def data_received(self, data: bytes) -> None:
        """Serve what is plain; hand aiohttp the rest."""
        if self._plain is not None:
            self._during(self._plain, data)
        elif not (self._boundary and data and self._idle and self._takes(data)):
            self._to_aiohttp(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the deadline; end what is under way."""
        self._stop()
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
        idle = self._plain is None and self._waiter is not None and not self._waiter.done()
        self.close()
        if idle:
            self.force_close()

    def cut_off(self) -> None:
        """End the request under way; without one, what the client has not read yet is lost."""
        if self._task is not None:
            self._task.cancel()
        elif self._current_request is not None and self._task_handler is not None:
            self._task_handler.cancel()
        else:
            reset(self.transport)

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109 - aiohttp's
        """End, and wait for what is under way, for so long at most."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=timeout)
        await super().shutdown(timeout)

    # Plain requests.

    @property
    def _idle(self) -> bool:
        """Whether aiohttp has nothing to do."""
        return self._request_count == 0 or (self._waiter is not None and not self._waiter.done())

    def _takes(self, data: bytes) -> bool:
        """Begin to serve what has come, if it is plain. If not, tell whether aiohttp's parser stays at a boundary."""
        at, end = data.find(b"\r\n"), data.find(_HEAD_END)
        self._boundary = False
        if end < 0 or self._close or self._force_close:
            return False
        begin = end + len(_HEAD_END)
        endpoint = LINES.get(data[:at])
        if endpoint is None and not (data.startswith(b"GET /") and begin == len(data)):
            return False
        head = self._head(data, at, end)
        if head is None:
            return False
        if endpoint is None or head.length is None or head.length > self._limits.max_body:
            self._boundary = endpoint is None and head.length is None
            return False
        self._boundary = True
        self._begin(endpoint, head, data, begin)
        return True

    def _head(self, data: bytes, at: int, end: int) -> Head | None:
        """The head if it is plain, and so short that no limit is exceeded."""
        limits = self._limits
        if at > limits.max_request_line or end - at > limits.max_header:
            return None
        head = plain(data[at:end])
        return None if head is None or len(head.headers) > limits.max_headers else head

    def _begin(self, endpoint: Endpoint, head: Head, data: bytes, begin: int) -> None:
        self._stop()
        end = begin + (head.length or 0)
        service = cast("Service", self._service)
        transport = cast("asyncio.Transport", self.transport)
        request = Plain(head, data[begin:end], endpoint, transport, self._loop, service.leaving)
        request.paused = self._paused
        self._plain = request
        self._task = self._loop.create_task(self._serve(request, service))
        if len(data) > end:
            self._keep(data[end:])

    async def _serve(self, request: Plain, service: Service) -> None:
        try:
            answer = await service.exchange(request)
            if answer is not None:
                await request.answer(answer)
        except asyncio.CancelledError:
            self.force_close()
            raise
        except Exception:
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
        self._behind.append(data)
        if sum(map(len, self._behind)) > _BEHIND_BYTES and self.transport is not None:
            self._held_up = True
            self.transport.pause_reading()

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
        self._stop()
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(self._next_keepalive_close_time, self._process_keepalive)
        if self._behind:
            behind, self._behind = b"".join(self._behind), []
            if self._held_up and self.transport is not None:
                self._held_up = False
                self.transport.resume_reading()
            self.data_received(behind)

    def _process_keepalive(self) -> None:
        """Aiohttp's timer rings; it is armed again after a plain request."""
        if self._plain is None:
            super()._process_keepalive()
        else:
            self._keepalive_handle = None

    # Everything else.

    def _to_aiohttp(self, data: bytes) -> None:
        """Parse; what comes while no request is under way, and completes none, is a part of headers."""
        begun, known = self._idle, self._request_count
        super().data_received(data)
        if self._request_count > known:
            self._head_begun = False
            self._stop()
        elif begun:
            self._head_begun = True
            if self._deadline is None:
                self._deadline = self._loop.call_later(self._limits.header_timeout, self._expired)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        self._deadline = None
        if self.transport is None:
            return
        self._refused("header_timeout")
        if self._head_begun:
            body = error_body(HeadTimeout("The headers did not arrive in time.", code="header_timeout"))
            self.transport.write(
                b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
        self.force_close()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """Answer what no route has seen. Whatever comes in here, the connection is closed after it."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        error = self._unparsed(exc) if status == HTTPStatus.BAD_REQUEST else None
        if error is None:
            _log.exception("unexpected error", exc_info=exc)
            error = GatewayError("The gateway failed unexpectedly.", code="internal_error")
        answer = error_answer(error, status=error.status)
        answer.headers["x-request-id"] = uuid.uuid4().hex
        answer.force_close()
        return answer

    def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> Coroutine[Any, Any, tuple[web.StreamResponse, bool]]:
        """Answer; an expectation that cannot be met is refused by aiohttp before any route has seen the request."""
        if isinstance(resp, web.HTTPExpectationFailed):
            self._refused("bad_head")
            error = RequestError("Of expectations only 100-continue can be met.", code="invalid_http")
            resp = error_answer(error, status=resp.status)
            resp.headers["x-request-id"] = uuid.uuid4().hex
        return super().finish_response(request, resp, start_time)

    def _unparsed(self, exc: BaseException | None) -> GatewayError:
        too_many = isinstance(exc, HttpProcessingError) and exc.message.startswith(_TOO_MANY)
        if too_many or isinstance(exc, LineTooLong):
            self._refused("header_too_large")
            return HeadTooLarge("The request line or the headers are too large.", code="header_too_large")
        self._refused("bad_head")
        return RequestError("This is no valid HTTP/1.1 request.", code="invalid_http")
