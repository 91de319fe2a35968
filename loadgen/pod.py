"""A simulated vLLM pod: the protocols of a real one over sockets of this machine, without a model.

async with SimulatedPod(model="demo-model", ranks=2) as pod:
    ...  # POST to pod.url, subscribe to pod.events[0], inspect pod.requests
    await pod.kill()
    await pod.restart()
"""

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from loadgen.engine import Engine
from loadgen.faults import AnyFault, DropEvents, FailNext, Kill, Resume, SlowLink, StaleSession, Stall
from loadgen.life import Life, Ports
from loadgen.options import PodOptions, Received
from loadgen.profile import profile_named

# Requests a pod remembers, with their bodies.
_REMEMBERED: Final = 1000


class SimulatedPod:
    """One pod. Takes the fields of ``PodOptions``; ``profile`` may be a shipped profile's name or a profile's file, and
    ``speed`` sets the profile's.

    Its ports, ``requests`` and options outlive ``kill`` and ``restart``; its caches, counters and sequence numbers do
    not. Usable from one event loop. A failure inside the pod is raised on leaving it.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 (checked by PodOptions)
        if isinstance(options.get("profile"), str):
            options["profile"] = profile_named(options["profile"])
        speed = options.pop("speed", None)
        self.options = PodOptions(**options)
        if speed is not None:
            faster = msgspec.structs.replace(self.options.profile, speed=speed)
            self.options = msgspec.structs.replace(self.options, profile=faster)
        self.requests: deque[Received] = deque(maxlen=_REMEMBERED)
        self._ports = Ports(
            self.options.port, self.options.events_port, self.options.replay_port, self.options.p2p_port
        )
        self._life: Life | None = None
        self._task: asyncio.Task[None] | None = None
        self._outage: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.restart()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- where it is ---------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Base URL of its HTTP server."""
        return f"http://{self.options.host}:{self._ports.http}"

    @property
    def events(self) -> list[str]:
        """Address of each rank's PUB socket."""
        return [f"tcp://{self.options.host}:{self._ports.events + rank}" for rank in range(self.options.ranks)]

    @property
    def replays(self) -> list[str]:
        """Address of each rank's replay socket; empty without replay."""
        ranks = self.options.ranks if self.options.replay else 0
        return [f"tcp://{self.options.host}:{self._ports.replay + rank}" for rank in range(ranks)]

    @property
    def p2p_host(self) -> str:
        """Host its blocks are pulled from."""
        return self.options.host

    @property
    def p2p_port(self) -> int:
        """Port rank 0's blocks are pulled from; rank r's is r higher."""
        return self._ports.p2p

    def kv_source(self, kv_request_id: str, rank: int = 0) -> dict[str, Any]:
        """Return the ``kv_transfer_params`` with which another pod pulls from this one."""
        source = {"kv_request_id": kv_request_id, "remote_host": self.p2p_host, "remote_port": self.p2p_port + rank}
        return {"remote_kv_source": source}

    # -- its life ------------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """It serves."""
        return self._task is not None and not self._task.done()

    async def restart(self) -> None:
        """Start on the same ports with empty caches, sequence numbers from 0; a pod that lives is stopped first."""
        await self.stop()
        await self._start()

    async def _start(self) -> None:
        life = Life(self.options, self._ports, self.requests, self.inject)
        self._life, self._ports = life, life.ports
        self._task = asyncio.create_task(life.run())
        ready = asyncio.create_task(life.ready.wait())
        try:
            await asyncio.wait([self._task, ready], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._task.done():
            await self._task

    async def stop(self) -> None:
        """End in order: connections are closed after their handlers. Raises what went wrong inside."""
        await self._end_outage()
        await self._end(Life.end)

    async def kill(self) -> None:
        """End as a lost machine does: every connection is reset, nobody is told."""
        await self._end_outage()
        await self._end(Life.die)

    async def _end_outage(self) -> None:
        outage, self._outage = self._outage, None
        if outage is not None:
            outage.cancel()
            await asyncio.wait([outage])
            if not outage.cancelled():
                outage.result()

    def _go_out(self, seconds: float | None) -> None:
        self._living()
        if self._outage is not None and not self._outage.done():
            raise ValueError("the pod is being killed already")
        self._outage = asyncio.create_task(self._be_out(seconds))

    async def _be_out(self, seconds: float | None) -> None:
        """Die, and come back after ``seconds``; None: never."""
        await self._end(Life.die)
        if seconds is not None:
            await asyncio.sleep(seconds)
            await self._start()

    async def _end(self, how: Callable[[Life], None]) -> None:
        life, task, self._life, self._task = self._life, self._task, None, None
        if life is not None and task is not None:
            how(life)
            await task

    # -- faults --------------------------------------------------------------------------------------------------------

    def inject(self, fault: AnyFault) -> None:
        """Let a fault begin, as POST /fault does. Raises ValueError for what cannot be."""
        match fault:
            case Stall():
                self.stall(fault.seconds)
            case Resume():
                self.resume()
            case Kill():
                self._go_out(fault.seconds)
            case DropEvents():
                self.drop_events(fault.count, fault.rank)
            case SlowLink():
                self.slow_link(fault.factor, fault.seconds)
            case StaleSession():
                self.stale_session(fault.seconds)
            case FailNext():
                self.fail_next(fault.status, fault.count)

    def stall(self, seconds: float | None = None) -> None:
        """Stand still: no step, no answer to a peer. HTTP routes that need no engine go on."""
        self._living().faults.stall(seconds)

    def resume(self) -> None:
        """Go on after ``stall``."""
        self._living().faults.resume()

    def fail_next(self, status: int, count: int = 1) -> None:
        """Answer the next ``count`` completions with an error of this status."""
        self._living().server.completions.fail_next(status, count)

    def drop_events(self, count: int, rank: int = 0) -> None:
        """Lose the next ``count`` event batches on the way; a replay still has them."""
        self._living().faults.drop_events(count, rank)

    def slow_link(self, factor: float, seconds: float | None = None) -> None:
        """Make every pull from this pod and by it take ``factor`` times as long."""
        self._living().faults.slow_link(factor, seconds)

    def stale_session(self, seconds: float | None = None) -> None:
        """Leave pods that have pulled from here so far without an answer: each of their pulls ends at its deadline.

        It is as if this pod had dropped its side of their sessions, which it does in vLLM 0.32 after a slow step or a
        restart, and they never learned of it. It lasts until they restart, or this pod does.
        """
        self._living().faults.stale_session(seconds)

    def publish_payload(self, payload: bytes, rank: int = 0) -> None:
        """Publish these bytes as the next event batch."""
        self._living().publishers[rank].publish_payload(payload)

    def clear_gpu(self, rank: int = 0) -> bool:
        """Reset the GPU tier, as vLLM does on /reset_prefix_cache; False while a request runs."""
        return self.engines[rank].clear_gpu()

    # -- what it knows -------------------------------------------------------------------------------------------------

    @property
    def engines(self) -> list[Engine]:
        """Its engines, one per rank: for looking at their tiers and queues."""
        return self._living().engines

    def next_seq(self, rank: int = 0) -> int:
        """Event batches published so far, which is the next one's sequence number."""
        return self._living().publishers[rank].next_seq

    def cached_blocks(self, rank: int = 0) -> dict[str, set[bytes]]:
        """Return the hashes of what is cached, per medium."""
        scheduler = self.engines[rank].scheduler
        return {"GPU": scheduler.gpu.hashes(), "CPU": scheduler.cpu.hashes()}

    def _living(self) -> Life:
        if self._life is None:
            raise RuntimeError("the pod is not running")
        return self._life
