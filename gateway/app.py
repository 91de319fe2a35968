"""The composition root: the only place where the parts of a gateway are made and handed to each other."""

from __future__ import annotations

import asyncio
import io
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import aiohttp
import structlog
import zmq.asyncio
from aiohttp import web

from config.keys import load_keys
from config.listeners import UpstreamTls
from config.load import ConfigError
from config.schema import Config, Limits, PodConfig
from gateway import decision_log, logs
from gateway.access_log import AccessLog, open_file
from gateway.admission import Admission
from gateway.costs_file import CostsFile
from gateway.credentials import Credentials, load_credentials
from gateway.decision import Decider
from gateway.decision_log import DecisionLog
from gateway.drain import Drain
from gateway.explain_header import ExplainHeader
from gateway.fleet import Fleet
from gateway.front.connection import Service
from gateway.gate import Gate
from gateway.handler import Handler
from gateway.intake import Intake, Turns
from gateway.journal import Journal
from gateway.keys import Keys
from gateway.links import Links
from gateway.metrics import Metrics
from gateway.placements import Placements
from gateway.pod import Pod
from gateway.pods import PodTable
from gateway.poller import EventSource, Poller
from gateway.proxy import Proxy
from gateway.pulling import Pulling
from gateway.routes import Routes
from gateway.subscriber import Subscriber
from gateway.tls import client_context
from gateway.tokens import Tokenizer
from gateway.upstream import PodApi
from gateway.watch import Files, Watch
from gateway.web.live import LiveView
from gateway.web.observer import Watcher
from gateway.web.routes import LivePage, read_files
from gateway.wire import Pool
from index import Publisher, RadixIndex

_log = structlog.get_logger("gateway.app")

# uvicorn, in front of vLLM, closes an idle connection after 5 s: dropping ours first avoids sending into a closing one.
_KEEPALIVE_S = 3.0


@dataclass(frozen=True)
class Gateway:
    """A wired gateway: what serves, what runs beside it, what drains it.

    `reconfigure` puts another configuration in force, as far as that goes without a restart. Raises ConfigError, and
    has changed nothing then.
    """

    application: web.Application
    admin: web.Application | None
    service: Service
    fleet: Fleet
    watch: Watch
    drain: Drain
    pods: PodTable
    index: RadixIndex
    tokenizer: Tokenizer
    metrics: Metrics
    access_log: AccessLog
    decision_log: DecisionLog
    admission: Admission
    costs_file: CostsFile
    live_view: LiveView
    reconfigure: Callable[[Config], Awaitable[None]]


@asynccontextmanager
async def gateway(config: Config) -> AsyncIterator[Gateway]:
    """Make every part; on exit close what was opened. Raises ConfigError: a file that it names cannot be used."""
    index = RadixIndex(max_blocks=config.index.max_blocks)
    pods = PodTable(
        _pods(config, {}),
        max_load_age=config.poll.max_age,
        max_requests=config.limits.max_concurrent_per_pod,
    )
    metrics = Metrics(pods, index)
    metrics.config_loaded.set_to_current_time()
    limits = config.limits
    watch = Watch(metrics)
    drain = Drain()
    keys, credentials = await _secrets(config, watch)
    tls = await client_context(config.upstream_tls, "$.upstream_tls", watch) if _speaks_tls(config) else True
    access_log, decisions = await _logs(config, metrics, pods)
    zmq_context = zmq.asyncio.Context()
    pool = Pool(connect_timeout=limits.connect_timeout, keepalive=_KEEPALIVE_S)
    turns = Turns()

    async def subscribe(pod: Pod, source: EventSource) -> None:
        publisher = Publisher(pod.name, source.rank)
        intake = Intake(pod, publisher, index=index, agreement=pods.agreement, metrics=metrics)
        await Subscriber(zmq_context, pod, source, intake=intake, turns=turns).run()

    async with _session(limits, tls=tls) as session:
        api = PodApi(session, credentials)
        decider = Decider(index, pods, config.placement, config.p2p, coordinate=random.random, stages=metrics.decided)
        tokenizer = Tokenizer(api, config.tokens, breaker=config.breaker, metrics=metrics)
        admission = Admission(config.admission, pods=pods, decider=decider, metrics=metrics, drain=drain)
        pods.changed = admission.changed
        costs_file = CostsFile(config.costs, pods, metrics)
        poller = Poller(api, config.poll)
        proxy = Proxy(pool, limits, drain, tls if isinstance(tls, ssl.SSLContext) else None)
        pulling = Pulling(pods, index, api, poller, metrics, config.p2p)
        links = Links(pods)
        explains = ExplainHeader(metrics.explain_failures.inc, allowed=config.explain.header)
        placements = Placements(decider, links, pulling.pulls, metrics, decisions, explains)
        journal = Journal(metrics, access_log)
        live_view = LiveView(pods, index, drain, tell=partial(_watched, placements, journal))
        handler = Handler(
            pods=pods,
            tokenizer=tokenizer,
            placements=placements,
            proxy=proxy,
            credentials=credentials,
            metrics=metrics,
            limits=limits,
            admission=admission,
        )
        _shown(metrics, pool, tokenizer, admission, links)
        gate = Gate(keys, most=limits.max_concurrent, open_metrics=config.auth.open_metrics)
        routes = Routes(
            handler=handler,
            gate=gate,
            pods=pods,
            index=index,
            decider=decider,
            metrics=metrics,
            journal=journal,
            limits=limits,
        )
        page = LivePage(live_view, await asyncio.to_thread(read_files), metrics)
        apart = config.admin.port is not None
        fleet = Fleet(
            pods=pods,
            poller=poller,
            index=index,
            subscribe=subscribe,
            metrics=metrics,
            poll=config.poll,
            follow=tokenizer.follow,
            pulling=pulling,
        )

        live = _Live(
            pods,
            fleet,
            watch,
            credentials,
            gate,
            decider,
            tokenizer,
            poller,
            access_log,
            proxy,
            admission,
            costs_file,
            links,
            pulling,
            decisions,
            explains,
            (handler, routes),
        )
        try:
            yield Gateway(
                application=routes.application(None if apart else page),
                admin=routes.admin_application(page) if apart else None,
                service=Service(routes.exchange, lambda: drain.leaving),
                fleet=fleet,
                watch=watch,
                drain=drain,
                pods=pods,
                index=index,
                tokenizer=tokenizer,
                metrics=metrics,
                access_log=access_log,
                decision_log=decisions,
                admission=admission,
                costs_file=costs_file,
                live_view=live_view,
                reconfigure=partial(_reconfigure, live),
            )
        finally:
            tokenizer.close()
            await asyncio.gather(access_log.close(), decisions.close())
            await pool.close()
            zmq_context.destroy(linger=0)


async def _secrets(config: Config, watch: Watch) -> tuple[Keys | None, Credentials]:
    """Clients' keys, None: none are asked for; and what pods are shown. Raises ConfigError."""
    found = Files()
    keys = await _keys(config, found)
    credentials = Credentials(keyed=keys is not None)
    await load_credentials(credentials, config.pods, found)
    watch.follow(found)
    return keys, credentials


def _session(limits: Limits, *, tls: ssl.SSLContext | bool) -> aiohttp.ClientSession:
    """For what is asked of pods beside requests."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=tls, keepalive_timeout=_KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_timeout),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _watched(placements: Placements, journal: Journal, watcher: Watcher | None) -> None:
    placements.watcher = journal.watcher = watcher


def _shown(metrics: Metrics, pool: Pool, tokenizer: Tokenizer, admission: Admission, links: Links) -> None:
    """What is asked when /metrics is scraped."""
    states = metrics.states
    states.resent = lambda: pool.resent
    states.lost_lines = logs.lost_lines
    states.local_models = tokenizer.here
    states.asks_for_tokens = tokenizer.asks
    states.waiting = admission.waiting
    states.slow_links = links.__len__
    states.slow_pairs = links.slow


class _Limited(Protocol):
    """A part that is given limits and nothing else of the configuration."""

    def reconfigure(self, limits: Limits) -> None: ...


class _Live(NamedTuple):
    """The parts that a changed configuration reaches."""

    pods: PodTable
    fleet: Fleet
    watch: Watch
    credentials: Credentials
    gate: Gate
    decider: Decider
    tokenizer: Tokenizer
    poller: Poller
    access_log: AccessLog
    proxy: Proxy
    admission: Admission
    costs_file: CostsFile
    links: Links
    pulling: Pulling
    decisions: DecisionLog
    explains: ExplainHeader
    limited: tuple[_Limited, ...]


async def _reconfigure(live: _Live, config: Config) -> None:
    """First all that may fail, then the tasks that have to end, then everything else in one go."""
    found = Files()
    keys = await _keys(config, found)
    await load_credentials(live.credentials, config.pods, found)
    tls = None
    if _speaks_tls(config) and not live.proxy.speaks_tls:
        tls = await client_context(config.upstream_tls, "$.upstream_tls", live.watch)
    log_file, decisions_file = await _log_files(config)
    before = {pod.name: pod for pod in live.pods}
    kept = {spec.name for spec in config.pods if _same_tasks(before.get(spec.name), spec)}
    ended = before.keys() - kept
    await live.fleet.stop(ended)

    live.pods.reconfigure(
        _pods(config, before),
        max_load_age=config.poll.max_age,
        max_requests=config.limits.max_concurrent_per_pod,
    )
    live.fleet.forget(ended, removed=[pod for name, pod in before.items() if name not in live.pods])
    live.links.keep(pod.url for pod in live.pods)
    live.credentials.reset(keyed=keys is not None)
    live.watch.follow(found)
    live.gate.reconfigure(keys, most=config.limits.max_concurrent, open_metrics=config.auth.open_metrics)
    live.decider.reconfigure(config.placement, config.p2p)
    live.pulling.reconfigure(config.p2p)
    if tls is not None:
        live.proxy.speak_tls(tls)
    live.tokenizer.reconfigure(config.tokens, breaker=config.breaker)
    live.poller.reconfigure(config.poll)
    for part in (live.proxy, *live.limited):
        part.reconfigure(config.limits)
    live.admission.reconfigure(config.admission)
    live.costs_file.reconfigure(config.costs)
    live.access_log.reconfigure(config.access_log, log_file)
    live.decisions.reconfigure(config, decisions_file)
    live.explains.allowed = config.explain.header
    live.fleet.reconfigure(config.poll)
    live.fleet.supervise()


def _pods(config: Config, known: Mapping[str, Pod]) -> Iterator[Pod]:
    """The configured pods, each with all that is known of it."""
    addresses = config.p2p_addresses()
    if unknown := [name for name, address in addresses.items() if address is None]:
        _log.warning("pods on one host need a p2p address each; until then none of them is a source", pods=unknown)
    for spec in config.pods:
        pod, p2p = known.get(spec.name), addresses[spec.name]
        if pod is None:
            yield Pod(spec, p2p=p2p, breaker=config.breaker)
        else:
            pod.reconfigure(spec, p2p=p2p, breaker=config.breaker)
            yield pod


def _same_tasks(pod: Pod | None, spec: PodConfig) -> bool:
    """Whether a pod that is known goes on being watched and listened to as it is."""
    if pod is None:
        return False
    told = pod.spec
    return (told.url, told.kv_events, told.kv_replay, told.data_parallel_size) == (
        (spec.url, spec.kv_events, spec.kv_replay, spec.data_parallel_size)
    )


async def _logs(config: Config, metrics: Metrics, pods: PodTable) -> tuple[AccessLog, DecisionLog]:
    """Raises ConfigError."""
    file, decisions_file = await _log_files(config)
    access_log = AccessLog(metrics.access_log_dropped.inc)
    access_log.reconfigure(config.access_log, file)
    decisions = DecisionLog(pods.costs, metrics.decision_log_dropped.inc)
    decisions.reconfigure(config, decisions_file)
    return access_log, decisions


async def _log_files(config: Config) -> tuple[io.RawIOBase | None, io.RawIOBase | None]:
    """Of requests and of decisions. Raises ConfigError, and has left nothing open then."""
    requests = await asyncio.to_thread(open_file, config.access_log)
    try:
        return requests, await asyncio.to_thread(decision_log.open_file, config.decision_log)
    except ConfigError:
        if requests is not None:
            requests.close()
        raise


async def _keys(config: Config, found: Files) -> Keys | None:
    if (file := config.auth.keys) is None:
        return None
    keys = Keys()
    try:
        await found.add("keys", [file], lambda: load_keys(file), keys.replace)
    except ConfigError as error:
        raise ConfigError(f"$.auth.keys: {error}") from None
    return keys


def _speaks_tls(config: Config) -> bool:
    """Reading whom the system trusts takes a while, so only where it is needed."""
    return config.upstream_tls != UpstreamTls() or any(pod.url.lower().startswith("https:") for pod in config.pods)
