"""Links between pods that have got slow, as when RDMA falls back to TCP: the operator is told once each time.

Pulls over a slow link are expected to take longer and so become fewer; nothing else has to be done about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import structlog

from gateway.pods import PodTable
from scorers import Candidate

_log = structlog.get_logger("gateway.links")

_Rank = tuple[str, int]


class Links:
    """Looks at a pair of ranks when it has pulled. `len` is how many are slow, of those that have met."""

    def __init__(self, pods: PodTable) -> None:
        self._pods = pods
        self._slow: set[tuple[_Rank, _Rank]] = set()

    def __len__(self) -> int:
        return sum(self._pods.costs.met(*pair) for pair in self._slow)

    def slow(self) -> Iterator[tuple[_Rank, _Rank]]:
        """Those pairs, source first."""
        return (pair for pair in self._slow if self._pods.costs.met(*pair))

    def pulled(self, source: Candidate | None, consumer: Candidate) -> None:
        """A request has ended; where it pulled, the costs have heard of it. O(1)."""
        if source is None:
            return
        pair = (source.pod, source.rank), (consumer.pod, consumer.rank)
        slow = self._pods.costs.slowed(*pair)
        if slow == (pair in self._slow):
            return
        told = {"source": source.pod, "consumer": consumer.pod, "source_rank": source.rank, "rank": consumer.rank}
        if slow:
            self._slow.add(pair)
            pull = self._pods.costs.pull(*pair)
            taken = {"fixed_ms": round(pull.fixed * 1e3, 1), "us_per_token": round(pull.token * 1e6, 2)}
            _log.warning("pulls take much longer than they did", **told, **taken)
        else:
            self._slow.discard(pair)
            _log.info("pulls are as quick as they usually are", **told)

    def keep(self, pods: Iterable[str]) -> None:
        """Only these pods, by URL, exist. O(slow pairs)."""
        known = set(pods)
        self._slow = {pair for pair in self._slow if {pair[0][0], pair[1][0]} <= known}
