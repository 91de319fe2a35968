"""Virtual time: what is due next happens next, and nothing takes time by itself."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final

_NEVER: Final = float("inf")


class Timer:
    """One thing that is due. `cancel` makes it nothing."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """It does not happen. Idempotent."""
        self.call = None


class Clock:
    """Seconds since the start. What is due at one moment happens in the order in which it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Timer]] = []
        self._numbers = count()

    def at(self, when: float, call: Callable[[], None]) -> Timer:
        """Call then; now, where `when` is past. O(log(what is due))."""
        timer = Timer(max(when, self.now), call)
        heappush(self._due, (timer.when, next(self._numbers), timer))
        return timer

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call so many seconds from now."""
        return self.at(self.now + seconds, call)

    def run(self, until: float = _NEVER) -> None:
        """Let happen what is due until then, and whatever comes of it."""
        due = self._due
        while due and due[0][0] <= until:
            when, _, timer = heappop(due)
            call, timer.call = timer.call, None
            if call is not None:
                self.now = when
                call()
        if until < _NEVER:
            self.now = max(self.now, until)
