"""What a gateway has under way on a rank, in numbers.

Pulls are counted in tokens. How many bytes a token is, only the engine knows, by its model and its cache's data type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorers import Stopwatch

if TYPE_CHECKING:
    from gateway.admission.saturation import SincePoll


class InFlight:
    """What this gateway has under way on one rank. Each update is O(1).

    `requests` count until their end. All else is of requests that have not answered: `unanswered`, how many; `tokens`
    of their prompts that are to be computed; `square`, the sum of n² - h² over prompts of n tokens of which h are there
    or pulled, with which the cost of their attention grows; `pulls`, how many of them pull `pulled_tokens` from peers,
    and `joined`, how many wait for what these pull; `serving`, how many on other ranks pull `serving_tokens` from this
    one, and `awaited`, how many wait for that, these included. `busy_since` is when `unanswered` last rose from 0, and
    `answered_at` when the last first byte came; 0.0: never. `sum_up` keeps `pulls_s` and `serving_s`.

    Of those whose first byte tells when their prompt was computed, and that do not pull, `in_line` have not answered;
    `passed` counts those that were in line and are not any more.
    """

    __slots__ = (
        "answered_at",
        "awaited",
        "busy_since",
        "context",
        "in_line",
        "joined",
        "passed",
        "pulled_tokens",
        "pulls",
        "pulls_s",
        "requests",
        "serving",
        "serving_s",
        "serving_tokens",
        "since_poll",
        "square",
        "stopwatch",
        "summed_at",
        "tokens",
        "unanswered",
    )

    def __init__(self) -> None:
        self.requests = self.unanswered = 0
        self.in_line = self.passed = 0
        self.tokens = self.square = self.context = 0
        self.pulls = self.pulled_tokens = self.joined = 0
        self.serving = self.serving_tokens = self.awaited = 0
        self.pulls_s = self.serving_s = self.summed_at = 0.0
        self.busy_since = self.answered_at = 0.0
        self.stopwatch = Stopwatch()
        self.since_poll: SincePoll | None = None  # while requests may have to wait for it

    def sum_up(self, now: float) -> None:
        """Add what the links have carried since the last time: `pulls` and `serving`, times seconds."""
        passed, self.summed_at = now - self.summed_at, now
        self.pulls_s += passed * self.pulls
        self.serving_s += passed * self.serving

    def progress_s(self, now: float) -> float:
        """Seconds for which the first of those that have not answered has been computed."""
        since, answered = self.busy_since, self.answered_at
        return now - (answered if answered > since else since)  # noqa: FURB136 - for speed
