"""What a pod's pulls have brought and cost, per peer, until vLLM takes it to `/metrics`.

vLLM has a way for a tier's numbers from the engine's process to the page: it declares them beforehand, in the process
that serves the page, and hands over what was added since at the end of each step. Peers are named by requests, so only
so many have series of their own; the others share one.
"""

from collections.abc import Iterator

PULLS = "p2p_tier_pulls"
PULL_BYTES = "p2p_tier_pull_bytes"
PULL_SECONDS = "p2p_tier_pull_seconds"
TIMEOUTS = "p2p_tier_timeouts"
SKIPPED = "p2p_tier_skipped_requests"
FAREWELLS = "p2p_tier_farewells"
DROPPED = "p2p_tier_dropped_messages"
QUARANTINED = "p2p_tier_quarantined_chunks"
LEFT_ALONE = "p2p_tier_peers_left_alone"

COUNTERS = {
    PULLS: ("Transfers from a peer that ended well.", ("peer",)),
    PULL_BYTES: ("Bytes that were pulled from a peer.", ("peer",)),
    PULL_SECONDS: ("Seconds that transfers from a peer took.", ("peer",)),
    TIMEOUTS: ("Waits for a peer that were given up, by what was waited for: lookup, fetch, abort.", ("peer", "phase")),
    SKIPPED: ("Requests that computed at once, since the peer they name had failed.", ("peer",)),
    FAREWELLS: ("Peers that were told that there is no session.", ()),
    DROPPED: ("Messages at the P2P port that were none, or of nobody.", ()),
}
"""Documentation and labels by name; Prometheus appends `_total`."""

GAUGES = {
    QUARANTINED: "Chunks of the CPU tier that are out of use, since a peer may still write to them.",
    LEFT_ALONE: "Peers that failed and that no request waits for.",
}

OTHER = "other"
_NAMED_PEERS = 256


class PullCounts:
    """What was counted since the last `take`."""

    def __init__(self) -> None:
        self._added: dict[tuple[str, tuple[str, ...]], float] = {}
        self._peers: set[str] = set()

    def add(self, name: str, *labels: str, value: float = 1) -> None:
        """Count; the first label, if any, is a peer."""
        if labels and labels[0] not in self._peers:
            if len(self._peers) < _NAMED_PEERS:
                self._peers.add(labels[0])
            else:
                labels = (OTHER, *labels[1:])
        key = name, labels
        self._added[key] = self._added.get(key, 0) + value

    def take(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """What was added, as (name, labels, value)."""
        added, self._added = self._added, {}
        for (name, labels), value in added.items():
            yield name, labels, value
