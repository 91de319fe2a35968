# ruff: noqa: D102 - what a request has is described once, in `Request`
"""A request that came through aiohttp, and is answered through it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from aiohttp import hdrs, web
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.front.head import HOP_BY_HOP, NOT_TO_POD, OURS, UNPACKED_NOT_TO_POD, passed_on
from gateway.front.request import PARTING_WORD_S, ClientLeftError, Content, Relay, Request, reset
from gateway.surface import endpoint_of
from gateway.wire import Answer

_USUAL_CONNECTION = ("keep-alive", "Keep-Alive", "close")


class _Forwarded(web.StreamResponse):
    """Its head goes out together with the first piece of its body, which is there: a system call less."""

    _send_headers_immediately = False


class Unusual(Request):
    """One that came through aiohttp. `answer` is what it was answered with, once that has begun."""

    __slots__ = ("_request", "answer")

    def __init__(self, request: web.Request) -> None:
        resource = request.match_info.route.resource
        canonical = "" if resource is None else resource.canonical
        super().__init__(request.method, request.path, request.path_qs, endpoint_of(request.path, canonical), canonical)
        self.answer: web.StreamResponse | None = None
        self._request = request

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        return self._request.headers

    def passed_on(self, *, unpacked: bool) -> list[tuple[bytes, bytes]]:
        request = self._request
        dropped = UNPACKED_NOT_TO_POD if unpacked else NOT_TO_POD
        if (named := request.headers.get(hdrs.CONNECTION)) is not None and named not in _USUAL_CONNECTION:
            lines = request.headers.getall(hdrs.CONNECTION)
            dropped |= {name.strip().lower().encode("utf-8", "surrogateescape") for name in ",".join(lines).split(",")}
        return passed_on(((name.lower(), (name, value)) for name, value in request.raw_headers), dropped)

    @property
    def coding(self) -> str:
        return ",".join(self._request.headers.getall(hdrs.CONTENT_ENCODING, ())).strip().lower()

    @property
    def given_id(self) -> str:
        return self._request.headers.get("x-request-id", "")

    @property
    def traceparent(self) -> bytes:
        return self._request.headers.get("traceparent", "").encode("utf-8", "surrogateescape")

    @property
    def response_id(self) -> str | None:
        return self._request.match_info.get("id")

    @property
    def content_type(self) -> str:
        return self._request.content_type

    @property
    def content_length(self) -> int | None:
        return self._request.content_length

    @property
    def body_exists(self) -> bool:
        return self._request.body_exists

    @property
    def content(self) -> Content:
        return self._request.content

    def here(self) -> bytes | None:
        content = self._request.content
        return content.read_nowait() if content.is_eof() and content.exception() is None else None

    @property
    def remote(self) -> str | None:
        return self._request.remote

    @property
    def sent(self) -> int:
        return self._request.writer.output_size

    async def relay(self, relay: Relay) -> None:
        answer, chunk, deadline, idle = relay.answer, relay.chunk, relay.deadline, relay.idle
        read, tail = answer.read, relay.keep
        out = self.answer = _Forwarded(status=answer.status, headers=_to_client(answer, relay.headers))
        by_client = True  # that it takes long; a pod that fails says so with other exceptions than a client does
        try:
            writer = await out.prepare(self._request)
            assert writer is not None, "it is prepared for the first time"  # noqa: S101 - for mypy
            write = writer.write
            while chunk:
                tail(chunk)
                deadline.move(idle)
                await write(chunk)
                by_client = False
                chunk = await read()
                by_client = True
            await out.write_eof()
        except ConnectionError as error:
            raise ClientLeftError from error
        except asyncio.CancelledError:
            if by_client and deadline.expired:
                raise ClientLeftError from None
            raise

    async def break_off(self, event: bytes) -> None:
        out = self.answer
        if out is not None and out.prepared and _can_be_told(out):
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(PARTING_WORD_S):
                    await out.write(event)
        if self._request.transport is not None:
            self._request.transport.close()

    def reset(self) -> None:
        reset(self._request.transport)


def _can_be_told(out: web.StreamResponse) -> bool:
    whole = hdrs.CONTENT_ENCODING in out.headers or hdrs.CONTENT_LENGTH in out.headers
    return not whole and out.content_type == "text/event-stream"


def _to_client(answer: Answer, ours: Mapping[str, str]) -> CIMultiDict[str]:
    sent = CIMultiDict(
        (name.decode("latin-1"), value.strip(b" \t").decode("utf-8", "surrogateescape"))
        for name, value in answer.headers
        if (known := name.lower()) not in HOP_BY_HOP and not known.startswith(OURS)
    )
    sent.update(ours)
    return sent


ASKED = web.RequestKey("asked", Unusual)
