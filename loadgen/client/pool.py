"""Connections to one endpoint: the one that became free last is used first, and made where none is free.

A server may close a connection that nobody uses at the moment when it is used again. Such a request is sent once more
on a fresh connection, as every HTTP client does: it was never read. Its time goes on from its first attempt.
"""

import asyncio
import itertools
import socket
import ssl
from time import perf_counter
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

from loadgen.client.answer import Answer
from loadgen.client.connection import Connection
from loadgen.client.failures import Disconnected, Refused

_PORTS: Final = {"http": 80, "https": 443}
_LOOKUP_S: Final = 10.0


class Endpoint(NamedTuple):
    """Where an OpenAI API is. `base` is what comes before `/chat/completions`."""

    secure: bool
    host: str
    port: int
    base: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read `http(s)://HOST[:PORT][/v1]`; ValueError says what is wrong."""
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"{url!r} is no URL like http://localhost:8080")
        path = parts.path.rstrip("/")
        base = path if path.endswith("/v1") else f"{path}/v1"
        return cls(parts.scheme == "https", parts.hostname, parts.port or _PORTS[parts.scheme], base)

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.secure else "http"] else f"{host}:{self.port}"


class Pool:
    """`insecure`: certificates are not looked at. Use it as a context; leaving it closes every connection."""

    def __init__(self, endpoint: Endpoint, *, insecure: bool = False) -> None:
        self._endpoint = endpoint
        self._idle: list[Connection] = []
        self._ssl: ssl.SSLContext | None = None
        if endpoint.secure:
            self._ssl = ssl.create_default_context()
            if insecure:
                self._ssl.check_hostname = False
                self._ssl.verify_mode = ssl.CERT_NONE

    async def __aenter__(self) -> Self:
        """Look the host up, once: thousands of lookups would be the load's own delay. Raises Refused."""
        loop, endpoint = asyncio.get_running_loop(), self._endpoint
        try:
            async with asyncio.timeout(_LOOKUP_S):
                found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except TimeoutError as error:
            raise Refused(f"{endpoint.host}: not found within {_LOOKUP_S:g} s") from error
        except OSError as error:
            raise Refused(f"{endpoint.host}: {error}") from error
        self._addresses = itertools.cycle(dict.fromkeys(str(address[0]) for *_, address in found))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # a transport that was aborted ends in the loop's next turn

    async def exchange(self, head: bytes, body: bytes, answer: Answer) -> None:
        """Send a request and return when its answer is here. Raises Refused, Disconnected, Unreadable."""
        connection = self._free()
        if connection is not None:
            try:
                await connection.exchange(head, body, answer)
            except Disconnected:
                if connection.heard:
                    raise
            else:
                return
        began = perf_counter()
        connection = await self._connect()
        answer.connect_s = perf_counter() - began
        await connection.exchange(head, body, answer)

    def _free(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop, name = asyncio.get_running_loop(), self._endpoint.host if self._ssl else None
        address = next(self._addresses)
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self._idle.append), address, self._endpoint.port, ssl=self._ssl, server_hostname=name
            )
        except OSError as error:
            raise Refused(f"{self._endpoint.authority}: {error}") from error
        return connection
