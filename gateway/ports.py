"""Whether anybody listens where pods serve pulls from: each port is connected to now and then, and closed at once.

An engine that pulls from a port with nobody behind it waits for its own deadlines. A refusal says that nobody listens.
No answer at all says so only where there was one before: the ports may be there for the pods and not for this gateway.
ZMQ, which listens there, takes a connection that is closed at once for one of the many that come to nothing.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Literal

from config.schema import P2P
from gateway.metrics import Metrics
from gateway.pod import Pod
from gateway.pods import PodTable
from gateway.pulls import Pulls
from scorers import Rank

_CONNECT_S = 2.0
_AT_ONCE = 16
_LAST_PORT = 65535
_TICK_S = 0.5  # pods that come up are looked at within this
Result = Literal["listening", "refused", "unreachable"]


class Ports:
    """`run` owns the connections it makes."""

    def __init__(self, pods: PodTable, pulls: Pulls, metrics: Metrics, p2p: P2P) -> None:
        self._pods = pods
        self._pulls = pulls
        self._metrics = metrics
        self._reached: dict[Rank, float | None] = {}  # → when its process started
        self._due: dict[Rank, float] = {}
        self.reconfigure(p2p)

    def reconfigure(self, p2p: P2P) -> None:
        """From now on so. What is not looked at any more is believed to listen."""
        self._interval = p2p.port_probe_interval if p2p.enabled else None
        known = {(pod.url, rank) for pod in self._pods for rank in pod.ranks}
        self._reached = {rank: started for rank, started in self._reached.items() if rank in known}
        self._due = {}
        if self._interval is None:
            for pod in self._pods:
                for rank in pod.ranks:
                    self._pulls.listens(pod, rank, listening=True)

    async def run(self) -> None:
        """Look at every port once in an interval, until cancelled."""
        slots = asyncio.Semaphore(_AT_ONCE)
        while True:
            async with asyncio.TaskGroup() as group:
                for pod, rank in self._next(self._pods.clock()):
                    group.create_task(self._look(pod, rank, slots), name=f"port {pod.name}/{rank}")
            await asyncio.sleep(_TICK_S)

    def _next(self, now: float) -> list[tuple[Pod, int]]:
        """Whose turn it is. One pod alone pulls from nobody."""
        ready = [pod for pod in self._pods if pod.state == "ready" and pod.p2p is not None]
        if self._interval is None or len(ready) < 2:
            return []
        turns = []
        due: dict[Rank, float] = {}
        for pod in ready:
            for rank in pod.ranks:
                at = self._due.get((pod.url, rank), now)
                if at <= now:
                    turns.append((pod, rank))
                    at = now + self._interval
                due[pod.url, rank] = at
        self._due = due  # one that is not ready is looked at as soon as it is
        return turns

    async def _look(self, pod: Pod, rank: int, slots: asyncio.Semaphore) -> None:
        started, p2p = pod.started, pod.p2p
        if p2p is None:
            return
        async with slots:
            result = await connect(p2p[0], p2p[1] + rank)
        self._metrics.port_probes.labels(pod.name, result).inc()
        if pod.state != "ready" or pod.started != started or pod.p2p != p2p:
            return  # it speaks of what is gone
        key = pod.url, rank
        if result == "listening":
            self._reached[key] = started
            self._pulls.listens(pod, rank, listening=True)
        elif result == "refused" or self._reached.get(key, -1.0) == started:
            self._pulls.listens(pod, rank, listening=False)


async def connect(host: str, port: int) -> Result:
    """What becomes of a connection, which is closed at once. Of several addresses, one that listens is enough."""
    if port > _LAST_PORT:
        return "refused"  # nobody can listen there
    result: Result = "unreachable"
    try:
        async with asyncio.timeout(_CONNECT_S):
            for address in await _addresses(host, port):
                try:
                    _, writer = await asyncio.open_connection(address, port)
                except ConnectionRefusedError:
                    result = "refused"
                except OSError:  # such as of a family that this machine does not speak
                    continue
                else:
                    writer.transport.abort()
                    return "listening"
    except (OSError, TimeoutError, UnicodeError):  # the last: a host name that cannot be one
        return "unreachable"
    return result


async def _addresses(host: str, port: int) -> list[str]:
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
