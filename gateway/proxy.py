"""One attempt of one request against one pod: send the body, stream the answer's bytes as they come.

Nothing is sent to the client before the pod's first body byte, so until then every failure is a `PodError` that the
caller may answer with another pod. Afterwards the answer is finished, or broken off so that the client cannot take it
for whole.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections import deque
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import NamedTuple

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from config.schema import Limits
from gateway import openai
from gateway.errors import PodError, PodUnavailable
from gateway.metrics import Record
from gateway.pods import Lease
from gateway.upstream import pod_io

# RFC 9110, 7.6.1: meant for one connection only; and what each side's HTTP stack writes itself.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# A compressed body has been unpacked on its way in; its length is written anew.
_NOT_TO_POD = _HOP_BY_HOP | {"host", "content-length", "content-encoding", "expect", "x-request-id"}
# By these a client could choose a rank or a source, here or at a pod.
_STEERING = ("x-gateway-", "x-data-parallel-", "x-kv-", "x-prefiller-", "x-p2p-")
_RETRYABLE_STATUS = frozenset({502, 503, 504})
_TAIL_CHUNKS = 4  # the usage of a stream is in its last chunk or two
_LARGE_BODY_BYTES = 1024 * 1024
_PARTING_WORD_S = 1.0  # a client that reads has room for a line at once


class ClientLeftError(Exception):
    """The client's connection is gone; there is nobody to answer."""


class Attempt(NamedTuple):
    """What goes to the pod."""

    url: str
    path: str
    headers: CIMultiDict[str]
    body: bytes


class Proxy:
    """Holds the pooled connections to all pods."""

    def __init__(self, session: aiohttp.ClientSession, limits: Limits) -> None:
        self._session = session
        self._limits = limits

    async def forward(
        self, request: web.Request, attempt: Attempt, answer_headers: Mapping[str, str], lease: Lease, record: Record
    ) -> web.StreamResponse:
        """Stream one attempt's answer to the client. Raises PodError before the first byte; ClientLeftError."""
        out: web.StreamResponse | None = None
        where = attempt.url + attempt.path
        try:
            async with (
                pod_io(where, deadline=self._limits.first_byte_timeout) as deadline,
                self._send(attempt) as answer,
            ):
                if answer.status in _RETRYABLE_STATUS:
                    raise PodUnavailable(f"{where} answered {answer.status}", code="pod_unavailable")
                chunk = await answer.content.readany()
                lease.first_byte()
                record.first_byte = time.monotonic()
                record.status = answer.status
                out = web.StreamResponse(status=answer.status, headers=_to_client(answer.headers, answer_headers))
                await self._stream(request, answer, chunk, out, deadline, record)
        except PodError as error:
            if out is None:
                raise
            record.broken = error.code
            await _break_off(request, out, error)
        except ClientLeftError:
            if request.transport is not None:
                request.transport.abort()  # what is still buffered has no reader
            raise
        return out

    def _send(self, attempt: Attempt) -> aiohttp.client._RequestContextManager:
        body = attempt.body
        return self._session.post(
            URL(attempt.url + attempt.path, encoded=True),
            data=io.BytesIO(body) if len(body) > _LARGE_BODY_BYTES else body,
            headers=attempt.headers,
            skip_auto_headers=(hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE),
            allow_redirects=False,
        )

    async def _stream(
        self,
        request: web.Request,
        answer: aiohttp.ClientResponse,
        chunk: bytes,
        out: web.StreamResponse,
        deadline: asyncio.Timeout,
        record: Record,
    ) -> None:
        """Until the end. One deadline spans each read and the write that hands it on; whoever is late has failed."""
        clock = asyncio.get_running_loop().time
        tail: deque[bytes] = deque(maxlen=_TAIL_CHUNKS)
        read, idle = answer.content.readany, self._limits.idle_timeout
        try:
            await _by_client(out.prepare(request), deadline)
            while chunk:
                tail.append(chunk)
                deadline.reschedule(clock() + idle)
                await _by_client(out.write(chunk), deadline)
                chunk = await read()
            await _by_client(out.write_eof(), deadline)
        finally:
            usage = openai.usage(tail)
            record.reported_prompt, record.reported_completion, record.reported_cached = usage


async def _by_client(step: Awaitable[object], deadline: asyncio.Timeout) -> None:
    """Await what only the client can hold up: its failure, or its being late, must not be taken for the pod's."""
    try:
        await step
    except ConnectionError as error:
        raise ClientLeftError from error
    except asyncio.CancelledError:
        if deadline.expired():
            raise ClientLeftError from None
        raise


async def _break_off(request: web.Request, out: web.StreamResponse, error: PodError) -> None:
    """Tell an SSE client what happened; close so that no client takes the answer for complete."""
    if out.prepared and out.content_type == "text/event-stream":
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_PARTING_WORD_S):
                await out.write(b"\n\ndata: " + openai.error_body(error) + b"\n\n")
    if request.transport is not None:
        request.transport.close()


def to_pod(headers: CIMultiDictProxy[str], request_id: str, rank: int | None) -> CIMultiDict[str]:
    """The client's headers, less what is this connection's own and what could steer; `rank` if the pod has several."""
    named = {name.strip().lower() for line in headers.getall(hdrs.CONNECTION, ()) for name in line.split(",")}
    sent = CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if (low := name.lower()) not in _NOT_TO_POD and low not in named and not low.startswith(_STEERING)
    )
    sent["x-request-id"] = request_id
    if rank is not None:
        sent["x-data-parallel-rank"] = str(rank)
    return sent


def _to_client(headers: CIMultiDictProxy[str], ours: Mapping[str, str]) -> CIMultiDict[str]:
    sent = CIMultiDict(
        (n, v) for n, v in headers.items() if n.lower() not in _HOP_BY_HOP and not n.lower().startswith("x-gateway-")
    )
    sent.update(ours)
    return sent
