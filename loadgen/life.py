"""One life of a pod, from binding its sockets to closing them: what a restart makes anew.

One task group owns everything that runs in it. A life ends in order, or by ``die``: every connection is reset, as when
a machine is lost.
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import zmq
import zmq.asyncio
from aiohttp import web

from loadgen.engine import Engine
from loadgen.events import EventEncoder
from loadgen.faults import AnyFault, Faults
from loadgen.hashing import BlockHasher
from loadgen.options import PodOptions, Received
from loadgen.ports import Opened, listen, open_run, reset
from loadgen.publisher import BUFFERED_BATCHES, PUB_HWM, Publisher
from loadgen.pulls import Identity, Link, Puller, PullServer
from loadgen.server import PodServer

# What a handler may still take when its pod ends in order.
_GRACE_S: Final = 0.05
# vLLM's default (VLLM_HTTP_TIMEOUT_KEEP_ALIVE): a client that keeps connections longer finds them closed.
_KEEP_ALIVE_S: Final = 5.0
AnySocket = TypeVar("AnySocket", bound="zmq.Socket[Any]")


class Ports(NamedTuple):
    """Where a pod listens; all but ``http`` are the ports of rank 0. ``replay`` 0: no replay endpoint."""

    http: int
    events: int
    replay: int
    p2p: int


class Sockets(NamedTuple):
    """A pod's bound sockets, one per rank but for ``http``."""

    http: socket.socket
    events: list[zmq.Socket[bytes]]
    replay: list[zmq.asyncio.Socket]
    p2p: list[socket.socket]

    def close(self) -> None:
        """Close them all, pending messages lost."""
        self.http.close()
        for listener in self.p2p:
            listener.close()
        for zmq_socket in (*self.events, *self.replay):
            zmq_socket.close(linger=0)


class _Over(Exception):
    """The life is over."""


class Life:
    """Binds on creation (OSError: port taken), then lives in ``run`` until ``end`` or ``die``.

    ``inject`` is called with the faults that are asked for over HTTP, where ``options`` allow them.
    """

    def __init__(
        self, options: PodOptions, ports: Ports, received: deque[Received], inject: Callable[[AnyFault], None]
    ) -> None:
        self._options = options
        self._inject = inject
        self._context = zmq.Context()
        try:
            self._sockets, self.ports = self._bind(ports)
        except OSError:
            self._context.destroy(linger=0)
            raise
        self._over = asyncio.Event()
        self._received = received
        self.ready = asyncio.Event()
        self.engines: list[Engine] = []
        self.publishers: list[Publisher] = []
        self._pull_servers: list[PullServer] = []
        self._links: list[Link] = []
        self.faults = Faults(self.engines, self.publishers, self._links, self._pull_servers)
        self.server: PodServer
        self._runner: web.AppRunner | None = None

    def end(self) -> None:
        """End in order."""
        self._over.set()

    def die(self) -> None:
        """End with a reset of every connection."""
        if self._runner is not None and self._runner.server is not None:
            for connection in self._runner.server.connections:
                transport = connection.transport
                if transport is not None:
                    reset(transport.get_extra_info("socket"))
                    transport.abort()
        for pull_server in self._pull_servers:
            pull_server.reset()
        self._over.set()

    async def run(self) -> None:
        """Serve until ended."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for rank in range(self._options.ranks):
                    self._start_rank(tasks, rank)
                for engine, pull_server, listener in zip(
                    self.engines, self._pull_servers, self._sockets.p2p, strict=True
                ):
                    tasks.create_task(engine.run())
                    tasks.create_task(_serve_pulls(tasks, pull_server, listener))
                self.server = PodServer(
                    self._options, self.engines, self._received, self._event_sources(), self._inject
                )
                self._runner = web.AppRunner(
                    self.server.app(),
                    handler_cancellation=True,
                    access_log=None,
                    keepalive_timeout=_KEEP_ALIVE_S,
                    shutdown_timeout=_GRACE_S,
                    auto_decompress=False,  # vLLM takes a packed body for what it is
                )
                await self._serve_http(self._runner)
        except* _Over:
            pass
        finally:
            self.faults.close()
            self._sockets.close()
            self._context.term()

    async def _serve_http(self, runner: web.AppRunner) -> None:
        """Serve until ended, then raise _Over, which ends everything else."""
        await runner.setup()
        try:
            await web.SockSite(runner, self._sockets.http).start()
            self.ready.set()
            await self._over.wait()
        finally:
            await runner.cleanup()
        raise _Over

    def _start_rank(self, tasks: asyncio.TaskGroup, rank: int) -> None:
        options = self._options
        hasher = BlockHasher(options.profile.block_size, seed=options.seed, algo=options.hash_algo)
        encoder = EventEncoder(options.encoding, options.hash_mode, rank)
        replay = self._sockets.replay[rank] if options.replay else None
        delay_s = options.event_delay_ms / 1000
        publisher = Publisher(self._sockets.events[rank], replay, encoder, options.topic, delay_s=delay_s)
        link = Link(options.profile)
        identity = Identity(options.root, options.profile.block_size, options.hash_algo, hasher.none)
        engine = Engine(
            options.profile,
            hasher,
            publisher,
            Puller(options.profile, identity, link),
            tasks,
            self_describing=options.self_describing,
            offload_prompt_only=options.offload_prompt_only,
        )
        address = f"{options.host}:{self.ports.p2p + rank}"
        self.engines.append(engine)
        self.publishers.append(publisher)
        self._links.append(link)
        self._pull_servers.append(PullServer(identity, address, engine, link))
        tasks.create_task(publisher.serve_replay())

    def _bind(self, ports: Ports) -> tuple[Sockets, Ports]:
        host, ranks = self._options.host, self._options.ranks
        with contextlib.ExitStack() as opened:

            def run_of(open_at: Callable[[int], tuple[Opened, int]], base: int, count: int) -> tuple[list[Opened], int]:
                items, port = open_run(open_at, base, count)
                for item in items:
                    opened.callback(item.close)
                return items, port

            (http,), http_port = run_of(listen(host), ports.http, 1)
            events, events_port = run_of(self._bind_zmq(host, self._pub_socket), ports.events, ranks)
            wanted = ranks if self._options.replay else 0
            replay, replay_port = run_of(self._bind_zmq(host, self._router_socket), ports.replay, wanted)
            p2p, p2p_port = run_of(listen(host), ports.p2p, ranks)
            opened.pop_all()
        return Sockets(http, events, replay, p2p), Ports(http_port, events_port, replay_port, p2p_port)

    def _pub_socket(self) -> zmq.Socket[bytes]:
        pub = self._context.socket(zmq.PUB)
        pub.sndhwm = PUB_HWM
        return pub

    def _router_socket(self) -> zmq.asyncio.Socket:
        router = zmq.asyncio.Socket(self._context, zmq.ROUTER)
        router.sndhwm = self._options.replay_hwm
        return router

    @staticmethod
    def _bind_zmq(host: str, make: Callable[[], AnySocket]) -> Callable[[int], tuple[AnySocket, int]]:
        def open_at(port: int) -> tuple[AnySocket, int]:
            zmq_socket = make()
            zmq_socket.linger = 0
            try:
                zmq_socket.bind(f"tcp://{host}:{port or '*'}")
            except zmq.ZMQError as error:
                zmq_socket.close()
                raise OSError(error.errno, f"port {port}: {error.strerror}") from error
            return zmq_socket, int(zmq_socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

        return open_at

    def _event_sources(self) -> dict[str, dict[str, Any]]:
        return {
            str(rank): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{self.ports.events + rank}",
                "replay_endpoint": f"tcp://*:{self.ports.replay + rank}" if self._options.replay else None,
                "buffer_steps": BUFFERED_BATCHES,
                "hwm": PUB_HWM,
                "max_queue_size": PUB_HWM,
                "topic": self._options.topic,
            }
            for rank in range(self._options.ranks)
        }


async def _serve_pulls(tasks: asyncio.TaskGroup, pull_server: PullServer, listener: socket.socket) -> None:
    server = await asyncio.start_server(lambda r, w: tasks.create_task(pull_server.serve(r, w)), sock=listener)
    try:
        await asyncio.get_running_loop().create_future()  # until cancelled
    finally:
        server.close()
