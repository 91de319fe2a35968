"""What a request under way does to a pod's books: counts, breaker, audit, and what the pod is expected to hold."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from msgspec import Struct

from gateway.in_flight import InFlight
from gateway.pull_lease import Pull, PullLease
from index import Counted
from scorers import Answer, Timed

if TYPE_CHECKING:
    from gateway.pod import Pod
    from gateway.pods import PodTable


class Predicted(Struct, frozen=True):
    """What is predicted of a request, to be held against what comes.

    `counted` is what the pod's counters should make of it, `timed` what it makes the pod do; None: nothing is.
    """

    counted: Counted | None = None
    timed: Timed | None = None


NOTHING_PREDICTED = Predicted()


class _Answering(NamedTuple):
    """A moment, and what decodes on the rank then: requests, and tokens of their prompts."""

    at: float
    requests: int
    context: int

    @classmethod
    def now(cls, counts: InFlight, now: float) -> Self:
        return cls(now, counts.requests - counts.unanswered, counts.context)


class Lease:
    """One request placed on a pod, and what it does to the pod's books and its source's.

    What counts until the first byte is released there, at a failure or at the end, whichever is first; the request at
    its end; all once. A lease belongs to the incarnations of pod and source that it was taken from: a pod that returns
    starts from zero, and with a breaker of its own. `prompts` are the keys of the blocks that it is about to leave
    there.
    """

    __slots__ = (
        "_answered",
        "_answering",
        "_audit",
        "_breaker",
        "_counts",
        "_ended",
        "_expectation",
        "_expected",
        "_pod",
        "_pull",
        "_sent",
        "_since_poll",
        "_square",
        "_table",
        "_timed",
        "_tokens",
        "_trial",
        "_unanswered",
    )

    def __init__(
        self,
        table: PodTable,
        pod: Pod,
        rank: int,
        tokens: int,
        square: int = 0,
        prompts: Sequence[array[int]] = (),
        pull: Pull | None = None,
        predicted: Predicted = NOTHING_PREDICTED,
    ) -> None:
        now = table.clock()
        self._sent, self._timed = now, predicted.timed
        self._table = table
        self._pod = pod
        self._breaker = pod.breaker
        self._trial = pod.breaker.began(now)
        self._expected = predicted.counted
        self._audit = pod.streams[rank].audit
        self._audit.sent()
        self._answered = False
        self._ended = False
        self._answering: _Answering | None = None
        self._expectation = self._pull = None
        if pull is not None:
            self._pull = PullLease(table, pod, rank, prompts, pull)
        elif prompts:
            self._expectation = table.expected.placed(pod.publishers[rank], prompts)
        self._tokens, self._square = tokens, square
        self._unanswered = True
        self._counts = counts = pod.in_flight[rank]
        self._since_poll = counts.since_poll
        if self._since_poll is not None:
            self._since_poll.sent()
        if not counts.unanswered:
            counts.busy_since = now
        counts.requests += 1
        counts.unanswered += 1
        counts.tokens += tokens
        counts.square += square
        if pull is None and predicted.timed is not None:
            counts.in_line += 1

    def first_byte(self, *, computed: bool = True) -> None:
        """The pod answers; `computed` false: it refuses, and has not computed the prompt."""
        if not self._answered:
            self._answered = True
            self._audit.answered(self._expected)
        self._release(computed=computed)
        self._breaker.succeeded(trial=self._trial)
        self._trial = False

    def failed(self, now: float, *, suspect: bool) -> None:
        """The pod did not answer, or broke off. Under suspicion it is polled at once, and meanwhile it is no source."""
        self._release(computed=False)
        self._breaker.failed(now, trial=self._trial)
        self._trial = False
        if suspect:
            self._pod.suspected()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def completed(self) -> None:
        """The answer is whole."""
        if self._answering is not None:
            now, began = self._table.clock(), self._answering
            beside = _Answering.now(self._counts, now)
            terms = Answer(1.0, (began.requests + beside.requests) / 2, (began.context + beside.context) / 2)
            self._table.costs.answered(terms, now - began.at, now)

    def close(self) -> None:
        """The request has ended, however it did."""
        if not self._ended:
            self._ended = True
            if self._unanswered:
                self._release(computed=False)
            if not self._answered:
                self._audit.failed()
            if self._trial:
                self._breaker.ended(trial=True)
            self._counts.requests -= 1
            if self._answering is not None and self._timed is not None:
                self._counts.context -= self._timed.context
            if self._since_poll is not None:
                self._since_poll.ended()

    def pull_is_over(self) -> None:
        """Nothing is pulled for it any more, whether it has answered or not. Idempotent."""
        if self._pull is not None:
            self._pull.over()

    def _release(self, *, computed: bool) -> None:
        """The prompt is computed, or will not be."""
        if not self._unanswered:
            return
        self._unanswered = False
        counts, pull, expectation = self._counts, self._pull, self._expectation
        counts.unanswered -= 1
        counts.tokens -= self._tokens
        counts.square -= self._square
        if pull is not None:
            pull.ended(computed=computed)
        elif self._timed is not None:
            counts.in_line -= 1
            counts.passed += 1
        if self._since_poll is not None:
            self._since_poll.answered()
        if computed:
            now = self._table.clock()
            if pull is None:  # else it may have answered while another one is computed
                counts.answered_at = now
            if self._timed is not None:
                self._tell(self._timed, now)
            if expectation is not None:
                self._table.expected.answered(expectation, now)
        elif expectation is not None:
            self._table.expected.dropped(expectation)

    def _tell(self, timed: Timed, now: float) -> None:
        """Its first token has come, and tells of costs; from now on it is answered."""
        counts = self._counts
        alone = not counts.unanswered
        if self._pull is not None:
            timed = self._pull.as_it_was(timed)
        counts.stopwatch.answered(self._table.costs, timed, self._sent, now=now, alone=alone)
        counts.context += timed.context
        self._answering = _Answering.now(counts, now)
