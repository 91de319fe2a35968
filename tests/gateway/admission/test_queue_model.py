"""The queue against a model that is one list, and looks at all of it for every answer."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.admission.queue import Lane, Waiter
from tests.gateway.admission.waiting import LANE, OTHER, queue, waiter

SHARES = {"a": 1.0, "b": 2.0, "c": 0.5}
THIRD = Lane("model", frozenset({"10.0.0.1:8000"}))


class Model:
    """Who waits, in the order in which they came; what keys have had, for each priority at which somebody waits."""

    def __init__(self, bound: int, timeout: float) -> None:
        self.bound, self.timeout = bound, timeout
        self.line: list[Waiter] = []
        self.had: dict[tuple[int, str], float] = {}
        self.now: dict[int, float] = {}

    def of(self, priority: int, key: str | None = None) -> list[Waiter]:
        return [each for each in self.line if each.priority == priority and key in (None, each.key)]

    def push(self, came: Waiter) -> Waiter | None:
        away = None
        if len(self.line) >= self.bound:
            away = self.over([*self.line, came])
            if away is came or not self.line:
                return came
            self.remove(away)
        if not self.of(came.priority, came.key):
            at = (came.priority, came.key)
            self.had[at] = max(self.had.get(at, 0.0), self.now.get(came.priority, 0.0))
        self.line.append(came)
        return away

    def over(self, line: list[Waiter]) -> Waiter:
        """Of the lowest priority, the newest of the key with most places by its share, the newest such key's."""
        lowest = min(each.priority for each in line)
        low = [each for each in line if each.priority == lowest]
        places = {key: sum(each.key == key for each in low) / share for key, share in SHARES.items()}
        return [each for each in low if places[each.key] == max(places.values())][-1]

    def remove(self, gone: Waiter) -> None:
        self.line.remove(gone)
        if not self.of(gone.priority):
            self.now.pop(gone.priority, None)
            self.had = {at: had for at, had in self.had.items() if at[0] != gone.priority}

    def next(self, free: set[Lane]) -> Waiter | None:
        may = [each for each in self.line if each.lane in free]
        if not may:
            return None
        top = max(each.priority for each in may)
        may = [each for each in may if each.priority == top]
        least = min(self.had[top, each.key] for each in may)
        return next(each for each in may if self.had[top, each.key] == least)

    def go(self, gone: Waiter) -> None:
        at = (gone.priority, gone.key)
        self.now[gone.priority] = max(self.now.get(gone.priority, 0.0), self.had[at])
        self.had[at] += gone.tokens / gone.share
        self.remove(gone)

    def shrink(self, bound: int) -> list[Waiter]:
        self.bound = bound
        away = []
        while len(self.line) > bound:
            away.append(self.over(self.line))
            self.remove(away[-1])
        return away

    def expire(self, now: float) -> list[Waiter]:
        late = [each for each in self.line if each.arrived + self.timeout <= now]
        for each in late:
            self.remove(each)
        return late


class QueueMachine(RuleBasedStateMachine):
    @initialize(bound=st.integers(0, 8))
    def start(self, bound: int) -> None:
        self.queue, self.model = queue(bound, timeout=10.0), Model(bound, timeout=10.0)
        self.now = 0.0

    @rule(
        key=st.sampled_from(sorted(SHARES)),
        priority=st.sampled_from([-1, 0, 0, 0, 5]),
        tokens=st.sampled_from([1.0, 64.0, 512.0]),
        lane=st.sampled_from([LANE, LANE, OTHER, THIRD]),
    )
    def push(self, key: str, priority: int, tokens: float, lane: Lane) -> None:
        came = waiter(key, priority=priority, tokens=tokens, lane=lane, share=SHARES[key], arrived=self.now)
        assert self.queue.push(came) is self.model.push(came)

    @rule(free=st.sets(st.sampled_from([LANE, OTHER, THIRD])), goes=st.sampled_from([True, True, False]))
    def next(self, free: set[Lane], goes: bool) -> None:
        waiter = self.queue.next(free)
        assert waiter is self.model.next(free)
        if goes and waiter is not None:
            self.queue.go(waiter)
            self.model.go(waiter)

    @precondition(lambda self: self.model.line)
    @rule(data=st.data())
    def go_out_of_turn(self, data: st.DataObject) -> None:
        gone = self.model.line[data.draw(st.integers(0, len(self.model.line) - 1))]
        self.queue.go(gone)
        self.model.go(gone)

    @precondition(lambda self: self.model.line)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = self.model.line[data.draw(st.integers(0, len(self.model.line) - 1))]
        self.queue.remove(gone)
        self.model.remove(gone)
        self.queue.remove(gone)

    @rule(bound=st.integers(0, 8), timeout=st.sampled_from([2.0, 10.0]))
    def reconfigure(self, bound: int, timeout: float) -> None:
        self.model.timeout = timeout
        assert self.queue.reconfigure(bound=bound, timeout=timeout) == self.model.shrink(bound)

    @rule(later=st.sampled_from([0.0, 1.0, 4.0]))
    def time_passes(self, later: float) -> None:
        self.now += later
        assert self.queue.expire(self.now) == self.model.expire(self.now)

    @rule()
    def clear(self) -> None:
        waiting = list(self.model.line)
        assert self.queue.clear() == waiting
        for each in waiting:
            self.model.remove(each)

    @invariant()
    def agrees(self) -> None:
        line = self.model.line
        assert len(self.queue) == len(line)
        assert all(each in self.queue for each in line)
        assert set(self.queue.lanes) == {each.lane for each in line}
        assert self.queue.deadline == (line[0].arrived + self.model.timeout if line else None)
        assert set(self.queue._priorities) == {each.priority for each in line}


TestQueueAgainstModel = QueueMachine.TestCase
TestQueueAgainstModel.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
