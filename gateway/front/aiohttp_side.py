"""aiohttp's side of a connection: how long and how large a head may be, and what is said of one that is malformed.

aiohttp waits an hour for headers that never end, and answers what it cannot parse with text of its own and a traceback
in the log, in which the client's headers stand. Here headers have a deadline, from the connection or from their first
byte on, and what cannot be parsed is answered in OpenAI's shape, counted, and not repeated anywhere.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from config.schema import Limits
from gateway.answers import error_answer
from gateway.errors import GatewayError, HeadTimeout, HeadTooLarge, RequestError
from gateway.front.request import reset
from gateway.openai import error_body

_log = structlog.get_logger("gateway.connection")
_TOO_MANY = "Too many headers"  # how aiohttp words it; there is no type for it


class AiohttpSide(RequestHandler):
    """One connection, as far as aiohttp serves it.

    Relies on `_waiter`: set while it waits for the next request, if for the first not from the beginning on; on
    `_request_count`: requests whose headers were complete; on `_current_request`: one is under way; and on
    `_task_handler`, which ends with the connection.
    """

    def __init__(
        self, manager: web.Server, *, limits: Limits, refused: Callable[[str], None], loop: asyncio.AbstractEventLoop
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

    @property
    def _idle(self) -> bool:
        """Whether no request is under way."""
        return self._request_count == 0 or (self._waiter is not None and not self._waiter.done())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a first request."""
        super().connection_made(transport)
        self._deadline = self._loop.call_later(self._limits.header_timeout, self._expired)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the deadline."""
        self._stop()
        super().connection_lost(exc)

    def leave(self) -> None:
        """Take no further request: close now, or, called again, after the one under way."""
        idle = self._waiter is not None and not self._waiter.done()
        self.close()
        if idle:
            self.force_close()

    def cut_off(self) -> None:
        """End the request under way; without one, what the client has not read yet is lost."""
        if self._current_request is not None and self._task_handler is not None:
            self._task_handler.cancel()
        else:
            reset(self.transport)

    def data_received(self, data: bytes) -> None:
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
