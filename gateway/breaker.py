"""A circuit breaker per pod, as a pure state machine.

    closed ──failures in a row──▶ open ──cooldown──▶ half-open ──success──▶ closed
                                   ▲                     │
                                   └──────failure────────┘

Half-open admits one request at a time: the trial that decides.
"""

from __future__ import annotations

from typing import Literal

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Time is an argument, in seconds of any monotonic clock."""

    def __init__(self, *, failures: int, cooldown: float) -> None:
        self._limit = failures
        self._cooldown = cooldown
        self._failed = 0
        self._opened_at = 0.0
        self._trial = False

    def state(self, now: float) -> State:
        """Where the machine stands."""
        if self._failed < self._limit:
            return "closed"
        return "half-open" if now - self._opened_at >= self._cooldown else "open"

    def admits(self, now: float) -> bool:
        """Whether a request may go to the pod."""
        state = self.state(now)
        return state == "closed" or (state == "half-open" and not self._trial)

    def began(self, now: float) -> None:
        """A request goes to the pod."""
        if self.state(now) == "half-open":
            self._trial = True

    def succeeded(self) -> None:
        """The pod answered."""
        self._failed = 0
        self._trial = False

    def failed(self, now: float) -> None:
        """The pod did not answer."""
        self._failed = min(self._failed + 1, self._limit)
        self._opened_at = now
        self._trial = False

    def abandoned(self) -> None:
        """The request ended without saying anything about the pod (its client left)."""
        self._trial = False
