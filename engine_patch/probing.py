"""Whether a process is gone, asked of its port.

A stopped process still has its port: the kernel accepts for it. One that has ended has none, and its host refuses. A
host that is gone says nothing.
"""

import contextlib
import errno
import ipaddress
import selectors
import socket

_AGAIN_S = 1.0
_PATIENCE_S = 5.0


class PortProbes:
    """Connections that are tried without waiting, one per peer (`host:port`) at a time."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[socket.socket, float]] = {}
        self._again_at: dict[str, float] = {}

    def refusing(self, peers: set[str], now: float) -> set[str]:
        """Those of the peers whose port has been found refusing.

        Starts a probe of each, about once a second, and looks at those started before. Peers by name are left out: to
        resolve a name may take long.
        """
        for peer in self._open.keys() - peers:
            self._close(peer)
        self._again_at = {peer: at for peer, at in self._again_at.items() if peer in peers}
        refused = {peer for peer in list(self._open) if self._result(peer, now) == errno.ECONNREFUSED}
        for peer in peers - self._open.keys() - refused:
            if self._again_at.get(peer, now) <= now:
                self._again_at[peer] = now + _AGAIN_S
                if self._start(peer, now) == errno.ECONNREFUSED:
                    refused.add(peer)
        return refused

    def close(self) -> None:
        """Give up all probes."""
        for peer in list(self._open):
            self._close(peer)

    def _start(self, peer: str, now: float) -> int:
        host, _, port = peer.rpartition(":")
        try:
            address = ipaddress.ip_address(host.strip("[]"))
            number = int(port)
        except ValueError:
            return 0
        probe = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6)
        probe.setblocking(False)
        self._open[peer] = (probe, now)
        outcome = probe.connect_ex((str(address), number))
        if outcome != errno.EINPROGRESS:
            self._close(peer)
        return outcome

    def _result(self, peer: str, now: float) -> int | None:
        """The outcome of a probe under way; None while there is none."""
        probe, began = self._open[peer]
        with selectors.DefaultSelector() as selector:
            selector.register(probe, selectors.EVENT_WRITE)
            ready = bool(selector.select(0))
        if not ready and now - began < _PATIENCE_S:
            return None
        outcome = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if ready else 0
        self._close(peer)
        return outcome

    def _close(self, peer: str) -> None:
        probe, _ = self._open.pop(peer)
        with contextlib.suppress(OSError):
            probe.close()
