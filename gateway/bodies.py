"""How a request's body comes in: whole and unpacked where it is looked at, else in pieces that only pass through."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from email.message import Message

from aiohttp import web

from config.schema import Limits
from gateway.errors import (
    BodyTimeout,
    BodyTooLarge,
    GatewayError,
    PodError,
    PodTimeout,
    RequestError,
    UnsupportedEncoding,
)
from gateway.front.request import Content, Request
from gateway.surface import Reads

HEAD_BYTES = 64 * 1024  # of a form, in which its model is looked for
_SLICE_BYTES = 1024 * 1024  # unpacked at once: some 3 ms
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # zlib's code for the format


class Upload:
    """A body that is not kept: whoever sends it on iterates over its pieces, packed as they came.

    It can be iterated over again as long as nothing but its head, which is kept, has been handed out.
    """

    def __init__(self, request: Request, limits: Limits) -> None:
        self.length = request.content_length
        self.fault: GatewayError | None = None  # the client's, by which the body ended early
        self.repeatable = True
        self._content = request.content
        self._limits = limits
        self._head: list[bytes] = []
        self._taken = 0
        self._late = False

    async def head(self) -> bytes:
        """The first `HEAD_BYTES`, or all there is. Raises RequestError and its kinds."""
        while sum(map(len, self._head)) < HEAD_BYTES and (piece := await self._next()):
            self._head.append(piece)
        return b"".join(self._head)[:HEAD_BYTES]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces. Raises RequestError and its kinds, and keeps it as `fault`."""
        for piece in self._head:
            yield piece
        while piece := await self._next():
            self.repeatable = False
            yield piece

    def blamed(self, error: PodError) -> GatewayError | None:
        """The client's fault that looked like a pod's; None where it was the pod's."""
        if self.fault is None and self._late and isinstance(error, PodTimeout):
            return _too_late()
        return self.fault

    async def _next(self) -> bytes:
        self._late = True  # until it has come
        try:
            async with asyncio.timeout(self._limits.idle_timeout):
                piece = await self._content.readany()
        except TimeoutError as error:
            self.fault = _too_late()
            raise self.fault from error
        except web.RequestPayloadError as error:
            self.fault = _broken(error)
            raise self.fault from error
        self._late = False
        self._taken += len(piece)
        if self._taken > self._limits.max_body:
            self.fault = _too_large(self._limits)
            raise self.fault
        return piece


Body = bytes | Upload


def arrived(request: Request, reads: Reads, limits: Limits) -> bytes | None:
    """What `receive` returns, where that takes no wait: nearly all that is read as JSON. Raises RequestError."""
    if reads != "json" or request.coding:
        return None
    body = request.here()
    if body is not None and len(body) > limits.max_body:
        raise _too_large(limits)
    return body


async def receive(request: Request, reads: Reads, limits: Limits) -> Body:
    """The body as its endpoint reads it. Raises RequestError and its kinds."""
    if not request.body_exists:
        return b""
    if reads == "json" or is_json(request):
        return await read_body(request, limits)
    _require_length(request, limits)
    return Upload(request, limits)


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body, unpacked: at most `max_body` bytes, within `idle_timeout`. Raises RequestError and its kinds."""
    _require_length(request, limits)
    if (body := request.here()) is not None:
        if len(body) > limits.max_body:
            raise _too_large(limits)
        return await _as_it_is(request, body, limits)
    try:
        # Broken chunks end in here too: aiohttp reports them only with the next request on the connection.
        async with asyncio.timeout(limits.idle_timeout):
            body = await _whole(request.content, limits)
    except TimeoutError as error:
        raise _too_late() from error
    except web.RequestPayloadError as error:
        raise _broken(error) from error
    return await _as_it_is(request, body, limits)


async def _as_it_is(request: Request, body: bytes, limits: Limits) -> bytes:
    """The body without what it was packed in."""
    coding = request.coding
    return body if coding in ("", "identity") else await _unpacked(body, coding, limits)


async def _whole(content: Content, limits: Limits) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > limits.max_body:
            raise _too_large(limits)
    return b"".join(pieces)


def is_json(request: Request) -> bool:
    """Whether a body says that it is JSON."""
    kind = request.content_type
    return kind == "application/json" or kind.endswith("+json")


def form_model(content_type: str, head: bytes) -> str | None:
    """The field `model` of a form, multipart/form-data, that begins with `head`; None where it is not there in full."""
    boundary = _parameter(content_type, "boundary")
    if not boundary:
        return None
    # The first delimiter may stand at the very beginning; the last piece is cut off somewhere.
    parts = (b"\r\n" + head).split(b"\r\n--" + boundary.encode("utf-8", "surrogateescape"))
    for part in parts[1:-1]:
        fields, _, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        for field in fields.split(b"\r\n"):
            name, _, disposition = field.decode("utf-8", "replace").partition(":")
            if name.strip().lower() != "content-disposition" or _parameter(disposition, "filename") is not None:
                continue
            if _parameter(disposition, "name") == "model":
                return value.decode("utf-8", "replace")
    return None


def _parameter(header: str, name: str) -> str | None:
    message = Message()
    message["x"] = header.replace("\r", " ").replace("\n", " ")
    value = message.get_param(name, header="x")
    return value if isinstance(value, str) else None


async def _unpacked(body: bytes, coding: str, limits: Limits) -> bytes:
    """In slices between which others have their turn, and no more than may be."""
    if coding not in _WINDOW_BITS:
        raise UnsupportedEncoding(
            f"A body with Content-Encoding {coding[:50]!r} is not understood; gzip and deflate are.",
            code="unsupported_encoding",
        )
    unpacker = zlib.decompressobj(_WINDOW_BITS[coding])
    pieces: list[bytes] = []
    left, size = body, 0
    try:
        while not unpacker.eof:
            pieces.append(unpacker.decompress(left, _SLICE_BYTES))
            left, size = unpacker.unconsumed_tail, size + len(pieces[-1])
            if size > limits.max_body:
                raise _too_large(limits)
            if not left and not pieces[-1]:
                raise _broken("it ends early")
            await asyncio.sleep(0)
    except zlib.error as error:
        raise _broken(error) from error
    if unpacker.unused_data:
        raise _broken("something follows what was packed")
    return b"".join(pieces)


def _require_length(request: Request, limits: Limits) -> None:
    if request.content_length is not None and request.content_length > limits.max_body:
        raise _too_large(limits)


def _too_large(limits: Limits) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {limits.max_body} bytes.", code="body_too_large")


def _too_late() -> BodyTimeout:
    return BodyTimeout("The body did not arrive in time.", code="body_timeout")


def _broken(why: object) -> RequestError:
    return RequestError(f"The body could not be read: {why}", code="invalid_body")
