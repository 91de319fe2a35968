"""A listener, and the connections it has."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from aiohttp import web

from config.schema import Limits
from gateway.front.connection import Connection, Service

_BACKLOG = 1024  # connections that wait to be accepted; the system may allow fewer


class Site(web.BaseSite):
    """A listener whose connections are `Connection`s. `service` serves what is plain; without one aiohttp does."""

    def __init__(
        self,
        runner: web.AppRunner,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        limits: Limits,
        refused: Callable[[str], None],
        service: Service | None = None,
    ) -> None:
        super().__init__(runner, ssl_context=tls, backlog=_BACKLOG)
        self._host, self._port = host, port
        self._limits = limits
        self._refused = refused
        self._service = service

    @property
    def name(self) -> str:
        """For people."""
        return f"{self._host}:{self._port}"

    def reconfigure(self, limits: Limits) -> None:
        """Connections from now on have these."""
        self._limits = limits

    @property
    def connections(self) -> list[Connection]:
        """Those there are."""
        server = self._runner.server
        return [] if server is None else [each for each in server.connections if isinstance(each, Connection)]

    def leave(self) -> int:
        """Listen no more, and close connections without a request under way; how many are left. To be repeated."""
        if self._server is not None:
            self._server.close()
        connections = self.connections
        for connection in connections:
            connection.leave()
        return len(connections)

    def cut_off(self) -> None:
        """End what is under way."""
        for connection in self.connections:
            connection.cut_off()

    async def start(self) -> None:
        """Listen. Raises OSError."""
        await super().start()
        loop = asyncio.get_running_loop()
        server = self._runner.server
        if server is None:
            raise RuntimeError("the runner is not set up")
        handshake: dict[str, Any] = {}
        if self._ssl_context is not None:
            handshake = {"ssl": self._ssl_context, "ssl_handshake_timeout": self._limits.header_timeout}
        self._server = await loop.create_server(
            lambda: Connection(server, limits=self._limits, refused=self._refused, loop=loop, service=self._service),
            self._host,
            self._port,
            backlog=self._backlog,
            **handshake,
        )
