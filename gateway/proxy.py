"""One attempt of one request against one pod: send the body, stream the answer's bytes as they come.

Nothing is sent to the client before the pod's first body byte, so until then every failure is a `PodError` that the
caller may answer with another pod. Afterwards the answer is finished, or broken off so that the client cannot take it
for whole.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from aiohttp import hdrs, web
from multidict import CIMultiDict

from config.schema import Limits
from gateway import engine_errors, openai
from gateway.answers import error_event
from gateway.connection import reset
from gateway.deadline import Deadline
from gateway.drain import Drain
from gateway.errors import EngineFailed, GatewayError, NotHere, PodError, PodRefused, PodUnavailable
from gateway.leases import Lease
from gateway.metrics import Record
from gateway.upstream import as_pod_error
from gateway.wire import Answer, Origin, Pool, WireError

# RFC 9110, 7.6.1: meant for one connection only; and what each side's HTTP stack writes itself.
_HOP_BY_HOP = frozenset(
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
# The length of a body is written anew: it may not be what it was.
_NOT_TO_POD = _HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id"}
# By these a client could choose a rank or a source, here or at a pod.
_STEERING = (b"x-gateway-", b"x-data-parallel-", b"x-kv-", b"x-prefiller-", b"x-p2p-")
_OURS = b"x-gateway-"
_USUAL_CONNECTION = ("keep-alive", "Keep-Alive", "close")
_UNAVAILABLE = frozenset({502, 503, 504})  # these speak against a pod, whether another one is asked or not
_TAIL_CHUNKS = 4  # the usage of a stream is in its last chunk or two
_TAIL_BYTES = 64 * 1024  # of each: a slow reader's stream is not to keep a megabyte for it
_PARTING_WORD_S = 1.0  # a client that reads has room for a line at once


class ClientLeftError(Exception):
    """The client's connection is gone; there is nobody to answer."""


class Attempt(NamedTuple):
    """What goes to the pod.

    `length` is that of a body that comes in pieces, None where it is not known before its end. An answer with the
    status `not_here` is none for the client: `NotHere`. `first` sees the first piece of any other. `completes`: a 200
    has to have a body, in which engines' errors are looked for. `elsewhere` is asked about an answer that is a failure
    of the pod, and settles it with the books: whether another pod will be asked instead of passing it on.
    """

    url: str
    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes | AsyncIterable[bytes]
    length: int | None = None
    not_here: int | None = None
    first: Callable[[bytes], None] | None = None
    completes: bool = False
    elsewhere: Callable[[PodError], bool] = lambda _: False


class _Forwarded(web.StreamResponse):
    """Its head goes out together with the first piece of its body, which is there: a system call less."""

    _send_headers_immediately = False


class Proxy:
    """Sends attempts over a pool of connections; `tls` is for pods that are asked by https."""

    def __init__(self, pool: Pool, limits: Limits, drain: Drain, tls: ssl.SSLContext | None = None) -> None:
        self._pool = pool
        self._limits = limits
        self._drain = drain
        self._tls = tls
        self._origins: dict[str, Origin] = {}

    @property
    def speaks_tls(self) -> bool:
        """Whether pods can be asked by https."""
        return self._tls is not None

    def speak_tls(self, tls: ssl.SSLContext) -> None:
        """From now on pods can be asked by https."""
        self._tls = tls

    def reconfigure(self, limits: Limits) -> None:
        """Attempts from now on have these."""
        self._limits = limits
        self._pool.reconfigure(connect_timeout=limits.connect_timeout)

    async def forward(
        self, request: web.Request, attempt: Attempt, answer_headers: Mapping[str, str], lease: Lease, record: Record
    ) -> web.StreamResponse:
        """Stream one attempt's answer to the client. Raises PodError before the first byte; ClientLeftError."""
        out: web.StreamResponse | None = None
        where = attempt.url + attempt.path
        try:
            async with Deadline(self._limits.first_byte_timeout) as deadline, await self._send(attempt) as answer:
                if answer.status == attempt.not_here:
                    lease.first_byte()
                    raise NotHere(f"{where} answered {answer.status}", code="not_here")
                chunk = await self._beginning(answer, attempt, lease, where)
                record.first_byte = time.monotonic()
                record.status = answer.status
                if attempt.first is not None:
                    attempt.first(chunk)
                out = _Forwarded(status=answer.status, headers=_to_client(answer, answer_headers))
                await self._stream(request, answer, chunk, out, deadline, record)
        except (TimeoutError, WireError) as cause:
            error = as_pod_error(cause, where)
            if out is None:
                raise error from cause
            record.broken = error.code
            await _break_off(request, out, error)
        except asyncio.CancelledError:
            if out is None or not self._drain.over:
                raise
            refusal = self._drain.refusal()
            record.broken = refusal.code
            await _break_off(request, out, refusal)
        except ClientLeftError:
            reset(request.transport)
            raise
        return out

    async def _beginning(self, answer: Answer, attempt: Attempt, lease: Lease, where: str) -> bytes:
        """What to pass on first. Raises PodError, agreed, where another pod is asked instead."""
        status = answer.status
        error: PodError | None = None
        if status in _UNAVAILABLE:
            error = PodUnavailable(f"{where} answered {status}", code="pod_unavailable")
        elif status in self._limits.retry_statuses:
            error = PodRefused(f"{where} answered {status}", code=f"pod_answered_{status}")
        if error is not None and attempt.elsewhere(error):
            raise error
        chunk = await answer.read()
        if status == 200 and attempt.completes and engine_errors.suspicious(chunk):
            chunk, reason = await _judged(answer, chunk)
            if reason is not None:
                error = EngineFailed(f"{where} answered 200 with a failure: {reason}", reason)
                if attempt.elsewhere(error):
                    raise error
        if error is None:
            lease.first_byte()
        return chunk

    async def _send(self, attempt: Attempt) -> Answer:
        origin = self._origins.get(attempt.url)
        if origin is None:
            tls = self._tls if attempt.url.lower().startswith("https:") else None
            origin = self._origins[attempt.url] = Origin.of(attempt.url, tls)
        path = attempt.path.encode("utf-8", "surrogateescape")
        return await self._pool.request(
            origin, attempt.method.encode(), path, attempt.headers, attempt.body, length=attempt.length
        )

    async def _stream(
        self,
        request: web.Request,
        answer: Answer,
        chunk: bytes,
        out: web.StreamResponse,
        deadline: Deadline,
        record: Record,
    ) -> None:
        """Until the end. One deadline spans each read and the write that hands it on; whoever is late has failed."""
        tail: deque[bytes] = deque(maxlen=_TAIL_CHUNKS)
        read, move, idle = answer.read, deadline.move, self._limits.idle_timeout
        by_client = True  # that it takes long; a pod that fails says so with other exceptions than a client does
        try:
            writer = await out.prepare(request)
            assert writer is not None, "it is prepared for the first time"  # noqa: S101 - for mypy
            write = writer.write
            while chunk:
                tail.append(chunk if len(chunk) <= _TAIL_BYTES else chunk[-_TAIL_BYTES:])
                move(idle)
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
        finally:
            end = b"".join(tail)
            if answer.status == 200 and not record.engine_error:
                record.engine_error = engine_errors.at_end(end) or ""
            usage = openai.usage([end])
            record.reported_prompt, record.reported_completion, record.reported_cached = usage


async def _judged(answer: Answer, chunk: bytes) -> tuple[bytes, engine_errors.Reason | None]:
    """As much of an answer as it takes to tell whether it is an engine's failure, and which."""
    piece = chunk
    while True:
        whole = answer.complete and not answer.buffered
        finding = engine_errors.judge(chunk, whole=whole or not piece)
        if finding != "more":
            return chunk, finding
        piece = await answer.read()
        chunk += piece


async def _break_off(request: web.Request, out: web.StreamResponse, error: GatewayError) -> None:
    """Tell an SSE client what happened; close so that no client takes the answer for complete.

    Nothing can be told in a packed stream, nor in one with a length, of which it might make up the rest.
    """
    told = hdrs.CONTENT_ENCODING not in out.headers and hdrs.CONTENT_LENGTH not in out.headers
    if told and out.prepared and out.content_type == "text/event-stream":
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_PARTING_WORD_S):
                await out.write(b"\n\n" + error_event(request, error))
    if request.transport is not None:
        request.transport.close()


def to_pod(request: web.BaseRequest, request_id: str, rank: int | None, *, unpacked: bool) -> list[tuple[bytes, bytes]]:
    """The client's headers, less what is this connection's own and what could steer.

    `rank` if the pod has several; `unpacked` if the body is not in the coding any more in which it came.
    """
    dropped = _NOT_TO_POD | {b"content-encoding"} if unpacked else _NOT_TO_POD
    if (named := request.headers.get(hdrs.CONNECTION)) is not None and named not in _USUAL_CONNECTION:
        lines = request.headers.getall(hdrs.CONNECTION)
        dropped |= {name.strip().lower().encode("utf-8", "surrogateescape") for name in ",".join(lines).split(",")}
    sent = [
        header
        for header in request.raw_headers
        if (name := header[0].lower()) not in dropped and not name.startswith(_STEERING)
    ]
    sent.append((b"x-request-id", request_id.encode("utf-8", "surrogateescape")))
    if rank is not None:
        sent.append((b"x-data-parallel-rank", b"%d" % rank))
    return sent


def _to_client(answer: Answer, ours: Mapping[str, str]) -> CIMultiDict[str]:
    sent = CIMultiDict(
        (name.decode("latin-1"), value.strip(b" \t").decode("utf-8", "surrogateescape"))
        for name, value in answer.headers
        if (known := name.lower()) not in _HOP_BY_HOP and not known.startswith(_OURS)
    )
    sent.update(ours)
    return sent
