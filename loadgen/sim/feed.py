"""One pod's event batches on their way into the gateway's index: late, lost, replayed.

Batches have numbers. What a number says of those before it decides the gateway's own machine, `index.sequence`, driven
as `gateway.subscriber` does: a lost batch shows when the next one arrives. A pod that can replay is asked for all from
the first missing one on, and what arrives live meanwhile is kept. Behind a replay there may be another gap, which is
asked for as well. What three replays do not bring is given up, of a pod that cannot replay at once; and the pod's
claims lose credit.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

import msgspec

from gateway.pod import EventStream
from index import Action, Event, Sequence
from loadgen.sim.clock import Clock
from loadgen.workload.datasets.distributions import Seconds, check_range, draw_seconds

_REPLAY_S: Final = 0.05  # a pod looks for requests every 0.1 s
_ATTEMPTS: Final = 3
_BUFFERED: Final = 10_000  # batches that a pod keeps: vLLM's default


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """`delay_ms`: from a step's end to its batch's arrival. `loss`: the share of a pod's batches that never arrive,
    0 … 1. `replay`: whether the gateway can have them sent again.

    Raises ValueError for a delay below 0 and a loss that is no share.
    """

    delay_ms: Seconds = 5.0
    loss: float = 0.0
    replay: bool = True

    def __post_init__(self) -> None:
        check_range(0, event_delay_ms=self.delay_ms)
        check_range(0, 1, event_loss=self.loss)


class _Batch(NamedTuple):
    number: int
    published: float
    events: list[Event]


class Feed:
    """The batches of one pod, from its start to its end. `apply` takes a batch's events into the index, `stream` is
    where the gateway keeps what it thinks of them.
    """

    def __init__(
        self, clock: Clock, delivery: Delivery, rng: Random, stream: EventStream, apply: Callable[[list[Event]], object]
    ) -> None:
        self.numbers = Sequence(replay=delivery.replay)
        self._clock = clock
        self._delivery = delivery
        self._rng = rng
        self._stream = stream
        self._apply = apply
        self._published = 0
        self._arrives_at = 0.0  # the last one
        self._silent_until = 0.0
        self._buffer: deque[_Batch] = deque(maxlen=_BUFFERED if delivery.replay else 0)
        self._kept: deque[_Batch] = deque()
        self._stopped = False
        if delivery.replay:
            # The first replay, of a pod that has published nothing.
            self.numbers.replay_begin(0)
            self.numbers.replay_end(complete=True)

    def publish(self, events: list[Event], seconds: float) -> None:
        """The pod tells of these events in so many seconds."""
        batch = _Batch(self._published, self._clock.now + seconds, events)
        self._published += 1
        self._buffer.append(batch)
        if self._is_lost():
            return
        # Never before what was told earlier: two sums of the same times may differ in their last digit.
        arrives_at = batch.published + draw_seconds(self._delivery.delay_ms, self._rng) / 1e3
        self._arrives_at = max(self._arrives_at, arrives_at)
        self._clock.at(self._arrives_at, lambda: self._arrived(batch))

    def lose(self, seconds: float) -> None:
        """What is published in these seconds is lost."""
        self._silent_until = max(self._silent_until, self._clock.now + seconds)

    def stop(self) -> None:
        """The pod is gone: nothing arrives any more."""
        self._stopped = True

    def _is_lost(self) -> bool:
        loss = self._delivery.loss
        return self._clock.now < self._silent_until or (loss > 0 and self._rng.random() < loss)

    def _arrived(self, batch: _Batch) -> None:
        if self._stopped:
            return
        action = self.numbers.live(batch.number).action
        if action is Action.APPLY:
            self._take(batch)
        elif action is not Action.DUPLICATE:
            self._kept.append(batch)
        if action is Action.GAP:
            self._ask()
        self._report()

    def _ask(self, attempt: int = 1) -> None:
        """Ask for what is missing, and for all that was published since."""
        missing, asked = self.numbers.missing(), self._clock.now
        assert missing is not None, "a replay is asked for at a gap"  # noqa: S101 - for mypy
        self.numbers.replay_begin(missing)
        self._clock.after(_REPLAY_S, lambda: self._replayed(asked, missing, attempt))

    def _replayed(self, asked: float, start: int, attempt: int) -> None:
        if self._stopped:
            return
        hopeless = start if attempt == _ATTEMPTS else None
        if not (self._take_replay(asked, hopeless) and self._take_kept(hopeless)):
            self._ask(attempt + 1 if self.numbers.missing() == start else 1)
        self._report()

    def _take_replay(self, asked: float, hopeless: int | None) -> bool:
        """What the pod had published until then; False at what it no longer has, unless this is given up."""
        for batch in [batch for batch in self._buffer if batch.published <= asked]:
            action, missing = self.numbers.replayed(batch.number)
            if action is Action.GAP:
                if missing != hopeless:
                    return False
                self.numbers.lose_before(batch.number)
                action = self.numbers.replayed(batch.number).action
            if action is Action.APPLY:
                self._take(batch)
        self.numbers.replay_end(complete=True)
        return True

    def _take_kept(self, hopeless: int | None) -> bool:
        """What arrived while the replay was under way; False at a gap, unless this is given up."""
        while self._kept:
            batch = self._kept[0]
            action, missing = self.numbers.held(batch.number)
            if action is Action.GAP and missing == hopeless:
                self.numbers.lose_before(batch.number)
                self.numbers.replay_end(complete=False)
                action = self.numbers.held(batch.number).action
            if action is Action.APPLY:
                self._take(batch)
            elif action is not Action.DUPLICATE:
                return False
            self._kept.popleft()
        return True

    def _take(self, batch: _Batch) -> None:
        self._apply(batch.events)
        while self._buffer and self._buffer[0].number <= batch.number:
            self._buffer.popleft()

    def _report(self) -> None:
        self._stream.follows(self.numbers, self._clock.now)
