"""Events that came before what they build on.

Orphans are stored blocks whose parent is not known: inside a batch a child may precede its parent, and after a gap the
parent may be announced again later. Placeholders name a block by hash only, and mean something once another event has
said what it holds. Both wait in bounded buffers, oldest dropped first, and both can be undone while they wait: a
removal of a waiting block finds its copy here.
"""

# ruff: noqa: S101 - check() asserts

from collections.abc import Iterator

from index.copies import Group
from index.events import BlockStored, Tier

_Copy = tuple[Tier, Group, int]


class Orphan:
    """Stored blocks that wait for their parent; `cancelled` were removed meanwhile but still link their children."""

    __slots__ = ("cancelled", "event")

    def __init__(self, event: BlockStored) -> None:
        self.event = event
        self.cancelled: set[int] = set()

    def copies(self) -> Iterator[_Copy]:
        """(tier, group, hash) of every block."""
        for block_hash in self.event.block_hashes:
            yield self.event.tier, self.event.group_idx, block_hash


class Orphans:
    """Stored events by the parent they wait for; at most `limit` blocks."""

    def __init__(self, limit: int) -> None:
        self.blocks = 0
        self._limit = limit
        self._by_parent: dict[int, list[Orphan]] = {}
        self._by_copy: dict[_Copy, list[Orphan]] = {}

    def add(self, parent: int, event: BlockStored) -> int:
        """Keeps the event; returns how many blocks, the oldest or, if too many, its own, had to go for it."""
        orphan = Orphan(event)
        self.blocks += len(event.block_hashes)
        self._by_parent.setdefault(parent, []).append(orphan)
        for copy in orphan.copies():
            self._by_copy.setdefault(copy, []).append(orphan)
        before = self.blocks
        while self.blocks > self._limit:
            self.take(next(iter(self._by_parent)))
        return before - self.blocks

    def waiting_for(self, hashes: list[int]) -> list[int]:
        """The hashes among these that orphans wait for. O(1) while there are no orphans."""
        if not self._by_parent or self._by_parent.keys().isdisjoint(hashes):
            return []
        return [block_hash for block_hash in hashes if block_hash in self._by_parent]

    def take(self, parent: int) -> list[Orphan]:
        """Removes and returns what waits for `parent`, oldest first."""
        orphans = self._by_parent.pop(parent)
        for orphan in orphans:
            self.blocks -= len(orphan.event.block_hashes)
            for copy in orphan.copies():
                same = self._by_copy[copy]
                same.remove(orphan)
                if not same:
                    del self._by_copy[copy]
        return orphans

    def cancel(self, tier: Tier, group: Group, block_hash: int) -> bool:
        """Takes back one waiting copy of the block; False if none waits."""
        for orphan in self._by_copy.get((tier, group, block_hash), ()):
            if block_hash not in orphan.cancelled:
                orphan.cancelled.add(block_hash)
                return True
        return False

    def cancel_tier(self, tier: Tier) -> None:
        """Takes back all waiting copies in the tier; the blocks stay known, for their children in other tiers."""
        for orphans in self._by_parent.values():
            for orphan in orphans:
                if orphan.event.tier is tier:
                    orphan.cancelled.update(orphan.event.block_hashes)

    def check(self) -> None:
        """Asserts that the two indexes agree with the contents and the bound holds."""
        orphans = [orphan for waiting in self._by_parent.values() for orphan in waiting]
        assert self.blocks == sum(len(orphan.event.block_hashes) for orphan in orphans) <= self._limit
        assert sum(map(len, self._by_copy.values())) == self.blocks
        assert all(orphan in self._by_copy[copy] for orphan in orphans for copy in orphan.copies())


class Placeholders:
    """Copies of blocks that only their hash is known of; at most `limit` blocks."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._copies: dict[int, dict[tuple[Tier, Group], int]] = {}

    def __len__(self) -> int:
        """How many blocks wait."""
        return len(self._copies)

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self._copies

    def add(self, tier: Tier, group: Group, block_hash: int) -> int:
        """Keeps one copy; returns how many blocks, the oldest, had to go for it."""
        copies = self._copies.setdefault(block_hash, {})
        copies[tier, group] = copies.get((tier, group), 0) + 1
        if len(self._copies) <= self._limit:
            return 0
        del self._copies[next(iter(self._copies))]
        return 1

    def named_in(self, hashes: list[int]) -> list[int]:
        """The hashes among these that wait here. O(1) while none waits."""
        if not self._copies or self._copies.keys().isdisjoint(hashes):
            return []
        return [block_hash for block_hash in hashes if block_hash in self._copies]

    def take(self, block_hash: int) -> Iterator[tuple[Tier, Group]]:
        """Removes the block and returns its copies, one (tier, group) each."""
        for (tier, group), count in self._copies.pop(block_hash).items():
            for _ in range(count):
                yield tier, group

    def cancel(self, tier: Tier, group: Group, block_hash: int) -> bool:
        """Takes back one waiting copy of the block; False if none waits."""
        copies = self._copies.get(block_hash, {})
        count = copies.get((tier, group), 0)
        if count > 1:
            copies[tier, group] = count - 1
        elif count:
            del copies[tier, group]
            if not copies:
                del self._copies[block_hash]
        return count > 0

    def cancel_tier(self, tier: Tier) -> None:
        """Takes back all waiting copies in the tier."""
        for block_hash, copies in list(self._copies.items()):
            kept = {copy: count for copy, count in copies.items() if copy[0] is not tier}
            if kept:
                self._copies[block_hash] = kept
            else:
                del self._copies[block_hash]

    def check(self) -> None:
        """Asserts that the bound holds and no block waits without a copy."""
        assert len(self._copies) <= self._limit
        assert all(copies and min(copies.values()) > 0 for copies in self._copies.values())
