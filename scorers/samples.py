"""From when a rank's first tokens came to samples of what its work costs.

An engine computes prompts in the order in which they came. So what lies between two first tokens of a busy rank is the
second prompt's prefill, and where nothing was before a request, it is what lies between its start and its first token:

    seconds(request) = first token - max(start, the rank's first token before it)

Prompts that fit into one step answer together. They are one sample, of all their work, or the first of them would seem
slow and the others free.

A pull is what is left of a request's time after the wait and the rest of its prompt are taken off, at the prices of the
moment. Where the wait is most of it, that says nothing, and is no sample. A pull ends out of turn, so it is no mark
from which the next prompt was computed.

Pure: time is an argument.
"""

from typing import Final, NamedTuple

from scorers.costs import Costs, Prefill, Pull, Rank

_TOGETHER_S: Final = 0.005
"""First tokens of one step arrive within this; no step that computes a prompt is as short."""


_MOST_WAIT: Final = 0.5
"""Of a pull's seconds: the wait is a prediction, whose error is taken for the pull's."""


class Timed(NamedTuple):
    """What a placed request makes a rank do, as terms of its costs; `pulling` where it has a source, and moves blocks.

    `context`: tokens of the prompt, behind which its answer decodes. `wait_s`: until what is before it is computed.
    """

    rank: Rank
    context: int
    computing: Prefill
    source: Rank | None = None
    pulling: Pull | None = None
    wait_s: float = 0.0


class Stopwatch:
    """One rank's. Each call is O(1)."""

    __slots__ = ("_began", "_last", "_terms")

    def __init__(self) -> None:
        self._began = self._last = 0.0
        self._terms: Prefill | None = None

    def answered(self, costs: Costs, work: Timed, sent: float, *, now: float, alone: bool = False) -> None:
        """A request's first token has come; `alone`: no other can come with it."""
        if work.source is not None:
            if work.pulling is None:
                return
            price, computing = costs.prefill(work.rank), work.computing
            rest = price.seconds(computing.token, computing.square) + price.decode * computing.decode
            beside = rest + work.wait_s
            taken = now - sent - beside
            if work.wait_s <= _MOST_WAIT * max(0.0, taken):  # where it seems quicker than free, prices are too high
                costs.pulled(work.source, work.rank, work.pulling, taken, now, beside)
            return
        if self._terms is not None and now - self._last < _TOGETHER_S:
            self._terms = Prefill(*map(float.__add__, self._terms, work.computing))
        else:
            self._told(costs, work.rank)
            self._began, self._terms = max(sent, self._last), work.computing
        self._last = now
        if alone:
            self._told(costs, work.rank)
            self._terms = None

    def _told(self, costs: Costs, rank: Rank) -> None:
        if self._terms is not None and self._last > self._began:
            costs.computed(rank, self._terms, self._last - self._began, self._last)
