"""What a pod has cached, by block key: which blocks are used, which are idle, and which go next.

As in `loadgen.cache`, but a block is its key: two sequences that compute one block at the same time share it here,
where vLLM keeps two copies until one of them ends. A fleet's day is millions of blocks, so whatever is done to a
sequence's blocks is one loop over its keys.
"""

from collections import OrderedDict
from collections.abc import Sequence


class GpuTier:
    """`capacity` blocks. `unnamed` are in use without a key: not full, or an answer's that is under way."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.unnamed = 0
        self._uses: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks that sequences use."""
        return len(self._uses) + self.unnamed

    @property
    def free(self) -> int:
        """Blocks that can be had, idle ones included; below 0 where more are in use than there are."""
        return self.capacity - self.used

    def held(self, keys: Sequence[int], first: int, end: int) -> int:
        """How many of `keys` from `first` to before `end` are here without a gap. O(that)."""
        uses, idle = self._uses, self._idle
        for at in range(first, end):
            key = keys[at]
            if key not in uses and key not in idle:
                return at - first
        return max(0, end - first)

    def idle_among(self, keys: Sequence[int], end: int) -> int:
        """How many of the first keys nobody uses now. O(end)."""
        idle = self._idle
        return sum(1 for at in range(end) if keys[at] in idle)

    def take(self, keys: Sequence[int], first: int, end: int) -> list[int]:
        """One more use of each of these blocks, which are there, or full from now on; returns which are new here."""
        uses, idle = self._uses, self._idle
        new = []
        for at in range(first, end):
            key = keys[at]
            count = uses.get(key)
            if count is not None:
                uses[key] = count + 1
                continue
            uses[key] = 1
            if key in idle:
                del idle[key]
            else:
                new.append(key)
        return new

    def release(self, keys: Sequence[int], end: int) -> None:
        """One use less of each of the first blocks; the last ones are the first to go when room is needed."""
        uses, idle = self._uses, self._idle
        for at in range(end - 1, -1, -1):
            key = keys[at]
            count = uses[key] - 1
            if count:
                uses[key] = count
            else:
                del uses[key]
                idle[key] = None

    def shrink(self, more: int) -> list[int]:
        """Make room for what is used and `more`; returns the idle blocks that went for it, the first to go last."""
        over = min(len(self._idle), len(self._idle) - self.free + more)
        return [self._idle.popitem(last=False)[0] for _ in range(over)][::-1] if over > 0 else []

    def clear(self) -> None:
        """Forget everything."""
        self.unnamed = 0
        self._uses.clear()
        self._idle.clear()


class CpuTier:
    """Up to `capacity` blocks, the least recently used going first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def held(self, keys: Sequence[int], first: int, end: int) -> int:
        """How many of `keys` from `first` to before `end` are here without a gap. O(that)."""
        blocks = self._blocks
        for at in range(first, end):
            if keys[at] not in blocks:
                return at - first
        return max(0, end - first)

    def touch(self, keys: Sequence[int], first: int, end: int) -> None:
        """Blocks were used, as far as they are here; the last ones are the first to go."""
        blocks = self._blocks
        for at in range(end - 1, first - 1, -1):
            if keys[at] in blocks:
                blocks.move_to_end(keys[at])

    def store(self, keys: Sequence[int], first: int, end: int) -> tuple[list[int], list[int]]:
        """Bring blocks here; returns which are new, in order, and which went for them, the first to go last.

        So those of a sequence are in its order.
        """
        blocks = self._blocks
        if end - first > self.capacity:
            return [], []
        new = []
        for at in range(end - 1, first - 1, -1):
            key = keys[at]
            if key in blocks:
                blocks.move_to_end(key)
            else:
                blocks[key] = None
                new.append(key)
        new.reverse()
        over = len(blocks) - self.capacity
        return new, [blocks.popitem(last=False)[0] for _ in range(over)][::-1] if over > 0 else []

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()
