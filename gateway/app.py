"""The composition root: the only place where the parts of a gateway are made and handed to each other."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import structlog
import zmq.asyncio
from aiohttp import web

from config.keys import load_keys
from config.load import ConfigError
from config.schema import Config, UpstreamTls
from gateway.credentials import Credentials, load_credentials
from gateway.decision import Decider
from gateway.fleet import Fleet
from gateway.gate import Gate
from gateway.handler import Handler
from gateway.intake import Intake, Turns
from gateway.keys import Keys
from gateway.metrics import Metrics
from gateway.pods import Pod, PodTable
from gateway.poller import EventSource, Poller
from gateway.proxy import Proxy
from gateway.routes import Routes
from gateway.subscriber import Subscriber
from gateway.tls import client_context
from gateway.tokens import Tokenizer
from gateway.upstream import PodApi
from gateway.watch import Watch
from index import Publisher, RadixIndex

_log = structlog.get_logger("gateway.app")

# uvicorn, in front of vLLM, closes an idle connection after 5 s: dropping ours first avoids sending into a closing one.
_KEEPALIVE_S = 3.0


@dataclass(frozen=True)
class Gateway:
    """A wired gateway: what serves, what runs beside it, what drains it."""

    application: web.Application
    admin: web.Application | None
    fleet: Fleet
    watch: Watch
    handler: Handler
    pods: PodTable
    index: RadixIndex
    metrics: Metrics


@asynccontextmanager
async def gateway(config: Config) -> AsyncIterator[Gateway]:
    """Make every part; on exit close what was opened. Raises ConfigError: a file that it names cannot be used."""
    index = RadixIndex(max_blocks=config.index.max_blocks)
    addresses = config.p2p_addresses()
    if unknown := [name for name, address in addresses.items() if address is None]:
        _log.warning("pods on one host need a p2p address each; until then none of them is a source", pods=unknown)
    pods = PodTable(
        (Pod(spec, p2p=addresses[spec.name], breaker=config.breaker) for spec in config.pods),
        max_load_age=config.poll.max_age,
        max_requests=config.limits.max_concurrent_per_pod,
    )
    metrics = Metrics(pods, index)
    limits = config.limits
    watch = Watch(metrics)
    keys = await _keys(config, watch)
    credentials = Credentials(keyed=keys is not None)
    await load_credentials(credentials, config.pods, watch)
    tls = await client_context(config.upstream_tls, "$.upstream_tls", watch) if _speaks_tls(config) else True
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_timeout)
    connector = aiohttp.TCPConnector(limit=0, ssl=tls, keepalive_timeout=_KEEPALIVE_S)
    zmq_context = zmq.asyncio.Context()
    session = aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
    )

    turns = Turns()

    async def subscribe(pod: Pod, source: EventSource) -> None:
        publisher = Publisher(pod.name, source.rank)
        intake = Intake(pod, publisher, index=index, agreement=pods.agreement, metrics=metrics)
        await Subscriber(zmq_context, pod, source, intake=intake, turns=turns).run()

    async with session:
        api = PodApi(session, credentials)
        decider = Decider(index, pods, config.placement, config.p2p, coordinate=random.random)
        handler = Handler(
            pods=pods,
            tokenizer=Tokenizer(api, config.tokens),
            decider=decider,
            proxy=Proxy(session, limits),
            credentials=credentials,
            metrics=metrics,
            limits=limits,
        )
        routes = Routes(
            handler=handler,
            gate=Gate(keys, most=limits.max_concurrent, open_metrics=config.auth.open_metrics),
            pods=pods,
            index=index,
            decider=decider,
            metrics=metrics,
            limits=limits,
        )
        apart = config.admin.port is not None
        fleet = Fleet(
            pods=pods,
            poller=Poller(api, config.poll),
            index=index,
            subscribe=subscribe,
            metrics=metrics,
            poll=config.poll,
            probe=config.p2p.enabled and config.p2p.probe and len(config.pods) > 1,
        )
        try:
            yield Gateway(
                application=routes.application(admin=not apart),
                admin=routes.admin_application() if apart else None,
                fleet=fleet,
                watch=watch,
                handler=handler,
                pods=pods,
                index=index,
                metrics=metrics,
            )
        finally:
            zmq_context.destroy(linger=0)


async def _keys(config: Config, watch: Watch) -> Keys | None:
    if (file := config.auth.keys) is None:
        return None
    keys = Keys()
    try:
        await watch.add("keys", [file], lambda: load_keys(file), keys.replace)
    except ConfigError as error:
        raise ConfigError(f"$.auth.keys: {error}") from None
    return keys


def _speaks_tls(config: Config) -> bool:
    """Reading whom the system trusts takes a while, so only where it is needed."""
    return config.upstream_tls != UpstreamTls() or any(pod.url.lower().startswith("https:") for pod in config.pods)
