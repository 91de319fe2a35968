"""What a pod has cached, by block key: which blocks are used, which are idle, and which go next.

As in `loadgen.cache`, but a block is its key: two sequences that compute one block at the same time share it here,
where vLLM keeps two copies until one of them ends. Keys are chained, as those of `index.block_keys`, and a sequence's
begin with its first block's. Costs are in spans (`loadgen.sim.spans`), of which a sequence has few.
"""

from itertools import count

from loadgen.sim.spans import Spans

Stretch = tuple[int, int]
"""A sequence's blocks from the first number to before the second."""


class GpuTier:
    """`capacity` blocks. `unnamed` are in use without a key: not full, or an answer's that is under way."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.unnamed = 0
        self._named = 0  # in use, with a key
        self._spans = Spans()
        self._uses = count(1)

    @property
    def used(self) -> int:
        """Blocks that sequences use."""
        return self._named + self.unnamed

    @property
    def free(self) -> int:
        """Blocks that can be had, idle ones included; below 0 where more are in use than there are."""
        return self.capacity - self._named - self.unnamed

    @property
    def idle(self) -> int:
        """Blocks that nobody uses, but which can be found."""
        return len(self._spans) - self._named

    def held(self, keys: list[int], first: int, end: int) -> int:
        """How many of `keys` from `first` to before `end` are here without a gap."""
        return self._spans.reach(keys, first, end) - first

    def idle_among(self, keys: list[int], end: int) -> int:
        """How many of the first keys nobody uses now."""
        return sum(stop - first for span, first, stop in self._spans.parts(keys, 0, end) if span and not span.users)

    def take(self, keys: list[int], first: int, end: int) -> list[Stretch]:
        """One more use of each of these blocks, which are there, or full from now on; returns which are new here."""
        new = []
        for span, begin, stop in self._spans.parts(keys, first, end):
            if span is None:
                piece = self._spans.put(keys, begin, stop, 1, 0)
                self._named += stop - begin
                new.append((begin, stop))
            else:
                piece = self._spans.cut(span, begin, stop)
                if not piece.users:
                    self._named += stop - begin
                    piece.used_at = 0
                piece.users += 1
            self._spans.settle(piece, keys)
        return new

    def release(self, keys: list[int], end: int) -> None:
        """One use less of each of the first blocks; the last ones are the first to go when room is needed."""
        now = next(self._uses)
        for span, begin, stop in self._spans.parts(keys, 0, end):
            if span is not None:
                piece = self._spans.cut(span, begin, stop)
                piece.users -= 1
                if not piece.users:
                    self._named -= stop - begin
                    piece.used_at = now
                self._spans.settle(piece, keys)

    def shrink(self, more: int) -> list[int]:
        """Make room for what is used and `more`; returns the idle blocks that went for it, the first to go last."""
        idle = self.idle
        over = min(idle, idle - self.free + more)
        return self._spans.evict(over) if over > 0 else []

    def clear(self) -> None:
        """Forget everything."""
        self.unnamed = self._named = 0
        self._spans.clear()


class CpuTier:
    """Up to `capacity` blocks, the least recently used going first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._spans = Spans()
        self._uses = count(1)

    def __len__(self) -> int:
        return len(self._spans)

    def held(self, keys: list[int], first: int, end: int) -> int:
        """How many of `keys` from `first` to before `end` are here without a gap."""
        return self._spans.reach(keys, first, end) - first

    def touch(self, keys: list[int], first: int, end: int) -> None:
        """Blocks were used, as far as they are here; the last ones are the first to go."""
        now = next(self._uses)
        for span, begin, stop in self._spans.parts(keys, first, end):
            if span is not None:
                piece = self._spans.cut(span, begin, stop)
                piece.used_at = now
                self._spans.settle(piece, keys)

    def store(self, keys: list[int], first: int, end: int) -> tuple[list[Stretch], list[int]]:
        """Bring blocks here; returns which are new, in order, and which went for them, the first to go last.

        So those of a sequence are in its order.
        """
        if end - first > self.capacity:
            return [], []
        now, new = next(self._uses), []
        for span, begin, stop in self._spans.parts(keys, first, end):
            if span is None:
                piece = self._spans.put(keys, begin, stop, 0, now)
                new.append((begin, stop))
            else:
                piece = self._spans.cut(span, begin, stop)
                piece.used_at = now
            self._spans.settle(piece, keys)
        over = len(self._spans) - self.capacity
        return new, self._spans.evict(over) if over > 0 else []

    def clear(self) -> None:
        """Forget everything."""
        self._spans.clear()
