"""What a request that pulls does to the books of its pod and of its source, and what it is about to leave.

Until what it pulls is there, who comes after it finds nothing and would compute it: but for what is known to come, for
which it can wait. So two pulls of the same blocks to one pod are one that moves them and one that has joined it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gateway.in_flight import InFlight
from index import Arrival
from scorers import Timed

if TYPE_CHECKING:
    from gateway.pod import Pod
    from gateway.pods import PodTable


class Pull(NamedTuple):
    """The books of the rank that a request pulls from, and the tokens that it pulls; 0: it waits for another's pull.

    `arrival`: what others may wait for.
    """

    source: InFlight
    tokens: int
    arrival: Arrival | None = None


class PullLease:
    """Counts from its making to `over`. A lease belongs to one incarnation of the pod, as `leases.Lease` does."""

    __slots__ = ("_counts", "_over", "_pod", "_prompts", "_pull", "_pulled", "_rank", "_share", "_summed", "_table")

    def __init__(self, table: PodTable, pod: Pod, rank: int, prompts: Sequence[array[int]], pull: Pull) -> None:
        self._table, self._pod, self._rank, self._prompts, self._pull = table, pod, rank, prompts, pull
        self._counts = counts = pod.in_flight[rank]
        self._over = False
        self._share = 1.0
        self._pulled = None
        if pull.arrival is not None and prompts:
            self._pulled = table.coming.begun(pod.publishers[rank], prompts, pull.arrival)
        source, now = pull.source, table.clock()
        source.awaited += 1
        if not pull.tokens:
            counts.joined += 1
            return
        counts.sum_up(now)
        source.sum_up(now)
        self._summed = now, counts.pulls_s, source.serving_s
        counts.pulls += 1
        counts.pulled_tokens += pull.tokens
        source.serving += 1
        source.serving_tokens += pull.tokens

    def over(self) -> None:
        """Nothing is pulled any more, whether the request has answered or not. Idempotent."""
        if self._over:
            return
        self._over = True
        counts, tokens, source = self._counts, self._pull.tokens, self._pull.source
        source.awaited -= 1
        if not tokens:
            counts.joined -= 1
            return
        self._share = self._mean_share()
        counts.pulls -= 1
        counts.pulled_tokens -= tokens
        source.serving -= 1
        source.serving_tokens -= tokens

    def ended(self, *, computed: bool) -> None:
        """The prompt is there from now on, or will not be."""
        self.over()
        table, pod, rank = self._table, self._pod, self._rank
        if self._pulled is not None:
            table.coming.ended(self._pulled)
        # Of a pod that has left meanwhile, and has perhaps come back as another, nothing is expected.
        if computed and pod.state == "ready" and pod.in_flight.get(rank) is self._counts:
            expectation = table.expected.placed(pod.publishers[rank], self._prompts)
            if expectation is not None:
                table.expected.answered(expectation, table.clock())

    def as_it_was(self, timed: Timed) -> Timed:
        """With the tokens that its link carried meanwhile: at its placement nobody knew of pulls that came later."""
        if timed.pulling is None:
            return timed
        return timed._replace(pulling=timed.pulling._replace(token=self._pull.tokens * self._share))

    def _mean_share(self) -> float:
        """How many pulls there were on the busier of its two links, on average while it lasted; at least itself."""
        counts, source, now = self._counts, self._pull.source, self._table.clock()
        counts.sum_up(now)
        source.sum_up(now)
        began, pulls_s, serving_s = self._summed
        carried_s = max(counts.pulls_s - pulls_s, source.serving_s - serving_s)
        return max(1.0, carried_s / (now - began)) if now > began else 1.0
