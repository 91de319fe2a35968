"""How many copies stand behind a residency bit.

A publisher may store one block hash several times: as physical duplicates, in overlapping offload chunks, and once per
KV-cache group. It announces one removal per copy. The bit in the tree says only that there is a copy in some group;
what it does not say is kept here, and is nothing at all for the usual block, which has one copy in one group.

The rule: a set bit stands for one copy in the publisher's `usual` group; `_beyond` holds, by (tier, group, hash), what
a group's count differs from that, so +1 for a second copy, and -1 in the usual group (+1 in another) for a block that
only another group holds. A block counts as resident while any group holds it; engines with several full-attention
groups store and evict a block in all of them together, give or take the moment in between.
"""

# ruff: noqa: S101 - check() asserts

from collections.abc import Iterable, Iterator

from index.events import Tier

Group = int | None


class Copies:
    """Copy counts of one publisher."""

    __slots__ = ("_beyond", "_groups", "_usual")

    def __init__(self) -> None:
        self._beyond: dict[tuple[Tier, Group, int], int] = {}
        self._groups: set[Group] = set()
        self._usual: Group = None

    def first(self, tier: Tier, group: Group, hashes: Iterable[int]) -> None:
        """The bits of `hashes` were just set, for a copy in `group`. O(1) for the usual group."""
        if not self._groups:
            self._usual = group
        self._groups.add(group)
        if group == self._usual:
            return
        for block_hash in hashes:
            self._beyond[tier, group, block_hash] = 1
            self._beyond[tier, self._usual, block_hash] = -1

    def another(self, tier: Tier, group: Group, block_hash: int) -> None:
        """A copy was added to a block whose bit was set already."""
        self._groups.add(group)
        self._change(tier, group, block_hash, 1)

    def remove(self, tier: Tier, group: Group, block_hash: int) -> int | None:
        """Takes back one copy in `group` of a block whose bit is set; None if there was none.

        Returns how many copies are left in all groups; after the last one the bit is the caller's to clear.
        """
        if not self._beyond:
            return 0 if group == self._usual else None
        if self.count(tier, group, block_hash) < 1:
            return None
        self._change(tier, group, block_hash, -1)
        left = sum(self.count(tier, other, block_hash) for other in self._groups)
        if not left:
            self.forget(tier, block_hash)
        return left

    def are_usual(self, group: Group) -> bool:
        """Whether every set bit stands for one copy, in this group."""
        return not self._beyond and group == self._usual

    def count(self, tier: Tier, group: Group, block_hash: int) -> int:
        """Copies in `group` of a block whose bit is set."""
        return self._beyond.get((tier, group, block_hash), 0) + (group == self._usual)

    def forget(self, tier: Tier, block_hash: int) -> None:
        """The block's bit was cleared."""
        if self._beyond:
            for group in self._groups:
                self._beyond.pop((tier, group, block_hash), None)

    def clear(self, tier: Tier) -> None:
        """All bits of the tier were cleared. O(entries)."""
        self._beyond = {key: count for key, count in self._beyond.items() if key[0] is not tier}

    def dump(self) -> tuple[Group, list[Group], list[tuple[Tier, Group, int, int]]]:
        """The usual group, the groups, and what differs as (tier, group, hash, difference)."""
        counts = [(*key, difference) for key, difference in self._beyond.items()]
        return self._usual, list(self._groups), counts

    def load(self, usual: Group, groups: Iterable[Group], counts: Iterable[tuple[Tier, Group, int, int]]) -> None:
        """Takes over what `dump` returned."""
        self._usual = usual
        self._groups = set(groups)
        self._beyond = {(tier, group, block_hash): difference for tier, group, block_hash, difference in counts}

    def entries(self) -> Iterator[tuple[Tier, int]]:
        """(tier, hash) of every block whose copies differ from the usual."""
        for tier, _, block_hash in self._beyond:
            yield tier, block_hash

    def _change(self, tier: Tier, group: Group, block_hash: int, by: int) -> None:
        key = (tier, group, block_hash)
        if count := self._beyond.get(key, 0) + by:
            self._beyond[key] = count
        else:
            self._beyond.pop(key, None)

    def check(self) -> None:
        """Asserts that counts are possible: none negative, some group with a copy, no entry that says the usual."""
        for tier, group, block_hash in self._beyond:
            assert group in self._groups, "a group is forgotten"
            counts = [self.count(tier, other, block_hash) for other in self._groups]
            assert min(counts) >= 0, "a group has fewer than no copies"
            assert sum(counts) > 0, "copies are counted of a block no group holds"
        assert 0 not in self._beyond.values(), "an entry says nothing"
