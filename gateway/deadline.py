"""A deadline that is put off at every step, as a stream's is, without a timer for each."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol, Self


class Guard(Protocol):
    """Somebody who may have a deadline pass earlier. What it answers are seconds."""

    def first_s(self) -> float:
        """Until it wants to be asked."""

    def rings(self) -> float:
        """Until it wants to be asked again; 0.0: the deadline passes now."""


class Deadline:
    """Like `asyncio.timeout`, but moved for next to nothing: when the timer rings it looks, and sleeps on.

    A context manager for the task that enters it. What it awaits when the deadline passes is cancelled, and leaving
    raises TimeoutError for that; a cancellation by somebody else stays one. It can be entered again when it was left,
    with `restart` before.
    """

    __slots__ = ("_cancelling", "_guard", "_keeps", "_last", "_loop", "_rings", "_task", "_timer", "_when", "expired")

    def __init__(self, seconds: float, *, keeps: list[Deadline] | None = None, guard: Guard | None = None) -> None:
        """`keeps` is where it puts itself when it is left, its timer still running. A `guard` is asked as well."""
        self._loop = asyncio.get_running_loop()
        self._keeps = keeps
        self._task: asyncio.Task[object] | None = None  # None: it has not been entered, or was left
        self._timer: asyncio.TimerHandle | None = None
        self._rings = 0.0
        self.restart(seconds, guard)

    def restart(self, seconds: float, guard: Guard | None = None) -> None:
        """The deadline is `seconds` from now, as for one that has just been made."""
        self.expired = False
        """Whether the deadline has passed, and what was awaited was cancelled for it."""
        self._guard = guard
        self._when = self._last = self._loop.time() + seconds
        if guard is not None:
            self._when = min(self._last, self._loop.time() + guard.first_s())

    def unguarded(self) -> None:
        """From now on nobody is asked."""
        self._guard, self._when = None, self._last

    def move(self, seconds: float) -> None:
        """The deadline is `seconds` from now."""
        self._when = when = self._loop.time() + seconds
        if when < self._rings:
            self._set()

    def __enter__(self) -> Self:
        task = asyncio.current_task(self._loop)
        assert task is not None, "nothing awaits outside of a task"  # noqa: S101 - for mypy
        self._task = task
        self._cancelling = task.cancelling()
        if self._timer is None or self._when < self._rings:
            self._set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raises TimeoutError for the cancellation that the deadline caused."""
        task, self._task = self._task, None
        if self._keeps is not None:
            self._keeps.append(self)
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None
        caused = self.expired and task is not None and task.uncancel() <= self._cancelling
        if caused and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = self._when
        self._timer = self._loop.call_at(self._when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._task is None:
            return
        now = self._loop.time()
        if now >= self._when and self._guard is not None and now < self._last and (more := self._guard.rings()):
            self._when = min(self._last, now + more)
        if now < self._when:
            self._set()
        else:
            self.expired = True
            self._task.cancel()


class Deadlines:
    """Deadlines for tasks that come and go: a timer of one that was left in time serves the next."""

    def __init__(self) -> None:
        self._left: list[Deadline] = []

    def within(self, seconds: float, guard: Guard | None = None) -> Deadline:
        """One that begins now. Nobody may look at it after leaving it."""
        if not self._left:
            return Deadline(seconds, keeps=self._left, guard=guard)
        deadline = self._left.pop()
        deadline.restart(seconds, guard)
        return deadline
