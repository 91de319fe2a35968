"""Who waits, and who goes next: a bounded queue that is fair between keys, as a pure state machine.

Higher priorities go first, always. Within one, keys share what the pods take. Each key has a virtual time, which a
request of it that goes advances by its tokens ÷ the key's share; the key furthest behind is next, and its requests go
in the order in which they came. A key that comes to wait begins no earlier than where the others are, so nobody saves
up while away (start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996). Of two keys that have waited all the
while, neither has had more by its share than the other but for one request of each. A priority at which nobody waits is
forgotten, with its virtual times: there is nothing to be fair about.

Places are shared alike. Who comes when all are taken gets one from the lowest priority, if that is lower than its own,
or equal and of a key that has more places by its share; of that priority, the key with most places by its share gives
up the one it took last. Otherwise who comes is turned away. So no key can fill the queue against the others.

Not all who wait can go at once: of several models, the pods of one may be free. A request's `lane` says which pods can
serve it, and only those go whose lane is free.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, KeysView
from heapq import heappop, heappush, heapreplace
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct


class Lane(NamedTuple):
    """What says which pods can serve a request; `None`: any."""

    model: str | None
    only: frozenset[str] | None = None


class Waiter(Struct, eq=False, kw_only=True):
    """A request that waits; it is equal to itself only.

    `tokens` > 0 is the work that it stands for, `share` > 0 that of its key. `arrived` never falls from one to the next
    that is pushed. `number` is the queue's.
    """

    lane: Lane
    key: str
    share: float
    priority: int
    tokens: float
    arrived: float
    number: int = 0


W = TypeVar("W", bound=Waiter)


class FairQueue(Generic[W]):
    """At most `bound` wait, each for `timeout` seconds at most.

    n: who waits, k: keys, of which somebody waits or has gone since its priority was last empty, p: priorities.
    """

    def __init__(self, *, bound: int, timeout: float) -> None:
        self._bound = bound
        self._timeout = timeout
        self._line: OrderedDict[W, None] = OrderedDict()
        self._priorities: dict[int, _Priority[W]] = {}
        self._lanes: Counter[Lane] = Counter()
        self._last = 0

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, waiter: W) -> bool:
        return waiter in self._line

    @property
    def lanes(self) -> KeysView[Lane]:
        """Those in which somebody waits."""
        return self._lanes.keys()

    @property
    def deadline(self) -> float | None:
        """When the next is to be turned away; None: nobody waits. O(1)."""
        return next(iter(self._line)).arrived + self._timeout if self._line else None

    def reconfigure(self, *, bound: int, timeout: float) -> list[W]:
        """From now on so, for those who wait too. Who has no place any more is removed and returned. O(n k)."""
        self._bound, self._timeout = bound, timeout
        over: list[W] = []
        while len(self._line) > bound:
            over.append(self._priorities[min(self._priorities)].crowded().last)
            self.remove(over[-1])
        return over

    def push(self, waiter: W) -> W | None:
        """Let it wait. Returns who has to be turned away for that, which may be itself. O(1); O(k + p) if full."""
        turned_away = None
        if len(self._line) >= self._bound:
            turned_away = self._gives_way_to(waiter)
            if turned_away is waiter:
                return waiter
            self.remove(turned_away)
        self._last += 1
        waiter.number = self._last
        self._line[waiter] = None
        self._lanes[waiter.lane] += 1
        self._priorities.setdefault(waiter.priority, _Priority()).add(waiter)
        return turned_away

    def next(self, free: Collection[Lane]) -> W | None:
        """Who goes next of those whose lane is `free`. Amortized O(p log p + p lanes + log k)."""
        for number in sorted(self._priorities, reverse=True):
            waiter = self._priorities[number].next(free)
            if waiter is not None:
                return waiter
        return None

    def go(self, waiter: W) -> None:
        """It has waited until now, goes, and is charged to its key. O(1)."""
        self._priorities[waiter.priority].charge(waiter)
        self.remove(waiter)

    def remove(self, waiter: W) -> None:
        """It does not wait any more, if it did. O(1)."""
        if waiter not in self._line:
            return
        del self._line[waiter]
        self._lanes[waiter.lane] -= 1
        if not self._lanes[waiter.lane]:
            del self._lanes[waiter.lane]
        priority = self._priorities[waiter.priority]
        priority.remove(waiter)
        if not priority.waiting:
            del self._priorities[waiter.priority]

    def expire(self, now: float) -> list[W]:
        """Remove those who have waited for the timeout. O(those)."""
        late: list[W] = []
        while (deadline := self.deadline) is not None and deadline <= now:
            late.append(next(iter(self._line)))
            self.remove(late[-1])
        return late

    def clear(self) -> list[W]:
        """Remove all. O(n)."""
        waiting = list(self._line)
        for waiter in waiting:
            self.remove(waiter)
        return waiting

    def _gives_way_to(self, waiter: W) -> W:
        """Who has no place if `waiter` comes to a full queue."""
        lowest = min(self._priorities, default=None)
        if lowest is None or waiter.priority < lowest:
            return waiter
        priority = self._priorities[lowest]
        crowded = priority.crowded()
        if waiter.priority == lowest and crowded.crowding <= priority.crowding_with(waiter):
            return waiter
        return crowded.last


class _Key(Generic[W]):
    """Those of one key who wait at one priority. `time` is its virtual time; `listed` are lanes in whose heap it is."""

    __slots__ = ("_lanes", "_line", "listed", "share", "time")

    def __init__(self) -> None:
        self.share = 1.0
        self.time = 0.0
        self.listed: set[Lane] = set()
        self._line: OrderedDict[W, None] = OrderedDict()
        self._lanes: dict[Lane, OrderedDict[W, None]] = {}

    def __len__(self) -> int:
        return len(self._line)

    @property
    def crowding(self) -> float:
        """Places by the share."""
        return len(self._line) / self.share

    @property
    def last(self) -> W:
        """The one that came last, if any waits."""
        return next(reversed(self._line))

    def first(self, lane: Lane) -> W | None:
        """The one that came first of those in a lane."""
        line = self._lanes.get(lane)
        return None if line is None else next(iter(line))

    def add(self, waiter: W) -> None:
        self._line[waiter] = None
        self._lanes.setdefault(waiter.lane, OrderedDict())[waiter] = None

    def remove(self, waiter: W) -> None:
        del self._line[waiter]
        lane = self._lanes[waiter.lane]
        del lane[waiter]
        if not lane:
            del self._lanes[waiter.lane]


class _Priority(Generic[W]):
    """Those who wait at one priority. A key of which nobody waits any more keeps its virtual time.

    `_turns` has, per lane, a heap of keys by virtual time and by the number of their first in that lane, as these were
    when the key was put there. Both only ever rise, so a key that is first and still right is first indeed.
    """

    __slots__ = ("_keys", "_now", "_turns", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self._keys: dict[str, _Key[W]] = {}
        self._turns: dict[Lane, list[tuple[float, int, _Key[W]]]] = {}
        self._now = 0.0  # the virtual time of the key that went last, as it was before

    def add(self, waiter: W) -> None:
        key = self._keys.setdefault(waiter.key, _Key())
        if not key:
            key.time = max(key.time, self._now)
        key.share = waiter.share
        key.add(waiter)
        self.waiting += 1
        if waiter.lane not in key.listed:
            key.listed.add(waiter.lane)
            heappush(self._turns.setdefault(waiter.lane, []), (key.time, waiter.number, key))

    def remove(self, waiter: W) -> None:
        self._keys[waiter.key].remove(waiter)
        self.waiting -= 1

    def next(self, free: Collection[Lane]) -> W | None:
        """The first of the key that is furthest behind; of keys that are level, who came first."""
        firsts = [(turn, lane) for lane in free if (turn := self._turn(lane)) is not None]
        if not firsts:
            return None
        (_, _, key), lane = min(firsts)
        return key.first(lane)

    def _turn(self, lane: Lane) -> tuple[float, int, _Key[W]] | None:
        """Whose turn it is in a lane. O(log k) for each key that has moved since it was put there."""
        turns = self._turns.get(lane, [])
        while turns:
            time, number, key = turns[0]
            first = key.first(lane)
            if first is None:
                heappop(turns)
                key.listed.remove(lane)
            elif (key.time, first.number) == (time, number):
                return turns[0]
            else:
                heapreplace(turns, (key.time, first.number, key))
        return None

    def charge(self, waiter: W) -> None:
        """It goes: its key has had its tokens."""
        key = self._keys[waiter.key]
        self._now = max(self._now, key.time)
        key.time += waiter.tokens / key.share

    def crowded(self) -> _Key[W]:
        """The key with most places by its share, if any waits; of equals, the one that took its last later."""
        return max((key for key in self._keys.values() if key), key=lambda key: (key.crowding, key.last.number))

    def crowding_with(self, waiter: W) -> float:
        """Places by its share that the waiter's key would have with it."""
        return (len(self._keys.get(waiter.key, ())) + 1) / waiter.share
