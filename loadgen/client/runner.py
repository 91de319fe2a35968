"""A load, sent: each request when it is due, whatever became of those before it.

One task sends: it takes what is due from the schedule and starts a task for it, which ends with a record. Between two
dues it makes the bodies of what comes next, so that making them costs no request its punctuality. A request begins when
it was due; what the client or the limit on requests under way adds to that is its schedule delay, and part of its
latency.
"""

import asyncio
from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Final

import msgspec

from loadgen.client.answer import Answer
from loadgen.client.failures import UNFINISHED, Failure
from loadgen.client.observed import observed
from loadgen.client.pool import Pool
from loadgen.client.request import Composer
from loadgen.client.schedule import Due, Schedule
from loadgen.report.record import Record

_PREPARED_BYTES: Final = 64 << 20  # of bodies, ahead of their time
_ROOM_S: Final = 0.005  # before the next due, to begin a body that is not the next one's
_INTERRUPTED_GRACE_S: Final = 5.0


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a run. The first `warm_up_requests`, and those due in the first `warm_up_s`, are sent and not counted.

    `duration_s` is how long requests go on to be sent after that; those under way then have `grace_s` more. A request
    has `timeout_s` from when it was sent.
    """

    timeout_s: float = 600.0
    grace_s: float = 30.0
    warm_up_requests: int = 0
    warm_up_s: float = 0.0
    duration_s: float | None = None


class Runner:
    """Sends one load; `done` is told of each request when it is over."""

    def __init__(
        self,
        pool: Pool,
        composer: Composer,
        schedule: Schedule,
        limits: Limits,
        done: Callable[[Record], None],
        *,
        seed: int = 0,
    ) -> None:
        self._pool = pool
        self._composer = composer
        self._schedule = schedule
        self._limits = limits
        self._done = done
        self._seed = seed
        self._bodies: dict[int, bytes] = {}
        self._prepared_bytes = 0
        self._under_way: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()  # something ended, a time has come, or the user has enough
        self._origin = 0.0
        self._stop_at = inf  # no request that is due then or later is sent
        self.sent = 0
        self.interrupted = False
        self.not_sent = 0  # though they were due in time

    @property
    def under_way(self) -> int:
        """Requests that were sent and have not ended."""
        return len(self._under_way)

    def now(self) -> float:
        """Seconds since the load's start."""
        return perf_counter() - self._origin

    def interrupt(self) -> None:
        """Send no more and end soon; called once more, end now."""
        if self.interrupted:
            self._cut()
        self.interrupted = True
        self._changed.set()

    async def run(self) -> None:
        """Until every request has ended, or what ends a run before has come. Once."""
        self._origin = perf_counter()
        async with asyncio.TaskGroup() as tasks:
            while not self.interrupted:
                due = self._schedule.take(self.now())
                if due is None:
                    if not await self._more():
                        break
                elif due.at >= self._stop_at:
                    break
                else:
                    self._start(tasks, due)
                    await asyncio.sleep(0)  # what has arrived is not to wait for all that is due
            self.not_sent = self._schedule.overdue(min(self._stop_at, self.now()))
            await self._drain()

    async def _more(self) -> bool:
        """Wait until there may be something to send; False: there will be nothing."""
        self._changed.clear()  # before the schedule is asked: what ends while bodies are made is not to be missed
        at, end, now = self._schedule.next_at(), self._stop_at, self.now()
        if at == inf:
            late_ones = now < end or (self._schedule.overdue(end) and now < end + self._limits.grace_s)
            if not self._under_way or not late_ones:
                return False
            end = end if now < end else end + self._limits.grace_s
        elif at >= end:
            return False
        await self._prepare(at)
        await self._sleep(min(at, end))
        return True

    async def _prepare(self, at: float) -> None:
        """Make bodies of what is next while there is time: that of the very next one always."""
        for place, request in enumerate(list(self._schedule.ahead())):
            if request.number in self._bodies or self._composer.waits(request):
                continue
            if place and (at - self.now() < _ROOM_S or self._prepared_bytes > _PREPARED_BYTES):
                return
            body = self._bodies[request.number] = self._composer.body(request)
            self._prepared_bytes += len(body)
            await asyncio.sleep(0)

    async def _sleep(self, at: float) -> None:
        """Until then, or until something changes."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(max(at - self.now(), 0.0), self._changed.set) if at < inf else None
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _start(self, tasks: asyncio.TaskGroup, due: Due) -> None:
        warm_up = self.sent < self._limits.warm_up_requests or due.at < self._limits.warm_up_s
        if not warm_up and self._stop_at == inf and self._limits.duration_s is not None:
            self._stop_at = max(due.at, self._limits.warm_up_s) + self._limits.duration_s
        self.sent += 1
        task = tasks.create_task(self._one(due, warm_up=warm_up))
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._changed.set()

    async def _drain(self) -> None:
        """Wait for what is under way when a run is ended before its load."""
        end = min(self._stop_at, self.now()) + self._limits.grace_s
        while self._under_way:
            self._changed.clear()
            if self.interrupted:
                end = min(end, self.now() + _INTERRUPTED_GRACE_S)
            if self.now() >= end:
                self._cut()
                return
            await self._sleep(end)

    def _cut(self) -> None:
        for task in self._under_way:
            task.cancel()

    async def _one(self, due: Due, *, warm_up: bool) -> None:
        """One request, from its body to its record."""
        request = due.request
        answer = Answer(keep=self._composer.wants_answer(request))
        body = self._body(due)
        sent = self.now()
        failure: Failure | None = Failure(UNFINISHED, "the load ended before")
        try:
            failure = await self._exchange(self._composer.head(request, len(body)), body, answer)
        finally:
            ended = answer.ended - self._origin if failure is None else self.now()
            self._composer.answered(request, answer.real)
            self._schedule.ended(request, ended)
            record = observed(due, answer, failure, origin=self._origin, sent=sent, ended=ended)
            record.warm_up, record.seed = warm_up, self._seed
            record.request_id = self._composer.request_id(request)
            self._done(record)

    def _body(self, due: Due) -> bytes:
        body = self._bodies.pop(due.request.number, None)
        if body is None:
            return self._composer.body(due.request)
        self._prepared_bytes -= len(body)
        return body

    async def _exchange(self, head: bytes, body: bytes, answer: Answer) -> Failure | None:
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await self._pool.exchange(head, body, answer)
            answer.judge()
        except TimeoutError:
            return Failure("timeout", f"no whole answer within {self._limits.timeout_s:g} s")
        except Failure as failure:
            return failure
        return None
