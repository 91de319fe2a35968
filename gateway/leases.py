"""What a request under way on a pod does to the pod's books: counts, breaker, audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from index import Counted

if TYPE_CHECKING:
    from gateway.pods import Pod


class InFlight:
    """Requests and uncached prompt tokens placed on one rank and not yet released."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0


class Lease:
    """One request placed on a pod, and what it does to the pod's books.

    Tokens are released at the first byte, the request at its end; both once. A lease belongs to the pod's incarnation
    that it was taken from: a pod that returns starts from zero, and with a breaker of its own. `expected` is what the
    pod's counters should make of the request, None where that cannot be predicted.
    """

    __slots__ = ("_answered", "_audit", "_breaker", "_counts", "_ended", "_expected", "_pod", "_tokens", "_trial")

    def __init__(self, pod: Pod, rank: int, tokens: int, now: float, expected: Counted | None = None) -> None:
        self._pod = pod
        self._breaker = pod.breaker
        self._trial = pod.breaker.began(now)
        self._counts = pod.in_flight[rank]
        self._tokens = tokens
        self._expected = expected
        self._audit = pod.streams[rank].audit
        self._audit.sent()
        self._answered = False
        self._ended = False
        self._counts.requests += 1
        self._counts.tokens += tokens

    def first_byte(self) -> None:
        """The pod answers: the prompt has been computed."""
        self._release_tokens()
        if not self._answered:
            self._answered = True
            self._audit.answered(self._expected)
        self._breaker.succeeded(trial=self._trial)
        self._trial = False

    def failed(self, now: float, *, suspect: bool) -> None:
        """The pod did not answer, or broke off. Under suspicion it is polled at once, and meanwhile it is no source."""
        self._breaker.failed(now, trial=self._trial)
        self._trial = False
        if suspect:
            self._pod.suspected()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The request has ended, however it did."""
        if not self._ended:
            self._ended = True
            self._release_tokens()
            if not self._answered:
                self._audit.failed()
            self._breaker.ended(trial=self._trial)
            self._counts.requests -= 1

    def _release_tokens(self) -> None:
        self._counts.tokens -= self._tokens
        self._tokens = 0
