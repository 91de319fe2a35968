"""Which peers are worth asking.

A request that names a peer waits for it. A peer that has just failed costs every further request the same wait, so it
is left alone: requests that name it compute at once, and nobody waits. Meanwhile the tier itself tries the peer again,
in growing intervals, with no request behind it. As soon as a session stands, requests may ask again; only an answer
makes the failures forgotten, so that a peer which greets and then keeps silent costs a wait less and less often.

        ask ─► allowed ──failed──► left alone ──due──► tried again ──connected──► allowed (failures kept)
                  ▲                     ▲                   │                        │
                  └──────answered───────┼───────────────────┘failed                  │failed
                                        └────────────────────────────────────────────┘

Times are arguments (seconds of any one clock).
"""

from dataclasses import dataclass

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0

FORGET_S = 600.0
"""A peer that no request has named for so long is forgotten, and tried no more: it may be gone for good."""

REMEMBERED_PEERS = 1024
"""Requests name peers, so their number is not ours to choose. Beyond this the one asked longest ago is forgotten."""


@dataclass(slots=True)
class _Failed:
    failures: int = 0
    retry_at: float | None = None
    """From when on to try again, until it has connected or failed once more; None once requests are the tries."""
    allowed: bool = False


class Peers:
    """What is remembered of the peers that requests have named, the one named longest ago first."""

    def __init__(self) -> None:
        self._asked: dict[str, float] = {}
        self._failed: dict[str, _Failed] = {}

    def may_ask(self, peer: str, now: float) -> bool:
        """Whether a request that names the peer may wait for it. O(1)."""
        self._asked.pop(peer, None)
        if len(self._asked) >= REMEMBERED_PEERS:
            self._forget(next(iter(self._asked)))
        self._asked[peer] = now
        entry = self._failed.get(peer)
        return entry is None or entry.allowed

    def failed(self, peer: str, now: float, *, waited: bool) -> None:
        """A session with the peer ended, or a request gave up on it.

        `waited`: a request has paid for it, so the peer gets a pause from the first time on; otherwise the first try
        follows at once. A peer that no request has named, as one that only pulls from here, is not missed.
        """
        if peer not in self._asked:
            return
        entry = self._failed.setdefault(peer, _Failed())
        doublings = entry.failures if waited else entry.failures - 1
        pause = 0.0 if doublings < 0 else min(FIRST_PAUSE_S * 2.0 ** min(doublings, 30), LONGEST_PAUSE_S)
        entry.failures += 1
        entry.allowed = False
        entry.retry_at = now + pause

    def connected(self, peer: str) -> None:
        """A session to the peer stands, whoever opened it."""
        if (entry := self._failed.get(peer)) is not None:
            entry.allowed = True
            entry.retry_at = None

    def answered(self, peer: str) -> None:
        """The peer answered a request in time."""
        self._failed.pop(peer, None)

    def due(self, now: float) -> list[str]:
        """The peers to try again, or still being tried. Forgets those nobody has asked for long."""
        while self._asked and now - next(iter(self._asked.values())) > FORGET_S:
            self._forget(next(iter(self._asked)))
        return [peer for peer, entry in self._failed.items() if entry.retry_at is not None and entry.retry_at <= now]

    def next_due(self) -> float | None:
        """When the next try is due."""
        return min((entry.retry_at for entry in self._failed.values() if entry.retry_at is not None), default=None)

    def left_alone(self) -> int:
        """How many peers requests do not wait for."""
        return sum(not entry.allowed for entry in self._failed.values())

    def _forget(self, peer: str) -> None:
        del self._asked[peer]
        self._failed.pop(peer, None)
