"""The life of a serving process: bind, serve, drain, stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import structlog
from aiohttp import web

from config.schema import Admin, Config, Listen, join_address
from gateway import snapshot
from gateway.app import Gateway, gateway
from gateway.connection import Site
from gateway.tls import server_context

_log = structlog.get_logger("gateway.server")


class StartError(Exception):
    """The gateway cannot start; one line says why."""


class Running(NamedTuple):
    """A gateway that serves at `url`, and its operators at `admin_url` if that is a place of its own."""

    url: str
    admin_url: str | None
    gateway: Gateway
    fleet_task: asyncio.Task[None]
    watch_task: asyncio.Task[None]


@asynccontextmanager
async def running(config: Config, *, restore: str | None = None) -> AsyncIterator[Running]:
    """Serve for as long as the context lasts; leaving it drains. Raises StartError, ConfigError.

    `restore` names a snapshot of the index to start from: a file, or the URL of a gateway that runs.
    """
    async with gateway(config) as parts, AsyncExitStack() as stack:
        if restore is not None:
            await snapshot.restore(restore, parts.index, parts.pods, parts.metrics)
        fleet, watch = _beside(parts)
        stack.push_async_callback(_end, fleet, watch)
        admin_url = None
        if parts.admin is not None and config.admin.port is not None:
            admin_url = await _listen(stack, config, parts, parts.admin, config.admin, "$.admin")
        url = await _listen(stack, config, parts, parts.application, config.listen, "$.listen")
        stack.callback(_refuse, parts)
        yield Running(url, admin_url, parts, fleet, watch)


async def serve(config: Config, *, restore: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises StartError, ConfigError; a fault of the tasks beside it ends the process.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(config, restore=restore) as server:
        told = {} if server.admin_url is None else {"admin_url": server.admin_url}
        _log.info("serving", url=server.url, **told, pods=len(config.pods))
        stopped = asyncio.create_task(stop.wait())
        beside = (server.fleet_task, server.watch_task)
        await asyncio.wait([stopped, *beside], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        _log.info("draining", timeout_s=config.limits.drain_timeout)
    for task in beside:
        if not task.cancelled() and (fault := task.exception()) is not None:
            raise fault


def _beside(parts: Gateway) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
    return asyncio.create_task(parts.fleet.run(), name="fleet"), asyncio.create_task(parts.watch.run(), name="watch")


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _refuse(parts: Gateway) -> None:
    parts.handler.draining = True


async def _listen(
    stack: AsyncExitStack,
    config: Config,
    parts: Gateway,
    application: web.Application,
    where: Listen | Admin,
    path: str,
) -> str:
    """Serve an application until the stack unwinds; its URL."""
    tls = await server_context(where.tls, f"{path}.tls", parts.watch)
    # Without handler_cancellation a handler runs on after its client has left, and the pod goes on generating.
    runner = web.AppRunner(
        application,
        handler_cancellation=True,
        access_log=None,
        # aiohttp waits for handlers twice: before and after it breaks off what they still read of their requests.
        shutdown_timeout=config.limits.drain_timeout / 2,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    host, port = where.host, where.port or 0
    site = Site(
        runner,
        host=host,
        port=port,
        tls=tls,
        limits=config.limits,
        refused=lambda r: parts.metrics.refused.labels(r).inc(),
    )
    try:
        await site.start()
    except OSError as error:
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return f"{'http' if tls is None else 'https'}://{join_address(host, runner.addresses[0][1])}"
