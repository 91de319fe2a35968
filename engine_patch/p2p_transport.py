"""The connections of vLLM's P2P tier, without half-open pairs, and its transfers, with progress that does not spin.

Loaded by `engine_patch.p2p_tier`, which checks the version of vLLM first.
"""

import contextlib
import functools
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec
import zmq
from vllm.logger import init_logger
from vllm.v1.kv_offload.tiering.p2p.control.base import ControlConnection
from vllm.v1.kv_offload.tiering.p2p.control.zmq import ZmqConnection, ZmqTransport
from vllm.v1.kv_offload.tiering.p2p.data.nixl import NixlTransport

from engine_patch import handshake
from engine_patch.handshake import Greeting, Message
from engine_patch.idle import pausing_progress

logger = init_logger("vllm.engine_patch.p2p_transport")

_FAREWELL_LINGER_MS = 1000
"""How long a farewell may look for a peer that may be gone."""

_FAREWELLS_AT_ONCE = 32
"""Whoever speaks without a session gets one of ZeroMQ's sockets for a moment. There are a thousand, also for peers."""

_PEER_ID = re.compile(r"[!-.0-~]+:[0-9]{1,5}")
_LAST_PORT = 65_535


class BoundedZmqTransport(ZmqTransport):
    """vLLM's control transport. Peers that know of no session, and those that start over, are told apart."""

    def __init__(self, local_id: str, host: str, port: int) -> None:
        self._greetings: dict[str, Greeting] = {}
        self._heard_at: dict[str, float] = {}
        self.farewells = 0
        """How many peers were told that there is no session."""
        self._told: deque[tuple[float, str]] = deque()
        self.dropped = 0
        """How many messages were of no peer, or no messages."""
        self._replaced: set[str] = set()
        super().__init__(local_id, host, port)
        # A peer that comes back uses its old name. Without this it would be ignored while the old connection stands.
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)

    @property
    def descriptor(self) -> int:
        """Readable when something has come that `poll` has not looked at."""
        return int(self._router.getsockopt(zmq.FD))

    def heard_since(self, peer_id: str, moment: float) -> bool:
        """Whether a message of the peer was read at or after the moment (monotonic)."""
        return self._heard_at.get(peer_id, float("-inf")) >= moment

    def take_replaced(self) -> set[str]:
        """Peers behind which another process answers, since the last call."""
        replaced, self._replaced = self._replaced, set()
        return replaced

    def poll(self) -> Sequence[ControlConnection]:
        """As vLLM's, but looks for broken connections first: a peer that has come back must not meet the old one."""
        self._check_monitors()
        self._sweep_dead_connections()
        accepted = [each for each in super().poll() if not isinstance(each, _NoConnection)]
        for connection in accepted:
            inbox = getattr(connection, "_inbox", [])
            greeting = self._greetings[connection.peer_id]
            greeting.metadata = next(
                (each.get(handshake.METADATA) for each in inbox if handshake.kind(each) == handshake.CONNECT), None
            )
            self._heard_at[connection.peer_id] = greeting.opened_at
        for gone in self._greetings.keys() - self._connections.keys():
            del self._greetings[gone]
            self._heard_at.pop(gone, None)
        return accepted

    def farewell(self, peer_id: str) -> None:
        """Tell a peer, on a connection of its own, that there is no session. Does not wait, and may not arrive."""
        now = time.monotonic()
        while self._told and self._told[0][0] <= now - _FAREWELL_LINGER_MS / 1000:
            self._told.popleft()
        told = any(peer == peer_id for _, peer in self._told)
        if told or len(self._told) >= _FAREWELLS_AT_ONCE or not _is_peer(peer_id):
            return
        self._told.append((now, peer_id))
        self.farewells += 1
        with contextlib.suppress(zmq.ZMQError):
            socket = self._zmq_ctx.socket(zmq.DEALER)
            socket.identity = self._local_id.encode()
            socket.linger = _FAREWELL_LINGER_MS
            with contextlib.closing(socket):
                socket.connect(f"tcp://{peer_id}")
                socket.send(_DISCONNECT, zmq.DONTWAIT)

    def _open_connection(self, peer_id: str, direction: str = "outbound") -> ZmqConnection:
        self._greetings[peer_id] = Greeting(opened_at=time.monotonic())
        try:
            connection = super()._open_connection(peer_id, direction)
        except (zmq.ZMQError, OSError, ValueError) as error:
            if direction != "inbound":
                raise
            logger.warning("No connection to %s, which greeted: %s", peer_id, error)
            self.dropped += 1
            return _NoConnection(peer_id)
        # What is still to be sent to a peer that is gone must not keep its socket for ever.
        connection._sockets.dealer.linger = _FAREWELL_LINGER_MS  # noqa: SLF001
        connection.close = functools.partial(_close, connection)
        return connection

    def _recv_router(self) -> None:
        """As vLLM's, but what is no message of a peer is dropped: vLLM 0.32 lets the engine die of a name in no UTF-8.

        Whoever connects without a name has one of random bytes, and so has what comes on a connection whose name a
        newer one has taken over.
        """
        for sender, message in self._receive():
            connection = self._connections.get(sender)
            if connection is None:
                self._pending_inbound.append((sender, message))
            else:
                connection.enqueue(message)
        self._sort_all_out()

    def _receive(self) -> Iterator[tuple[str, Message]]:
        while True:
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:  # nothing more
                return
            try:
                identity, data = frames
                sender, message = identity.decode(), msgspec.msgpack.decode(data)
            except Exception:  # noqa: BLE001, bytes of anybody: there are more kinds than the decoder names
                self.dropped += 1
                continue
            if isinstance(message, dict) and _is_peer(sender):
                yield sender, message
            else:
                self.dropped += 1

    def _sort_all_out(self) -> None:
        now = time.monotonic()
        over: list[tuple[str, Message]] = []
        for peer_id, connection in self._connections.items():
            if connection._inbox:  # noqa: SLF001
                self._heard_at[peer_id] = now
                over += self._sort_out(peer_id, connection, now)
        self._pending_inbound: list[tuple[str, Message]]
        self._pending_inbound, told = handshake.strangers(over + self._pending_inbound)
        for peer_id in told:
            logger.info("%s speaks without a session; told so.", peer_id)
            self.farewell(peer_id)

    def _sort_out(self, peer_id: str, connection: ZmqConnection, now: float) -> list[tuple[str, Message]]:
        result = handshake.sort_out(connection._inbox, self._greetings[peer_id], now)  # noqa: SLF001
        connection._inbox = result.kept  # noqa: SLF001
        if result.replaced_process:
            self._replaced.add(peer_id)
        if result.over:
            logger.info("%s starts its session over.", peer_id)
            connection.mark_dead()
        elif result.acknowledged and connection.alive:
            connection.send({handshake.TYPE: handshake.CONNECT_ACK, "peer_id": self._local_id})
        return [(peer_id, message) for message in result.over]

    def _check_monitors(self) -> None:
        before = [peer_id for peer_id, connection in self._connections.items() if connection.alive]
        super()._check_monitors()
        for peer_id in before:
            if not self._connections[peer_id].alive:
                # Its end may be well: it judges by another connection.
                self.farewell(peer_id)


class _NoConnection(ZmqConnection):
    """Stands for the one to a peer that has greeted and cannot be reached; takes its messages."""

    def __init__(self, peer_id: str) -> None:
        super().__init__(peer_id, None)
        self.mark_dead()

    def close(self) -> None:
        """There is nothing to close."""


def _is_peer(name: str) -> bool:
    """Whether the name is an address, as that of each pod is."""
    return _PEER_ID.fullmatch(name) is not None and 0 < int(name.rpartition(":")[2]) <= _LAST_PORT


def _close(connection: ZmqConnection) -> None:
    """Close a connection, its monitor's sending end first.

    vLLM closes the receiving end. ZeroMQ's thread then waits for ever to tell of the next refused connection, and
    nothing goes to or comes from any peer any more.
    """
    if not connection._closed:  # noqa: SLF001
        with contextlib.suppress(zmq.ZMQError):
            connection._sockets.dealer.disable_monitor()  # noqa: SLF001
    ZmqConnection.close(connection)


_DISCONNECT = b"\x81\xa4type\xaadisconnect"
"""The farewell in msgpack."""


class BoundedNixlTransport(NixlTransport):
    """vLLM's data transport."""

    def _init(self, view: memoryview) -> None:
        with pausing_progress():
            super()._init(view)

    def cancel(self, transfer_ids: Iterable[int], mode: Literal["immediate", "wait"] = "immediate") -> list[int]:
        """As vLLM's 0.33: what is still writing is not over, whatever its handle says.

        NIXL lets a handle go while the bytes keep landing. vLLM 0.32 took that for the end and acknowledged the abort,
        and the consumer gave the memory to others.
        """
        if mode != "wait":
            return list(super().cancel(transfer_ids, mode))
        ended: list[int] = []
        writing: list[int] = []
        for transfer in transfer_ids:
            (writing if self._still_writes(transfer) else ended).append(transfer)
        return writing + list(super().cancel(ended, mode))

    def _still_writes(self, transfer: int) -> bool:
        entry: Any = self._inflight.get(transfer)
        if entry is None:
            return False
        try:
            return self._agent.check_xfer_state(entry.handle) in ("PROC", "PEND")
        except Exception:  # noqa: BLE001, the bindings raise many kinds; each says that the transfer failed
            return False
