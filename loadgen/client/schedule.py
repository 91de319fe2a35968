"""When the requests of a load are due. No clock in here: time is an argument, in seconds since the load's start.

A load in an open loop is due by its own clock, whatever the endpoint does: a request that is held back has waited, and
its wait counts. In a closed loop a request is due when one of some places becomes free: clients wait for the endpoint,
so that what it cannot take is never sent. A place is a request's, or a session's until all of its requests have ended,
pauses included; a session is what follows from a request that waits for none, up to the next such request.

In both, what comes `after` a request is due when that has ended, however it ended: a load whose turns fail is not to
become an easier one.

A load may be endless, so it is read as far as it is needed: some requests ahead, for their bodies to be made in time.
"""

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from math import inf
from typing import Final, Literal, NamedTuple, TypeAlias

from loadgen.workload import Request

Unit: TypeAlias = Literal["requests", "sessions"]

_AHEAD: Final = 16  # requests


class Due(NamedTuple):
    """A request, and when it is due: that is when its latency begins."""

    at: float
    request: Request


class Schedule(ABC):
    """Hands out each request once, when it is due. Of what waits for none, times rise."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._source = iter(requests)
        self._followers: dict[int, list[Request]] = {}
        self._roots: deque[Request] = deque()
        self._ready: list[tuple[float, int, Request]] = []  # a heap of what followed something that has ended
        self._ends: dict[int, float] = {}  # of what has ended, since a follower may be read after it

    @abstractmethod
    def take(self, now: float) -> Due | None:
        """Hand out a request that is due; None: none is. O(log n), and what reading the load takes."""

    @abstractmethod
    def next_at(self) -> float:
        """When the next one will be due, unless something ends before; infinity: not before something ends.

        Right after `take` has returned None.
        """

    @abstractmethod
    def _ready_at(self, request: Request, ended: float) -> float:
        """When a request is due whose predecessor ended then."""

    def ended(self, request: Request, now: float) -> None:
        """Know that the answer to a request that was handed out has ended."""
        self._ends[request.number] = now
        for follower in self._followers.pop(request.number, ()):
            self._follow(follower, now)

    def ahead(self) -> Iterator[Request]:
        """Some of those that are next, roughly in order: for preparing what can be prepared."""
        yield from (request for _, _, request in self._ready[:_AHEAD])
        yield from islice(self._roots, _AHEAD)

    def overdue(self, end: float) -> int:
        """How many of those that were due before `end` have not been handed out. O(n)."""
        return sum(at < end for at, _, _ in self._ready)

    def _read(self) -> Request | None:
        request = next(self._source, None)
        if request is None:
            return None
        if request.after is None:
            self._roots.append(request)
        elif (ended := self._ends.get(request.after)) is not None:
            self._follow(request, ended)
        else:
            self._followers.setdefault(request.after, []).append(request)
        return request

    def _follow(self, request: Request, ended: float) -> None:
        heapq.heappush(self._ready, (self._ready_at(request, ended), request.number, request))


class OpenLoop(Schedule):
    """Requests are due by their own times. No more than `most` are under way; what has to wait for that is late."""

    def __init__(self, requests: Iterable[Request], *, most: int | None = None) -> None:
        super().__init__(requests)
        self._most = inf if most is None else most
        self._running = 0

    def _ready_at(self, request: Request, ended: float) -> float:
        return max(request.at, ended + request.pause)

    def take(self, now: float) -> Due | None:
        """See Schedule."""
        while (len(self._roots) < _AHEAD or self._roots[-1].at <= now) and self._read():
            pass
        at = self.next_at()
        if at > now:
            return None
        self._running += 1
        if self._ready and self._ready[0][0] == at:
            return Due(at, heapq.heappop(self._ready)[2])
        return Due(at, self._roots.popleft())

    def next_at(self) -> float:
        """See Schedule."""
        if self._running >= self._most:
            return inf
        return min(self._ready[0][0] if self._ready else inf, self._roots[0].at if self._roots else inf)

    def ended(self, request: Request, now: float) -> None:
        """See Schedule."""
        self._running -= 1
        super().ended(request, now)

    def overdue(self, end: float) -> int:
        """See Schedule."""
        return super().overdue(end) + sum(1 for _ in takewhile(lambda request: request.at < end, self._roots))


class ClosedLoop(Schedule):
    """`concurrency` requests or sessions at once, begun sessions before new ones; the places open within `ramp_s`."""

    def __init__(
        self, requests: Iterable[Request], *, concurrency: int, unit: Unit = "requests", ramp_s: float = 0.0
    ) -> None:
        super().__init__(requests)
        self._of_sessions = unit == "sessions"
        self._free = [ramp_s * place / concurrency for place in range(concurrency)]  # since when: a heap
        self._group = -1  # of what is read: a number for each session
        self._groups: dict[int, int] = {}  # by request, of those that have not ended
        self._open: dict[int, int] = {}  # requests that have not ended, by group

    def _ready_at(self, request: Request, ended: float) -> float:
        return ended + request.pause

    def take(self, now: float) -> Due | None:
        """See Schedule."""
        # What follows a request has to be known when it is sent: it is read up to the next one that follows nothing.
        while len(self._roots) < _AHEAD and (request := self._read()):
            self._group += request.after is None
            self._groups[request.number] = self._group
            self._open[self._group] = self._open.get(self._group, 0) + 1
        free, ready = self._first()
        if ready <= now and (self._of_sessions or free <= now):
            if not self._of_sessions:
                ready = max(ready, heapq.heappop(self._free))
            return Due(ready, heapq.heappop(self._ready)[2])
        if self._roots and free <= now:
            return Due(heapq.heappop(self._free), self._roots.popleft())
        return None

    def next_at(self) -> float:
        """See Schedule."""
        free, ready = self._first()
        if self._of_sessions:
            return min(ready, free if self._roots else inf)
        return free if self._roots else max(free, ready)

    def _first(self) -> tuple[float, float]:
        """Since when a place is free, and from when a request can be sent that follows an ended one."""
        return self._free[0] if self._free else inf, self._ready[0][0] if self._ready else inf

    def ended(self, request: Request, now: float) -> None:
        """See Schedule."""
        group = self._groups.pop(request.number)
        self._open[group] -= 1
        last = not self._open[group]
        if last:
            del self._open[group]
        if last or not self._of_sessions:
            heapq.heappush(self._free, now)
        super().ended(request, now)
