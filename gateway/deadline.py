"""A deadline that is put off at every step, as a stream's is, without a timer for each."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Deadline:
    """Like `asyncio.timeout`, but moved for next to nothing: when the timer rings it looks, and sleeps on.

    A context manager for the task that enters it. What it awaits when the deadline passes is cancelled, and leaving
    raises TimeoutError for that; a cancellation by somebody else stays one.
    """

    __slots__ = ("_cancelling", "_loop", "_task", "_timer", "_when", "expired")

    def __init__(self, seconds: float) -> None:
        self.expired = False
        """Whether the deadline has passed, and what was awaited was cancelled for it."""
        self._loop = asyncio.get_running_loop()
        self._when = self._loop.time() + seconds
        self._timer: asyncio.TimerHandle

    def move(self, seconds: float) -> None:
        """The deadline is `seconds` from now."""
        self._when = self._loop.time() + seconds
        if self._when < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(self._when, self._ring)

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "nothing awaits outside of a task"  # noqa: S101 - for mypy
        self._task = task
        self._cancelling = task.cancelling()
        self._timer = self._loop.call_at(self._when, self._ring)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raises TimeoutError for the cancellation that the deadline caused."""
        self._timer.cancel()
        if self.expired and self._task.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error

    def _ring(self) -> None:
        if self._loop.time() < self._when:
            self._timer = self._loop.call_at(self._when, self._ring)
        else:
            self.expired = True
            self._task.cancel()
