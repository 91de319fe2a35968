"""A rank's event stream, subscribed for as long as a check lasts. Every wait has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Literal

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from config.addresses import tcp_address
from gateway.checks.told import Occupancy, Told
from gateway.direct import connection_refused
from gateway.poller import EventSource

_HANDSHAKE_S: Final = 3.0
_SUBSCRIBED_S: Final = 0.1
"""A subscription reaches the publisher a moment after the connection stands."""

_QUEUED_FRAMES: Final = 10_000
_REPLAY_ANSWER_S: Final = 5.0
_REPLAY_S: Final = 20.0
"""For all of a replay: a publisher keeps 10,000 batches, which takes a few seconds of a busy pod."""

_SEQ_BYTES: Final = 8
_END: Final = b"\xff" * _SEQ_BYTES


class Stream:
    """`problem`: why there is no connection. Events are in `told`, as far as somebody has waited for them."""

    def __init__(self, socket: zmq.asyncio.Socket, problem: str) -> None:
        self._socket = socket
        self.problem = problem
        self.told = Told()

    async def until(self, met: Callable[[], bool], seconds: float) -> bool:
        """Take what comes until `met`, or for so long; whether it was met."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not met():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or not await self._socket.poll(int(1000 * left) + 1):
                return met()
            frames: list[bytes] = await self._socket.recv_multipart()
            if len(frames) >= 2 and len(frames[-2]) == _SEQ_BYTES:
                self.told.apply(frames[-1])
        return True


@asynccontextmanager
async def subscribed(context: zmq.asyncio.Context, source: EventSource) -> AsyncIterator[Stream]:
    """Follow a rank's events."""
    socket = context.socket(zmq.SUB)
    socket.set(zmq.RCVHWM, _QUEUED_FRAMES)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.IPV6, 1)
    socket.subscribe(source.topic.encode())
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    try:
        socket.connect(source.events)
        yield Stream(socket, await _problem(monitor, source.events))
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)
        socket.close(linger=0)


async def _problem(monitor: zmq.asyncio.Socket, endpoint: str) -> str:
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            await recv_monitor_message(monitor)
    except TimeoutError:
        return await connection_refused(tcp_address(endpoint)) or "what listens there does not speak ZMQ"
    await asyncio.sleep(_SUBSCRIBED_S)
    return ""


async def replayed(
    context: zmq.asyncio.Context, source: EventSource, occupancy: Occupancy
) -> Literal["none", "silent", "answers"]:
    """Have the rank tell again what it still has."""
    if source.replay is None:
        return "none"
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.IPV6, 1)
    try:
        socket.connect(source.replay)
        await socket.send_multipart([b"", bytes(_SEQ_BYTES)])
        return "answers" if await _take(socket, occupancy) else "silent"
    finally:
        socket.close(linger=0)


async def _take(socket: zmq.asyncio.Socket, occupancy: Occupancy) -> bool:
    """Whether anything came."""
    until = asyncio.get_running_loop().time() + _REPLAY_S
    came = False
    while asyncio.get_running_loop().time() < until and await socket.poll(int(1000 * _REPLAY_ANSWER_S)):
        frames: list[bytes] = await socket.recv_multipart()
        came = True
        if len(frames) < 2 or frames[-2] == _END:
            return True
        occupancy.apply(int.from_bytes(frames[-2], "big"), frames[-1])
    return came
