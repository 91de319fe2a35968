"""Blocks in the order of their use, as spans: a fleet's day is millions of blocks, and thousands of spans.

What happens to a block mostly happens to all of its sequence at once. So a *span* is a stretch of blocks of one chain
that have as many users and were last used at the same moment, and what is done to a sequence's blocks costs its spans,
not its blocks; only blocks that come, go or move to another span are looked at singly, in C. Keys are chained: who
agrees with a span at one position agrees with it before, so where they part is found by bisection.

Blocks without users go in the order of their last use, and of those used at the same moment, which are of one chain,
the last one first.
"""

from bisect import bisect_left
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple

_SHORT: Final = 256
"""Blocks of a span that is worth joining to another. Two long ones are as well apart: what comes may cut them again."""


class Span:
    """Blocks from `start` on, counted from their chain's first. `used_at` counts uses, and is 0 while it has users."""

    __slots__ = ("keys", "start", "used_at", "users")

    def __init__(self, start: int, keys: list[int], users: int, used_at: int) -> None:
        self.start = start
        self.keys = keys
        self.users = users
        self.used_at = used_at

    @property
    def end(self) -> int:
        """The position after its last block."""
        return self.start + len(self.keys)


class Part(NamedTuple):
    """A sequence's blocks from `first` to before `end`, which are in one span; None: not here."""

    span: Span | None
    first: int
    end: int


class Spans:
    """Each block is in one span. Sequences of keys start with their chain's first."""

    def __init__(self) -> None:
        self._of: dict[int, Span] = {}
        self._oldest: list[tuple[int, int, int, Span]] = []  # a heap, with entries that are true no longer
        self._entries = count()

    def __len__(self) -> int:
        return len(self._of)

    def reach(self, keys: list[int], first: int, end: int) -> int:
        """Up to where the blocks from `first` on are here without a gap, at most to `end`. O(spans * log(blocks))."""
        of, at = self._of, first
        while at < end:
            span = of.get(keys[at])
            if span is None:
                break
            at = _parting(span, keys, at, end)
        return at

    def parts(self, keys: list[int], first: int, end: int) -> list[Part]:
        """All blocks from `first` to before `end`. O(spans * log(blocks) + blocks that are not here)."""
        of, at, found = self._of, first, []
        while at < end:
            span = of.get(keys[at])
            begin = at
            if span is not None:
                at = _parting(span, keys, at, end)
            elif of.keys().isdisjoint(keys[at:end]):
                at = end
            else:
                while keys[at] not in of:
                    at += 1
            found.append(Part(span, begin, at))
        return found

    def put(self, keys: list[int], first: int, end: int, users: int, used_at: int) -> Span:
        """Blocks that are not here yet, as a span or as the last ones of one."""
        new = keys[first:end]
        before = self._before(keys, first)
        if before is None or before.users != users or before.used_at != used_at:
            span = Span(first, new, users, used_at)
        else:
            span = before
            span.keys += new
        self._of.update(dict.fromkeys(new, span))
        return span

    def cut(self, span: Span, first: int, end: int) -> Span:
        """The part of a span from `first` to before `end` as a span of its own. O(blocks of the shorter part)."""
        if first > span.start:
            _, span = self._split(span, first)
        if end < span.end:
            span, _ = self._split(span, end)
        return span

    def settle(self, span: Span, keys: list[int]) -> None:
        """A span's users or use have changed: it becomes one with what is before it, if that is in the same state."""
        before = self._before(keys, span.start)
        if (
            before is not None
            and before.users == span.users
            and before.used_at == span.used_at
            and min(len(before.keys), len(span.keys)) <= _SHORT
        ):
            span = self._join(before, span)
        if not span.users:
            self._remember(span)

    def evict(self, blocks: int) -> list[int]:
        """Take away so many blocks without users, of which there are as many; the first to go last. O(them)."""
        of, oldest, gone = self._of, self._oldest, []
        while blocks:
            used_at, start, _, span = oldest[0]
            if span.users or span.used_at != used_at or span.start != -start or not span.keys:
                heappop(oldest)
                continue
            part = span.keys[-blocks:]
            del span.keys[-blocks:]
            blocks -= len(part)
            gone.append(part)
            for key in part:
                del of[key]
        return [key for part in reversed(gone) for key in part]

    def clear(self) -> None:
        """Forget everything."""
        self._of.clear()
        self._oldest.clear()

    def _before(self, keys: list[int], at: int) -> Span | None:
        """The span that ends before that block."""
        span = self._of.get(keys[at - 1]) if at else None
        return span if span is not None and span.end == at else None

    def _remember(self, span: Span) -> None:
        heappush(self._oldest, (span.used_at, -span.start, next(self._entries), span))

    def _split(self, span: Span, at: int) -> tuple[Span, Span]:
        length = at - span.start
        if 2 * length < len(span.keys):
            upper, lower = Span(span.start, span.keys[:length], span.users, span.used_at), span
            del span.keys[:length]
            span.start = at
            self._of.update(dict.fromkeys(upper.keys, upper))
        else:
            upper, lower = span, Span(at, span.keys[length:], span.users, span.used_at)
            del span.keys[length:]
            self._of.update(dict.fromkeys(lower.keys, lower))
        if not span.users:
            self._remember(upper)
            self._remember(lower)
        return upper, lower

    def _join(self, upper: Span, lower: Span) -> Span:
        if len(lower.keys) > len(upper.keys):
            self._of.update(dict.fromkeys(upper.keys, lower))
            lower.keys[:0] = upper.keys
            lower.start = upper.start
            upper.keys = []
            return lower
        self._of.update(dict.fromkeys(lower.keys, upper))
        upper.keys += lower.keys
        lower.keys = []
        return upper


def _parting(span: Span, keys: list[int], at: int, end: int) -> int:
    """Where keys that are the span's at `at` are its no longer, at most `end`."""
    start = span.start
    end = min(end, start + len(span.keys))
    if span.keys[end - 1 - start] == keys[end - 1]:
        return end
    return at + bisect_left(range(at, end), True, key=lambda place: span.keys[place - start] != keys[place])
