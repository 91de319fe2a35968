"""What placed requests will leave on their publishers, until events say so.

Between a request's placement and the events about its blocks it waits, is computed, and the events are on their way.
Of that the index says nothing, so a burst on one prefix would scatter over the fleet, and every publisher compute the
prefix. Here the prompts of placed requests count as what they are about to become:

    placed ──▶ answered ──ttl──▶ over          by then events have told what is there
       └────▶ dropped                          failed or aborted before its first byte: over at once

The prompts lie in a tree of runs like the index's own, and for the same reason: keys are chained, so prompts are
compared run by run, and where they diverge is found by bisection. Each run counts, per publisher, the prompts that go
through it. Prompts end where runs end, so whoever is counted at a run expects all of it. A lookup follows one path,
however many requests are under way. Nothing has a bound of its own: what counts are the requests under way, and those
that answered within the time to live.

Prompts are taken out along the runs through which they came, and not by their keys. So keys that collide, forged ones
too, misjudge a placement and break nothing.

Pure: time is an argument, in seconds of any clock that does not go back.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from index.holdings import Publisher
from index.node import common_length

TTL_S: Final = 2.0
"""From the first byte on. The engine has announced the blocks by then; what is left is the way of the events."""


class Expectation:
    """One placed request. `ends` are the runs with which its prompts end; none: it does not count any more."""

    __slots__ = ("answered", "ends", "publisher")

    def __init__(self, publisher: Publisher, ends: "list[_Run]") -> None:
        self.publisher = publisher
        self.ends = ends
        self.answered = False


class Expected:
    """The prompts of requests that count. Those of all namespaces and block sizes: root keys keep them apart.

    What is said of a request twice, or after it has ceased to count, changes nothing.
    """

    def __init__(self, *, ttl: float = TTL_S) -> None:
        """`ttl`: seconds for which a request counts from its first byte on."""
        self._ttl = ttl
        self._root = _Run(array("Q"))
        self._live: set[Expectation] = set()
        self._ending: deque[tuple[float, Expectation]] = deque()
        # Of the last lookup, while nothing has been taken out since: its keys, the last run that is all in them, and
        # where that ends. Whoever is looked up is placed next.
        self._reached: tuple[Sequence[int], _Run, int] | None = None

    def __len__(self) -> int:
        """How many requests count, or did when time was last told. O(1)."""
        return len(self._live)

    def placed(self, publisher: Publisher, prompts: "Iterable[array[int]]") -> Expectation | None:
        """A request is placed; `prompts` are the chained keys of each of its sequences, in each block size.

        Returns None where none of them has a full block. O(runs * log(run)), and a copy of the keys that are new.
        """
        ends = []
        for keys in prompts:
            if keys:
                ends.append(self._put_in(publisher, keys))  # noqa: PERF401 - for one prompt, in half of the time
        if not ends:
            return None
        expectation = Expectation(publisher, ends)
        self._live.add(expectation)
        return expectation

    def answered(self, expectation: Expectation, now: float) -> None:
        """The request's first byte has come: from now on it counts for the time to live. O(1), and what has ended."""
        if (ending := self._ending) and ending[0][0] <= now:
            self._end(now)
        if not expectation.answered:
            expectation.answered = True
            ending.append((now + self._ttl, expectation))

    def dropped(self, expectation: Expectation) -> None:
        """The request has failed, or was aborted: it counts no more, unless it had answered. O(runs of its prompts)."""
        if not expectation.answered:
            self._take_out(expectation)

    def forget(self, pod: str) -> None:
        """The pod has left, with all its ranks: nothing is expected of it. O(requests that count)."""
        for expectation in [each for each in self._live if each.publisher.pod == pod]:
            self._take_out(expectation)

    def match(self, prompts: Mapping[int, Sequence[int]], now: float) -> dict[Publisher, int]:
        """How many tokens of a prompt each publisher is expected to hold: the most that one placed request shares.

        `prompts` maps block sizes to the prompt's chained keys at that size, as in `RadixIndex.match`. Publishers of
        which nothing is expected are absent. O(runs * (log(run) + publishers)), and what has ended.
        """
        if self._ending and self._ending[0][0] <= now:
            self._end(now)
        found: dict[Publisher, int] = {}
        for block_size, keys in prompts.items():
            run, depth = self._root, 0
            child = run.children.get(keys[0]) if keys else None
            while child is not None:
                shared = common_length(child.keys, 0, keys, depth)
                tokens = (depth + shared) * block_size
                for publisher in child.counts:
                    if found.get(publisher, 0) < tokens:
                        found[publisher] = tokens
                if shared < len(child.keys):
                    break
                run, depth = child, depth + shared
                if depth == len(keys):
                    break
                child = run.children.get(keys[depth])
            self._reached = keys, run, depth
        return found

    def _put_in(self, publisher: Publisher, keys: "array[int]") -> "_Run":
        """Count the prompt on its path, of which what is not there yet is made; returns the run it ends with."""
        run, depth = self._root, 0
        if self._reached is not None and self._reached[0] is keys:
            _, run, depth = self._reached
            run.enter(publisher)
        while depth < len(keys):
            child = run.children.get(keys[depth])
            if child is None:
                child = run.children[keys[depth]] = _Run(keys[depth:], run)
            elif (shared := common_length(child.keys, 0, keys, depth)) < len(child.keys):
                child = child.split(shared)
            child.counts[publisher] = child.counts.get(publisher, 0) + 1
            depth += len(child.keys)
            run = child
        run.ends += 1
        return run

    def _take_out(self, expectation: Expectation) -> None:
        ends, expectation.ends = expectation.ends, []
        self._reached = None
        self._live.discard(expectation)
        for end in ends:
            end.leave(expectation.publisher)

    def _end(self, now: float) -> None:
        ending = self._ending
        while ending and ending[0][0] <= now:
            self._take_out(ending.popleft()[1])


class _Run:
    """Consecutive blocks in which no two prompts diverge, and within which none ends.

    `counts`: per publisher, the prompts that go through it, never 0. `ends`: how many end with it. `children`: the runs
    that follow, by their first key. The root, its own parent, has no blocks and counts nothing.
    """

    __slots__ = ("children", "counts", "ends", "keys", "parent")

    def __init__(self, keys: "array[int]", parent: "_Run | None" = None) -> None:
        self.keys = keys
        self.parent = parent or self
        self.children: dict[int, _Run] = {}
        self.counts: dict[Publisher, int] = {}
        self.ends = 0

    def split(self, length: int) -> "_Run":
        """Cut off the first blocks and return them as a run. This one stays the one with which its prompts end."""
        upper = _Run(self.keys[:length], self.parent)
        upper.counts = self.counts.copy()
        upper.parent.children[upper.keys[0]] = upper
        self.keys, self.parent = self.keys[length:], upper
        upper.children[self.keys[0]] = self
        return upper

    def enter(self, publisher: Publisher) -> None:
        """One more prompt goes through this and what leads here."""
        run = self
        while (parent := run.parent) is not run:
            run.counts[publisher] = run.counts.get(publisher, 0) + 1
            run = parent

    def leave(self, publisher: Publisher) -> None:
        """One of the prompts that end here goes, and with it runs that nobody needs, and a cut where two are one."""
        self.ends -= 1
        lowest = run = self
        while (parent := run.parent) is not run:
            run.counts[publisher] -= 1
            if not run.counts[publisher]:
                del run.counts[publisher]
            if not run.counts:
                del parent.children[run.keys[0]]
                lowest = parent
            run = parent
        if lowest is not run and not lowest.ends and len(lowest.children) == 1:
            lowest.join()

    def join(self) -> None:
        """Give the blocks to the only child, which takes its place."""
        (child,) = self.children.values()
        child.keys, child.parent = self.keys + child.keys, self.parent
        child.parent.children[child.keys[0]] = child
