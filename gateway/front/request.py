"""A request as the gateway sees it, and the way back to its client, whichever front it came through."""

from __future__ import annotations

import asyncio
import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol, cast

from msgspec import Struct
from multidict import CIMultiDictProxy

from config.keys import ApiKey
from gateway.deadline import Deadline
from gateway.metrics import Record
from gateway.surface import Endpoint, Errors, errors_of
from gateway.wire import Answer

PARTING_WORD_S = 1.0  # a client that reads has room for a line at once
_TAIL_BYTES = 64 * 1024  # of a piece: a slow reader's stream is not to keep a megabyte for it
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


class Relay(Struct, frozen=True):
    """A pod's answer on its way to a client.

    `chunk` is what has been read of its body; `headers` replace the pod's. `tail` gets every piece, and forgets the
    early ones; who has a long piece hands it to `keep`. `deadline` spans each wait for a piece and the write that hands
    it on, `idle` seconds: whoever is late has failed.
    """

    answer: Answer
    chunk: bytes
    headers: Mapping[str, str]
    tail: deque[bytes]
    deadline: Deadline
    idle: float

    def keep(self, piece: bytes) -> None:
        """Add to the tail the end of a piece."""
        self.tail.append(piece if len(piece) <= _TAIL_BYTES else piece[-_TAIL_BYTES:])


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

    @abstractmethod
    def passed_on(self, *, unpacked: bool) -> list[tuple[bytes, bytes]]:
        """The headers for a pod: less what is this connection's own and what could steer, and without its id.

        `unpacked` if the body is not in the coding any more in which it came.
        """

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
    def traceparent(self) -> bytes:
        """The client's, as it came; empty where there is none."""

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
    async def relay(self, relay: Relay) -> None:
        """Answer with what a pod answers, to its end. Raises what reading it raises, and ClientLeftError."""

    @abstractmethod
    async def break_off(self, event: bytes) -> None:
        """Close so that no client takes the answer for complete; tell an SSE client `event` before.

        Nothing can be told in a packed stream, nor in one with a length, of which it might make up the rest.
        """

    @abstractmethod
    def reset(self) -> None:
        """End the connection now, and drop what the client has not read."""
