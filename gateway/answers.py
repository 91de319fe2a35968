"""Errors as answers, in the shape that the clients of a path parse and with the headers that they act on."""

from __future__ import annotations

import msgspec
from aiohttp import hdrs, web

from gateway import openai
from gateway.errors import GatewayError
from gateway.surface import Errors

_RETRY_AFTER_S = "1"
_HEADERS: dict[int, dict[str, str]] = {
    401: {hdrs.WWW_AUTHENTICATE: "Bearer"},
    429: {hdrs.RETRY_AFTER: _RETRY_AFTER_S},
    503: {hdrs.RETRY_AFTER: _RETRY_AFTER_S},
}
# Anthropic's names; any other 4xx is an invalid request to it, any other 5xx an API error.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_answer(error: GatewayError, *, status: int, errors: Errors = "openai") -> web.Response:
    """`{"error": {"message", "type", "param", "code"}}`, or Anthropic's `{"type": "error", "error": {…}}`."""
    return web.Response(
        status=status,
        body=_body(error, status, errors),
        content_type="application/json",
        headers={**_HEADERS.get(status, {}), **error.headers},
    )


def error_event(error: GatewayError, errors: Errors) -> bytes:
    """The last event of a stream that breaks."""
    if errors == "anthropic":
        return b"event: error\ndata: " + _body(error, error.status, "anthropic") + b"\n\n"
    return b"data: " + openai.error_body(error) + b"\n\n"


def _body(error: GatewayError, status: int, errors: Errors) -> bytes:
    if errors == "openai":
        return openai.error_body(error)
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})
