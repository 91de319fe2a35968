"""The life of a serving process: bind, serve, take over a changed configuration, drain, stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

import structlog
from aiohttp import web

from config.addresses import join_address
from config.listeners import Admin, Listen
from config.schema import Config, Limits
from gateway import lag, logs, snapshot
from gateway.app import Gateway, gateway
from gateway.front.connection import Service
from gateway.front.site import Site
from gateway.reload import ConfigFile, Reloader
from gateway.tls import client_context, server_context
from gateway.watch import Watch

_log = structlog.get_logger("gateway.server")

_LOOK_S = 0.02
_PARTING_S = 2.0  # for last words to clients; each has a second at most
_LEFT_OVER_S = 0.1  # for handlers that even then go on


class StartError(Exception):
    """The gateway cannot start; one line says why."""


@dataclass
class Running:
    """A gateway that serves at `url`, and its operators at `admin_url` if that is a place of its own.

    `hurry`, once set, ends a drain at once.
    """

    url: str
    admin_url: str | None
    gateway: Gateway
    fleet_task: asyncio.Task[None]
    watch_task: asyncio.Task[None]
    costs_task: asyncio.Task[None]
    lag_task: asyncio.Task[None]
    sites: list[Site]
    config: Config
    hurry: asyncio.Event = field(default_factory=asyncio.Event)

    def reloader(self, file: ConfigFile | None) -> Reloader:
        """What puts a changed file in force here."""
        return Reloader(self.config, file, change=self._change, check=self._check, metrics=self.gateway.metrics)

    async def _change(self, config: Config) -> None:
        await self.gateway.reconfigure(config)
        for site in self.sites:
            site.reconfigure(config.limits)
        self.config = config

    async def _check(self, found: Config) -> None:
        """Raise ConfigError for certificates with which a restart would fail."""
        spare, now = Watch(self.gateway.metrics), self.config
        if found.listen.tls != now.listen.tls:
            await server_context(found.listen.tls, "$.listen.tls", spare)
        if found.admin.tls != now.admin.tls:
            await server_context(found.admin.tls, "$.admin.tls", spare)
        if found.upstream_tls != now.upstream_tls:
            await client_context(found.upstream_tls, "$.upstream_tls", spare)


@asynccontextmanager
async def running(config: Config, *, restore: str | None = None) -> AsyncIterator[Running]:
    """Serve for as long as the context lasts; leaving it drains. Raises StartError, ConfigError.

    `restore` names a snapshot of the index to start from: a file, or the URL of a gateway that runs.
    """
    async with gateway(config) as parts, AsyncExitStack() as stack:
        if restore is not None:
            await snapshot.restore(restore, parts.index, parts.pods, parts.metrics)
        await parts.costs_file.load()
        beside = _beside(parts)
        stack.push_async_callback(_end, *beside)
        sites, admin_url = [], None
        if parts.admin is not None and config.admin.port is not None:
            site, admin_url = await _listen(stack, config.limits, parts, parts.admin, config.admin, "$.admin")
            sites.append(site)
        site, url = await _listen(
            stack, config.limits, parts, parts.application, config.listen, "$.listen", parts.service
        )
        server = Running(url, admin_url, parts, *beside, [site, *sites], config)
        stack.push_async_callback(_drain, server, site)
        yield server


async def serve(config: Config, *, restore: str | None = None, file: ConfigFile | None = None) -> bool:
    """Serve until SIGTERM or SIGINT, then drain; a second one cuts that short. False if so. SIGHUP reloads `file`.

    Raises StartError, ConfigError; a fault of the tasks beside it ends the process.
    """
    stop, changed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, changed.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(config, restore=restore) as server:
        told = {} if server.admin_url is None else {"admin_url": server.admin_url}
        _log.info("serving", url=server.url, **told, pods=len(config.pods))
        stopped = asyncio.create_task(stop.wait())
        reloads = asyncio.create_task(_reload(server, file, changed))
        beside = (server.fleet_task, server.watch_task, server.costs_task, server.lag_task)
        await asyncio.wait([stopped, reloads, *beside], return_when=asyncio.FIRST_COMPLETED)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.hurry.set)
        await _end(stopped, reloads)
        limits = server.config.limits
        _log.info("draining", delay_s=limits.drain_delay, timeout_s=limits.drain_timeout)
    for task in (*beside, reloads):
        if not task.cancelled() and (fault := task.exception()) is not None:
            raise fault
    return not server.hurry.is_set()


async def _reload(server: Running, file: ConfigFile | None, changed: asyncio.Event) -> None:
    """At each SIGHUP; further ones meanwhile make one more."""
    reloader = server.reloader(file)
    while True:
        await changed.wait()
        changed.clear()
        server.gateway.access_log.reopen()
        server.gateway.decision_log.reopen()
        if await reloader.reload() in ("ok", "restart_needed"):
            logs.configure(server.config.log)


def _beside(
    parts: Gateway,
) -> tuple[asyncio.Task[None], asyncio.Task[None], asyncio.Task[None], asyncio.Task[None]]:
    return (
        asyncio.create_task(parts.fleet.run(), name="fleet"),
        asyncio.create_task(parts.watch.run(), name="watch"),
        asyncio.create_task(parts.costs_file.run(), name="costs"),
        asyncio.create_task(lag.watch(parts.metrics.loop_lag), name="lag"),
    )


async def _end(*tasks: asyncio.Task[None] | asyncio.Task[bool]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _drain(server: Running, site: Site) -> None:
    """Not ready; a while later nothing new; at last nothing at all."""
    drain, limits = server.gateway.drain, server.config.limits
    drain.leaving = True
    await _unless(server.hurry, limits.drain_delay)
    drain.refusing = True
    server.gateway.admission.refuse()
    server.gateway.live_view.close()
    if not (left := await _left(site, limits.drain_timeout, server.hurry)):
        return
    _log.warning("not drained: what is under way is cut off", connections=left)
    drain.over = True
    site.cut_off()
    await _left(site, _PARTING_S, asyncio.Event())


async def _left(site: Site, seconds: float, hurry: asyncio.Event) -> int:
    """How many connections are left when all are closed, time is up or somebody is in a hurry."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while (left := site.leave()) and clock() < deadline and not hurry.is_set():
        await _unless(hurry, _LOOK_S)
    return left


async def _unless(event: asyncio.Event, pause: float) -> None:
    if pause > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await event.wait()


async def _listen(
    stack: AsyncExitStack,
    limits: Limits,
    parts: Gateway,
    application: web.Application,
    where: Listen | Admin,
    path: str,
    service: Service | None = None,
) -> tuple[Site, str]:
    """Serve an application until the stack unwinds; its URL."""
    tls = await server_context(where.tls, f"{path}.tls", parts.watch)
    # Without handler_cancellation a handler runs on after its client has left, and the pod goes on generating.
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=_LEFT_OVER_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    host, port = where.host, where.port or 0
    site = Site(
        runner,
        host=host,
        port=port,
        tls=tls,
        limits=limits,
        refused=lambda r: parts.metrics.refused.labels(r).inc(),
        service=service,
    )
    try:
        await site.start()
    except OSError as error:
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return site, f"{'http' if tls is None else 'https'}://{join_address(host, runner.addresses[0][1])}"
