"""A deadline that is put off at every step, as a stream's is, without a timer for each."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Deadline:
    """`asyncio.timeout` whose end can be moved for next to nothing: the timer looks when it rings, and sleeps on."""

    __slots__ = ("_loop", "_timeout", "_timer", "_when")

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._when = self._loop.time() + seconds
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    def move(self, seconds: float) -> None:
        """The deadline is `seconds` from now."""
        self._when = self._loop.time() + seconds
        if self._timer is not None and self._when < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(self._when, self._ring)

    def expired(self) -> bool:
        """Whether the deadline has passed and what was awaited was cancelled for it."""
        return self._timeout.expired()

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._timer = self._loop.call_at(self._when, self._ring)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raises TimeoutError for the cancellation that the deadline caused."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._timeout.__aexit__(kind, error, traceback)

    def _ring(self) -> None:
        now = self._loop.time()
        if now < self._when:
            self._timer = self._loop.call_at(self._when, self._ring)
        else:
            self._timeout.reschedule(now)
