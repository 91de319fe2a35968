"""vLLM's P2P tier, with bounds: a pull may fail, a request may not.

Named in a pod's `--kv-transfer-config` in place of the `p2p` tier:

    "secondary_tiers": [{"type": "BoundedP2PTier", "module_path": "engine_patch.p2p_tier", "host": …, "port": …}]

It speaks the same protocol and takes the same settings; `engine_patch.bounded_tier` says what is different. That is
made for the versions in `MADE_FOR`. On another one, or where a part of vLLM is not as expected, the name stands for
vLLM's own tier, and one warning says so.
"""

import importlib
import inspect
from typing import Any

from vllm.logger import init_logger
from vllm.v1.kv_offload.tiering.p2p import manager as stock
from vllm.version import __version__, __version_tuple__

logger = init_logger("vllm.engine_patch.p2p_tier")

MADE_FOR = ((0, 32), (0, 33))


def _missing() -> str | None:
    """What of vLLM is not as the bounded tier needs it, in words; None when all is."""
    if tuple(__version_tuple__[:2]) not in MADE_FOR:
        return f"vLLM {__version__} is not known to it"
    try:
        _check_parts()
        # Its own imports are parts, too.
        importlib.import_module("engine_patch.bounded_tier")
    except Exception as error:  # noqa: BLE001, a pod has to come up whatever it is
        return f"vLLM {__version__} lacks a part: {error}"
    return None


def _check_parts() -> None:
    """Raise when a part is missing that the bounded tier replaces or reaches into."""
    from vllm.v1.engine import EngineCoreRequestType  # noqa: PLC0415
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager  # noqa: PLC0415
    from vllm.v1.kv_offload.tiering.p2p.control.zmq import ZmqTransport  # noqa: PLC0415
    from vllm.v1.kv_offload.tiering.p2p.data.nixl import NixlTransport  # noqa: PLC0415
    from vllm.v1.kv_offload.tiering.p2p.session import client, protocol, server  # noqa: PLC0415

    from engine_patch import handshake  # noqa: PLC0415

    parts: tuple[tuple[object, tuple[str, ...]], ...] = (
        (stock, ("ZmqTransport", "NixlTransport", "P2PSourceInfo", "P2PSecondaryTierManager", "JobResult")),
        (
            stock.P2PSecondaryTierManager,
            ("_poll_once", "_accept_new_peers", "_reap_dead_sessions", "_get_or_create_session", "get_stats"),
        ),
        (stock.P2PSession, ("finish_request", "ready", "connected", "has_pending_work")),
        (ZmqTransport, ("_recv_router", "_check_monitors", "_sweep_dead_connections", "_open_connection")),
        (NixlTransport, ("_init", "cancel")),
        (CPUOffloadingManager, ("_free_chunk",)),
        (EngineCoreRequestType, ("WAKEUP",)),
        (client, ("_ABORT_ACK_TIMEOUT_S",)),
        (server, ("_LOOKUP_PENDING_TIMEOUT_S",)),
    )
    for owner, names in parts:
        for name in names:
            getattr(owner, name)
    for function, parameters in (
        (stock.P2PSecondaryTierManager.__init__, {"offloading_spec", "primary_kv_view", "tier_type", "host", "port"}),
        (ZmqTransport.__init__, {"local_id", "host", "port"}),
        (ZmqTransport._open_connection, {"peer_id", "direction"}),  # noqa: SLF001
    ):
        if not parameters <= inspect.signature(function).parameters.keys():
            raise TypeError(f"{function.__qualname__} takes other arguments")
    words = (protocol.ConnectMsg, protocol.ConnectAckMsg, protocol.DisconnectMsg, protocol.LookupMsg, protocol.FetchMsg)
    expected = (handshake.CONNECT, handshake.CONNECT_ACK, handshake.DISCONNECT, handshake.LOOKUP, handshake.FETCH)
    if (protocol.TYPE_KEY, *(word.TYPE for word in words)) != (handshake.TYPE, *expected):
        raise ValueError("the peers' protocol uses other words")


class _StockTier(stock.P2PSecondaryTierManager):
    """vLLM's own tier under this module's name. Settings of the bounded one are ignored, as vLLM ignores any."""

    def __init__(self, *args: Any, tier_type: str = "p2p", **settings: Any) -> None:  # noqa: ANN401, ARG002
        super().__init__(*args, tier_type="p2p", **settings)


_problem = _missing()
if _problem is None:
    from engine_patch.bounded_tier import BoundedP2PTier
else:
    logger.warning(
        "engine_patch.p2p_tier: %s; using vLLM's own P2P tier, with no deadlines for pulls and no sleep when idle.",
        _problem,
    )
    BoundedP2PTier = _StockTier  # type: ignore[misc]

__all__ = ["BoundedP2PTier"]
