"""Errors as answers, in OpenAI's shape and with the headers that clients act on."""

from __future__ import annotations

from aiohttp import hdrs, web

from gateway import openai
from gateway.errors import GatewayError

_RETRY_AFTER_S = "1"
_HEADERS = {
    401: {hdrs.WWW_AUTHENTICATE: "Bearer"},
    429: {hdrs.RETRY_AFTER: _RETRY_AFTER_S},
    503: {hdrs.RETRY_AFTER: _RETRY_AFTER_S},
}


def error_answer(error: GatewayError, *, status: int) -> web.Response:
    """`{"error": {"message", "type", "param", "code"}}`."""
    return web.Response(
        status=status,
        body=openai.error_body(error),
        content_type="application/json",
        headers=_HEADERS.get(status),
    )
