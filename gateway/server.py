"""The life of a serving process: bind, serve, drain, stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import structlog
from aiohttp import web

from config.schema import Config, join_address
from gateway import snapshot
from gateway.app import Gateway, gateway

_log = structlog.get_logger("gateway.server")


class StartError(Exception):
    """The gateway cannot start; one line says why."""


class Running(NamedTuple):
    """A gateway that serves at `url`."""

    url: str
    gateway: Gateway
    fleet_task: asyncio.Task[None]


@asynccontextmanager
async def running(config: Config, *, restore: str | None = None) -> AsyncIterator[Running]:
    """Serve for as long as the context lasts; leaving it drains. Raises StartError.

    `restore` names a snapshot of the index to start from: a file, or the URL of a gateway that runs.
    """
    async with gateway(config) as parts:
        # Without handler_cancellation a handler runs on after its client has left, and the pod goes on generating.
        runner = web.AppRunner(
            parts.application,
            handler_cancellation=True,
            access_log=None,
            # aiohttp waits for handlers twice: before and after it breaks off what they still read of their requests.
            shutdown_timeout=config.limits.drain_timeout / 2,
        )
        if restore is not None:
            await snapshot.restore(restore, parts.index, parts.pods, parts.metrics)
        await runner.setup()
        fleet = asyncio.create_task(parts.fleet.run(), name="fleet")
        try:
            yield Running(await _listen(runner, config), parts, fleet)
        finally:
            parts.handler.draining = True
            await runner.cleanup()
            fleet.cancel()
            await asyncio.wait([fleet])


async def serve(config: Config, *, restore: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises StartError; a fault of the fleet's tasks ends the process."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(config, restore=restore) as server:
        _log.info("serving", url=server.url, pods=len(config.pods))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([stopped, server.fleet_task], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        _log.info("draining", timeout_s=config.limits.drain_timeout)
    if not server.fleet_task.cancelled() and (fault := server.fleet_task.exception()) is not None:
        raise fault


async def _listen(runner: web.AppRunner, config: Config) -> str:
    host, port = config.listen.host, config.listen.port
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return f"http://{join_address(host, runner.addresses[0][1])}"
