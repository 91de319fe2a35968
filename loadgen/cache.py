"""The two tiers of a pod's KV cache, block by block.

GPU: a pool of physical blocks. A block that no sequence uses stays cached and waits in the free queue to be reused; the
queue's front is reused first. A sequence gives its blocks back tail first, so a prefix outlives its continuations; a
block without a hash goes to the front. Two sequences that compute the same block at the same time hold two copies,
announced and removed one by one.

CPU: a set of hashes in order of use, the least recently used evicted first; a use touches the tail before the head.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from loadgen.events import Removed


class Block:
    """A physical GPU block: how many sequences use it, and its content's hash once it is full."""

    __slots__ = ("hash", "uses")

    def __init__(self) -> None:
        self.uses = 0
        self.hash: bytes | None = None


class GpuTier:
    """The pool of ``capacity`` physical blocks."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free: OrderedDict[Block, None] = OrderedDict.fromkeys(Block() for _ in range(capacity))
        self._cached: dict[bytes, dict[Block, None]] = {}

    @property
    def free(self) -> int:
        """Blocks that can be allocated, cached ones included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that running sequences use, 0…1."""
        return 1.0 - self.free / self.capacity

    def hashes(self) -> set[bytes]:
        """Return the hashes of all cached blocks."""
        return set(self._cached)

    def match(self, hashes: Sequence[bytes]) -> list[Block]:
        """Return the cached blocks of the longest cached prefix of ``hashes``."""
        found: list[Block] = []
        for block_hash in hashes:
            copies = self._cached.get(block_hash)
            if copies is None:
                break
            found.append(next(iter(copies)))
        return found

    def use(self, blocks: Iterable[Block]) -> None:
        """Count one more use of each block; none of them can be reused meanwhile."""
        for block in blocks:
            if block.uses == 0:
                del self._free[block]
            block.uses += 1

    def allocate(self, count: int) -> tuple[list[Block], list[Removed]]:
        """Return ``count`` used blocks without hashes, and the events of what they held. ``count`` must be free."""
        taken: list[Block] = []
        removed: list[Removed] = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            block.uses = 1
            if block.hash is not None:
                removed.append(Removed([block.hash], "GPU"))
                self._forget(block)
            taken.append(block)
        return taken, removed

    def announce(self, block: Block, block_hash: bytes) -> None:
        """Make a used block findable under the hash of its content."""
        block.hash = block_hash
        self._cached.setdefault(block_hash, {})[block] = None

    def release(self, blocks: Sequence[Block]) -> None:
        """Give back one use of each of a sequence's blocks, in the sequence's order."""
        for block in reversed(blocks):
            block.uses -= 1
            if block.uses == 0:
                self._free[block] = None
                if block.hash is None:
                    self._free.move_to_end(block, last=False)

    def clear(self) -> bool:
        """Forget all content; False, and nothing done, while any block is in use."""
        if self.free < self.capacity:
            return False
        for block in self._free:
            block.hash = None
        self._cached.clear()
        return True

    def _forget(self, block: Block) -> None:
        if block.hash is not None:
            copies = self._cached[block.hash]
            del copies[block]
            if not copies:
                del self._cached[block.hash]
            block.hash = None


class CpuTier:
    """Up to ``capacity`` blocks, known by their hashes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def hashes(self) -> set[bytes]:
        """Return the hashes of all blocks."""
        return set(self._blocks)

    def match(self, hashes: Sequence[bytes]) -> int:
        """Return the length of the longest prefix of ``hashes`` that is here."""
        return next((i for i, block_hash in enumerate(hashes) if block_hash not in self._blocks), len(hashes))

    def touch(self, hashes: Sequence[bytes]) -> None:
        """Mark a sequence's blocks as just used, its head last."""
        for block_hash in reversed(hashes):
            if block_hash in self._blocks:
                self._blocks.move_to_end(block_hash)

    def store(self, hashes: Sequence[bytes]) -> tuple[list[bytes], list[Removed]]:
        """Add a sequence's blocks; return those that were not here, and the events of those evicted for them.

        As in vLLM the whole store is given up when the tier cannot hold it.
        """
        if len(hashes) > self.capacity:
            return [], []
        added = [block_hash for block_hash in hashes if block_hash not in self._blocks]
        for block_hash in reversed(added):
            self._blocks[block_hash] = None
        self.touch(hashes)
        evicted = [self._blocks.popitem(last=False)[0] for _ in range(len(self._blocks) - self.capacity)]
        return added, [Removed(evicted, "CPU")] if evicted else []
