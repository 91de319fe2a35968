"""Requests held back, each in a future, until a look finds that pods take more.

A look is due when something may have been freed: a request has its first byte or ends, a poll arrives, a pod comes or
goes. It wakes one request. The next look comes right behind that one's own step on the loop, in which it is placed and
counted on its pod; so each is let go by what those before it have left, and the bounds are held to the request. What is
placed without having waited, such as another attempt of a request or one in another lane, may come before that step and
take the room. So until that step a request keeps its place, and where there is no room any more it waits on. What else
changes by time alone, such as a breaker that closes or load that grows old, a timer finds, which looks while anybody
waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from config.schema import Admission as Settings
from gateway.admission.pace import Pace
from gateway.admission.priority import priority_of
from gateway.admission.queue import FairQueue, Lane, Waiter
from gateway.admission.saturation import Occupied, SincePoll, saturated
from gateway.decision import Ask, Decider
from gateway.drain import Drain
from gateway.errors import GatewayError, NotAdmitted, Rejection
from gateway.front.request import Request
from gateway.metrics import Metrics
from gateway.pod import Pod
from gateway.pods import PodTable

_LOOK_S = 1.0
_SOON_S = 0.001  # timers may ring a little early
# An answer is work as well, and nobody knows how much before it is there; so no request is free, cached as it may be.
_ANSWER_TOKENS = 256


class _Held(Waiter, kw_only=True, eq=False):
    """`turn` is over when there may be room for it, or when its client is to be told of a `refusal`."""

    turn: asyncio.Future[None]
    refusal: GatewayError | None = None


class Admission:
    """`on`: whether requests may have to wait; nothing else is to be looked at while it is false."""

    def __init__(self, settings: Settings, *, pods: PodTable, decider: Decider, metrics: Metrics, drain: Drain) -> None:
        self.on = False
        self._settings = settings
        self._pods = pods
        self._decider = decider
        self._metrics = metrics
        self.drain = drain
        self._loop = asyncio.get_running_loop()
        self._queue: FairQueue[_Held] = FairQueue(bound=settings.queue, timeout=settings.timeout)
        self._pace = Pace()
        self._look_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self.reconfigure(settings)

    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    def reconfigure(self, settings: Settings) -> None:
        """From now on so, for those who wait too. Off: they all go."""
        self._settings = settings
        if self.on != settings.enabled:
            self.on = settings.enabled
            for pod in self._pods:
                self.changed(pod)
        for held in self._queue.reconfigure(bound=settings.queue, timeout=settings.timeout):
            self._turn_away(held, "displaced")
        if self._timer is not None:
            self._timer.cancel()
            self._tick()

    def refuse(self) -> None:
        """The gateway is shutting down: who waits is told so."""
        for held in self._queue.clear():
            held.refusal = self.drain.refusal()
            _wake(held)

    def changed(self, pod: Pod) -> None:
        """A pod was polled, has come or is gone."""
        for counts in pod.in_flight.values():
            counts.since_poll = SincePoll(self._freed) if self.on else None
        self._freed()

    async def admit(self, request: Request, ask: Ask) -> None:
        """Return when pods take the request, right before it is placed. Raises NotAdmitted, Draining."""
        lane = Lane(ask.model, ask.only)
        if lane not in self._queue.lanes and not self._is_full(lane):
            return
        self.drain.require_open()
        held = self._held(request, lane)
        self._enter(held)
        try:
            held.tokens = self._decider.uncached_at_best(ask) + _ANSWER_TOKENS
            await self._room(held)
        finally:
            self._queue.remove(held)
            request.record.queued = self._pods.clock() - held.arrived
        self._metrics.admission_waited.observe(request.record.queued)

    async def _room(self, held: _Held) -> None:
        """Return when there is room for it, out of the queue. Raises what its client is told otherwise."""
        await held.turn
        while held.refusal is None and self._is_full(held.lane):
            held.turn = self._loop.create_future()
            await held.turn
        if held.refusal is not None:
            raise held.refusal
        self._queue.go(held)
        self._pace.went(self._pods.clock())

    def _held(self, request: Request, lane: Lane) -> _Held:
        key, said = request.key, request.headers.get(self._settings.priority_header)
        return _Held(
            lane=lane,
            key="" if key is None else key.id,
            share=1.0 if key is None else key.share,
            priority=priority_of(said, None if key is None else key.priority),
            tokens=_ANSWER_TOKENS,
            arrived=self._pods.clock(),
            turn=self._loop.create_future(),
        )

    def _enter(self, held: _Held) -> None:
        """Let it wait, if there is a place. Raises NotAdmitted."""
        if not self._queue:
            self._pace.begins(held.arrived)
        turned_away = self._queue.push(held)
        if turned_away is held:
            raise self._rejection("queue_full")
        if turned_away is not None:
            self._turn_away(turned_away, "displaced")
        if self._timer is None:
            self._set_timer(held.arrived)

    def _is_full(self, lane: Lane) -> bool:
        """Whether every pod that could serve has enough to do. Without any, that is for the decision to say."""
        if not self.on:
            return False
        pods = self._pods.serving(lane.model, only=lane.only)
        if not pods:
            return self._pods.overloaded(lane.model, lane.only)
        return saturated(self._occupied(pods), self._settings)

    def _occupied(self, pods: list[Pod]) -> Iterator[Occupied]:
        oldest = self._pods.oldest_load
        for pod in pods:
            for rank, counts in pod.in_flight.items():
                load, since = pod.rank_load(rank, oldest), counts.since_poll
                unseen = 0 if since is None else since.unanswered
                yield Occupied(counts.requests, counts.tokens, unseen, load.waiting, load.kv_usage)

    def _freed(self) -> None:
        if self._queue and not self._look_is_due:
            self._look_is_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """Wake the next one, if pods take it; its own step on the loop comes before the next look."""
        self._look_is_due = False
        free = {lane for lane in self._queue.lanes if not self._is_full(lane)}
        while free and (held := self._queue.next(free)) is not None:
            if held.turn.cancelled():  # its client has just left
                self._queue.remove(held)
                continue
            _wake(held)
            self._look_is_due = True
            self._loop.call_soon(self._look)
            return

    def _tick(self) -> None:
        """Turn away who has waited too long, and look."""
        now = self._pods.clock()
        for held in self._queue.expire(now):
            self._turn_away(held, "timeout")
        self._set_timer(now)
        self._freed()

    def _set_timer(self, now: float) -> None:
        deadline = self._queue.deadline
        if deadline is None:
            self._timer = None
        else:
            self._timer = self._loop.call_later(max(_SOON_S, min(_LOOK_S, deadline - now)), self._tick)

    def _turn_away(self, held: _Held, reason: Rejection) -> None:
        if not held.turn.cancelled():  # its client is still there
            held.refusal = self._rejection(reason)
            _wake(held)

    def _rejection(self, reason: Rejection) -> NotAdmitted:
        self._metrics.admission_rejected.labels(reason).inc()
        retry_after = self._pace.estimate(len(self._queue) + 1, self._settings.timeout, self._pods.clock())
        return NotAdmitted(reason, retry_after=retry_after)


def _wake(held: _Held) -> None:
    if not held.turn.done():
        held.turn.set_result(None)
