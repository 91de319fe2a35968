# ruff: noqa: D102 - what a request has is described once, in `Request`
"""A request as the gateway sees it, and the way back to its client, whichever front it came through."""

from __future__ import annotations

import asyncio
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, cast

from aiohttp import hdrs, web
from multidict import CIMultiDict, CIMultiDictProxy

from config.keys import ApiKey
from gateway.deadline import Deadline
from gateway.metrics import Record
from gateway.surface import Endpoint, Errors, endpoint_of, errors_of
from gateway.wire import Answer

# RFC 9110, 7.6.1: meant for one connection only; and what each side's HTTP stack writes itself.
HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
OURS = b"x-gateway-"
PARTING_WORD_S = 1.0  # a client that reads has room for a line at once
_USUAL_CONNECTION = ("keep-alive", "Keep-Alive", "close")
_NO_LINGERING = struct.pack("ii", 1, 0)


class ClientLeftError(Exception):
    """The client's connection is gone; there is nobody to answer."""


def reset(transport: asyncio.BaseTransport | None) -> None:
    """End a client's connection now, and drop what it has not read.

    Without a reset the system would keep that, megabytes of it, for as long as a slow client takes.
    """
    if transport is None:
        return
    if (sock := transport.get_extra_info("socket")) is not None:
        with suppress(OSError):  # it is closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
    cast("asyncio.Transport", transport).abort()  # uvloop's does not derive from it


class Content(Protocol):
    """A body that is arriving."""

    async def readany(self) -> bytes:
        """The next piece, b"" at the end. Raises RequestPayloadError."""


class Relayed(NamedTuple):
    """A pod's answer on its way to a client.

    `chunk` is what has been read of its body; `headers` replace the pod's. `tail` sees every piece. `deadline` spans
    each wait for a piece and the write that hands it on, `idle` seconds: whoever is late has failed.
    """

    answer: Answer
    chunk: bytes
    headers: Mapping[str, str]
    tail: Callable[[bytes], None]
    deadline: Deadline
    idle: float


class Request(ABC):
    """`path` is decoded, `target` goes to pods. `resource` is the path of the route that was matched.

    `id` and `record` are the journal's, `key` the gate's: None where no key is asked for.
    """

    __slots__ = ("endpoint", "id", "key", "method", "path", "record", "resource", "target")

    id: str
    record: Record

    def __init__(self, method: str, path: str, target: str, endpoint: Endpoint, resource: str) -> None:
        self.method = method
        self.path = path
        self.target = target
        self.endpoint = endpoint
        self.resource = resource
        self.key: ApiKey | None = None

    @property
    def errors(self) -> Errors:
        """The shape of errors that its client reads."""
        return errors_of(self.path, self.endpoint)

    @property
    @abstractmethod
    def headers(self) -> CIMultiDictProxy[str]:
        """As text."""

    @property
    @abstractmethod
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """As they came."""

    @property
    @abstractmethod
    def names(self) -> Sequence[bytes]:
        """Of `raw_headers`, in lower case."""

    @property
    @abstractmethod
    def of_connection(self) -> frozenset[bytes]:
        """Names of headers that the client means for this connection only."""

    @property
    @abstractmethod
    def coding(self) -> str:
        """What the body is packed in, in lower case; empty where it is not."""

    @property
    @abstractmethod
    def given_id(self) -> str:
        """The client's `x-request-id`; empty where there is none."""

    @property
    @abstractmethod
    def response_id(self) -> str | None:
        """That of the path."""

    @property
    @abstractmethod
    def content_type(self) -> str:
        """Of the body, without parameters."""

    @property
    @abstractmethod
    def content_length(self) -> int | None:
        """Of the body; None: not known before its end."""

    @property
    @abstractmethod
    def body_exists(self) -> bool:
        """Whether there is a body."""

    @property
    @abstractmethod
    def content(self) -> Content:
        """The body as it arrives."""

    @abstractmethod
    def here(self) -> bytes | None:
        """The whole body, if all of it is here and none was taken."""

    @property
    @abstractmethod
    def remote(self) -> str | None:
        """The client's address."""

    @property
    @abstractmethod
    def sent(self) -> int:
        """Bytes written to the client; 0: it has not been answered."""

    @abstractmethod
    async def relay(self, relayed: Relayed) -> None:
        """Answer with what a pod answers, to its end. Raises what reading it raises, and ClientLeftError."""

    @abstractmethod
    async def break_off(self, event: bytes) -> None:
        """Close so that no client takes the answer for complete; tell an SSE client `event` before.

        Nothing can be told in a packed stream, nor in one with a length, of which it might make up the rest.
        """

    @abstractmethod
    def reset(self) -> None:
        """End the connection now, and drop what the client has not read."""


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

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        return self._request.raw_headers

    @property
    def names(self) -> Sequence[bytes]:
        return [name.lower() for name, _ in self._request.raw_headers]

    @property
    def of_connection(self) -> frozenset[bytes]:
        headers = self._request.headers
        if (named := headers.get(hdrs.CONNECTION)) is None or named in _USUAL_CONNECTION:
            return frozenset()
        lines = headers.getall(hdrs.CONNECTION)
        return frozenset(name.strip().lower().encode("utf-8", "surrogateescape") for name in ",".join(lines).split(","))

    @property
    def coding(self) -> str:
        return ",".join(self._request.headers.getall(hdrs.CONTENT_ENCODING, ())).strip().lower()

    @property
    def given_id(self) -> str:
        return self._request.headers.get("x-request-id", "")

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

    async def relay(self, relayed: Relayed) -> None:
        answer, chunk, deadline, idle = relayed.answer, relayed.chunk, relayed.deadline, relayed.idle
        read, tail = answer.read, relayed.tail
        out = self.answer = _Forwarded(status=answer.status, headers=_to_client(answer, relayed.headers))
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
