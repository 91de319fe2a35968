"""The picture of a second, made once for all who look, and only while somebody does.

There is no task that makes it: every viewer's own task wakes when the next one is due, the first to wake makes it, and
the others find it. Pictures are kept for a few seconds; who has not taken one by then is too slow, and is dropped. A
viewer that comes gets what there is, and from then on what changes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any, Final

import msgspec

from gateway.drain import Drain
from gateway.errors import Overloaded
from gateway.pods import PodTable
from gateway.shown import pod_row
from gateway.web.observer import Observer, Watcher
from index import RadixIndex

VIEWERS: Final = 32
_EVERY_S: Final = 1.0
_BEHIND: Final = 8  # pictures that a viewer may be behind
_WRITE_S: Final = 8.0  # for a viewer to take one
_PARTING_S: Final = 0.5  # likewise, once the gateway is going
_HISTORY: Final = 300  # seconds that a viewer finds when it comes
_VERSION: Final = version("p2p-gateway")  # read from disk, so not for each viewer
_SHOWN: Final = (
    "url",
    "state",
    "reason",
    "suspect",
    "stalled",
    "models",
    "breaker",
    "cached_blocks",
    "waiting",
    "running",
    "kv_usage",
    "in_flight_requests",
    "in_flight_unanswered",
    "in_flight_tokens",
    "pulls",
    "pulled_tokens",
    "serving",
    "serving_tokens",
    "last_event_age",
    "certain",
    "gaps",
    "credit",
)


class TooSlow(Exception):
    """A viewer does not take what is sent to it."""


class LiveView:
    """Who looks, and what they see. `tell` hands a `Watcher` to what tells of requests; None: nobody is to be told."""

    def __init__(
        self, pods: PodTable, index: RadixIndex, drain: Drain, *, tell: Callable[[Watcher | None], None]
    ) -> None:
        self.viewers = 0
        self.observer = Observer()
        self._pods = pods
        self._index = index
        self._drain = drain
        self._tell = tell
        self._closing = asyncio.Event()
        self._writes: set[asyncio.Timeout] = set()
        self._number = 0
        self._made = 0.0
        self._due = 0.0
        self._pictures: deque[bytes] = deque(maxlen=_BEHIND)
        self._history: deque[dict[str, Any]] = deque(maxlen=_HISTORY)
        self._greeting: tuple[int, bytes] = (-1, b"")

    def close(self) -> None:
        """End all streams: the gateway is going."""
        self._closing.set()
        for timeout in self._writes:
            timeout.reschedule(asyncio.get_running_loop().time() + _PARTING_S)

    async def follow(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Hand `write` server-sent events until the gateway goes. Raises Overloaded before the first, and TooSlow."""
        with self._looking():
            seen = self._number
            await self._write(write, self._welcome())
            while not self._closing.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._due - time.monotonic()):
                        await self._closing.wait()
                self._advance()
                while seen < self._number:
                    missed = self._number - seen
                    if missed > len(self._pictures):
                        raise TooSlow
                    seen += 1
                    await self._write(write, self._pictures[-missed])
            await self._write(write, _event("end", {"reason": "draining"}))

    async def _write(self, write: Callable[[bytes], Awaitable[None]], event: bytes) -> None:
        try:
            async with asyncio.timeout(_PARTING_S if self._closing.is_set() else _WRITE_S) as timeout:
                self._writes.add(timeout)
                await write(event)
        except TimeoutError:
            raise TooSlow from None
        finally:
            self._writes.discard(timeout)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        if self.viewers >= VIEWERS:
            raise Overloaded("As many look at the live page as may.", code="overloaded", refused="viewers")
        if not self.viewers:
            self._begin()
        self.viewers += 1
        try:
            yield
        finally:
            self.viewers -= 1
            if not self.viewers:
                self._tell(None)
                self.observer.forget()

    def _begin(self) -> None:
        """The first viewer has come. What earlier ones saw stays for it, as far as that is not long ago."""
        now = time.monotonic()
        self._made, self._due = now, now + _EVERY_S
        self._pictures.clear()
        oldest = (time.time() - _HISTORY * _EVERY_S) * 1e3
        while self._history and self._history[0]["t"] < oldest:
            self._history.popleft()
        self._tell(self.observer)

    def _advance(self) -> None:
        """Make the picture that is due, if nobody has yet."""
        now = time.monotonic()
        if now < self._due:
            return
        second = {"t": round(time.time() * 1e3), "span": round(now - self._made, 3), **self.observer.second()}
        self._made = now
        self._due = max(self._due + _EVERY_S, now + _EVERY_S / 2)
        self._history.append(second)
        self._pictures.append(_event("second", {**self._now(), "second": second, "decisions": self.observer.changed()}))
        self._number += 1

    def _welcome(self) -> bytes:
        """What a viewer finds when it comes; the same for all that come between two pictures."""
        if self._greeting[0] != self._number or self.viewers == 1:
            found = {"version": _VERSION, "history": list(self._history), "decisions": self.observer.rows()}
            self._greeting = (self._number, _event("welcome", {**self._now(), **found}))
        return self._greeting[1]

    def _now(self) -> dict[str, Any]:
        rows = ({"name": pod.name} | _shown(pod_row(pod, self._pods, self._index)) for pod in self._pods)
        return {"viewers": self.viewers, "leaving": self._drain.leaving, "pods": list(rows)}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _SHOWN}


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
