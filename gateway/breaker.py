"""A circuit breaker per pod, as a pure state machine.

    closed ──failures in a row──▶ open ──cooldown──▶ half-open ──trial answered──▶ closed
                                   ▲                     │
                                   └────trial failed─────┘

Half-open admits one request at a time: the trial. While the breaker is not closed only a trial's outcome moves it;
requests that were under way before say nothing about the pod as it is now.
"""

from __future__ import annotations

from typing import Literal

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Time is an argument, in seconds of any monotonic clock. `trial` is what `began` returned for the request."""

    closed: bool
    """Nothing is wrong: all is admitted."""

    def __init__(self, *, failures: int, cooldown: float) -> None:
        self._failed = 0
        self.reconfigure(failures=failures, cooldown=cooldown)
        self._opened_at = 0.0
        self._trial = False

    def reconfigure(self, *, failures: int, cooldown: float) -> None:
        """From now on these bounds, also for what has failed already."""
        self._limit = failures
        self._cooldown = cooldown
        self.closed = self._failed < failures

    def state(self, now: float) -> State:
        """Where the machine stands."""
        if self.closed:
            return "closed"
        return "half-open" if now - self._opened_at >= self._cooldown else "open"

    def admits(self, now: float) -> bool:
        """Whether a request may go to the pod."""
        return self.closed or (self.state(now) == "half-open" and not self._trial)

    def began(self, now: float) -> bool:
        """A request goes to the pod; returns whether it is the trial."""
        if self.closed:
            return False
        trial = self.state(now) == "half-open" and not self._trial
        self._trial |= trial
        return trial

    def succeeded(self, *, trial: bool) -> None:
        """The pod answered."""
        if self.closed or trial:
            self._failed = 0
            self.closed = True
        if trial:
            self._trial = False

    def failed(self, now: float, *, trial: bool) -> None:
        """The pod did not answer."""
        if self.closed or trial:
            self._failed = min(self._failed + 1, self._limit)
            self._opened_at = now
            self.closed = self._failed < self._limit
        self.ended(trial=trial)

    def ended(self, *, trial: bool) -> None:
        """The request is over; without a verdict before (its client left) a trial frees its place for another."""
        if trial:
            self._trial = False
