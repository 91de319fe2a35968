"""The border between this gateway and its pods: aiohttp's and `wire`'s exceptions come in, `PodError`s go out."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import aiohttp
import msgspec

from gateway.credentials import Credentials
from gateway.errors import PodDisconnected, PodError, PodRejected, PodTimeout, PodUnavailable, PodUnreachable
from gateway.wire import ConnectError, WireError

T = TypeVar("T")
_NOT_OFFERED = frozenset({403, 404, 405, 501})
_AT_ONCE_BYTES = 1024 * 1024  # more than this aiohttp writes, and warns of, in one go; of a file in pieces


@asynccontextmanager
async def pod_io(where: str, *, deadline: float) -> AsyncIterator[asyncio.Timeout]:
    """Run a piece of pod I/O under a deadline (seconds from now, to be rescheduled through the yielded object)."""
    try:
        async with asyncio.timeout(deadline) as timeout:
            yield timeout
    except (TimeoutError, aiohttp.ClientError, WireError, ConnectionError) as error:
        raise as_pod_error(error, where) from error


def as_pod_error(error: Exception, where: str) -> PodError:
    """What a failure of pod I/O means; a TimeoutError is a passed deadline."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return PodUnreachable(f"{where}: no connection within the deadline", code="pod_unreachable")
    if isinstance(error, aiohttp.ClientConnectorError):
        return PodUnreachable(f"{where}: {error.strerror or error}", code="pod_unreachable")
    if isinstance(error, ConnectError):
        return PodUnreachable(f"{where}: {error}", code="pod_unreachable")
    if isinstance(error, TimeoutError):
        return PodTimeout(f"{where}: no answer within the deadline", code="pod_timeout")
    return PodDisconnected(f"{where}: {str(error) or type(error).__name__}", code="pod_disconnected")


class PodApi:
    """Small control-plane calls to pods: a deadline each, JSON decoded into the caller's type."""

    def __init__(self, session: aiohttp.ClientSession, credentials: Credentials | None = None) -> None:
        self._session = session
        self._credentials = credentials or Credentials()

    async def get(self, url: str, path: str, *, timeout: float) -> bytes:  # noqa: ASYNC109 - a deadline for the call, applied in pod_io
        """The body of a 200. Raises PodError."""
        return await self._call("GET", url, path, timeout, None, {})

    async def post(
        self,
        url: str,
        path: str,
        body: bytes,
        *,
        timeout: float,  # noqa: ASYNC109
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Post JSON; the body of a 200. Raises PodError."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        return await self._call("POST", url, path, timeout, body, sent)

    async def _call(
        self, method: str, url: str, path: str, deadline: float, body: bytes | None, headers: dict[str, str]
    ) -> bytes:
        where = url + path
        data = io.BytesIO(body) if body is not None and len(body) > _AT_ONCE_BYTES else body
        if (authorization := self._credentials.of(url)) is not None:
            headers["Authorization"] = authorization
        async with (
            pod_io(where, deadline=deadline),
            self._session.request(method, where, data=data, headers=headers) as answer,
        ):
            told = f"{where} answered {answer.status}"
            if answer.status >= 500 and answer.status not in _NOT_OFFERED:
                raise PodUnavailable(told, code="pod_unavailable")
            if answer.status != 200:
                rejected = PodRejected(told, code="pod_rejected")
                rejected.offered = answer.status not in _NOT_OFFERED
                raise rejected
            return await answer.read()


def decoded(body: bytes | msgspec.Raw, type_: type[T], where: str) -> T:
    """A pod's JSON as `type_`. Raises PodRejected."""
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.DecodeError as error:
        raise PodRejected(f"{where}: unexpected answer: {error}", code="pod_rejected") from error
