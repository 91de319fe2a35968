"""The books of residency: bit, location and copy count of a block, always changed together.

A block's life in a publisher's holdings: its first tier bit brings a location, its last one takes the location away;
in between, copies beyond the first are counted. Whatever takes bits away also prunes what nobody holds any more.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from index.copies import Group
from index.events import Tier
from index.holdings import Holdings
from index.node import Node
from index.tree import DEPTH_BITS, Place, Segment, Tree

_OTHER: Final = {Tier.GPU: Tier.CPU, Tier.CPU: Tier.GPU}


class Applied(msgspec.Struct):
    """What became of the events given to `apply`, counted in blocks where not said otherwise."""

    stored_blocks: int = 0
    """New to their tier."""
    removed_blocks: int = 0
    """Gone from their tier by removals; blocks that a clear takes are not counted."""
    copies: int = 0
    """Second and further copies announced for blocks resident in the tier."""
    cleared: int = 0
    """AllBlocksCleared events."""
    orphaned: int = 0
    """Put aside until their parent is known."""
    adopted: int = 0
    """Taken from those put aside, their parent having become known."""
    placeholder_pending: int = 0
    """Placeholders put aside until an event says what the block holds."""
    cancelled: int = 0
    """Removed while put aside."""
    dropped: int = 0
    """Put aside and given up because too many were."""
    moved: int = 0
    """Announced again with other content; the older residency was withdrawn."""
    private: int = 0
    """Indistinguishable by content from another block of the publisher; kept under a key that no prompt has."""
    ignored_group: int = 0
    """Of KV-cache groups that hold only part of a prefix."""
    unknown_removed: int = 0
    """Removals of blocks not held."""
    malformed: int = 0
    """Events that contradict themselves or their parent."""
    unknown_publisher: int = 0
    """Events of a publisher that was not added, or removed."""


class Ledger:
    """Residency of publishers in the runs of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def locate(self, holdings: Holdings, block_hash: int) -> tuple[Node, int]:
        """Resolves the block's location, and shortens it where splits have made it a detour."""
        location = holdings.located[block_hash]
        node, depth = self._tree.resolve(location)
        if node.id != location >> DEPTH_BITS:
            holdings.located[block_hash] = node.id << DEPTH_BITS | depth
        return node, depth

    def after(self, holdings: Holdings, block_hash: int) -> Place:
        """The point right after a known block."""
        node, depth = self.locate(holdings, block_hash)
        return Place(node.root, node, depth + 1)

    def occupy(
        self, holdings: Holdings, tier: Tier, group: Group, path: list[Segment], hashes: list[int], applied: Applied
    ) -> None:
        """Locates blocks the publisher did not hold along `path`, and sets their bits."""
        at = 0
        for segment in path:
            part = hashes[at : at + segment.length]
            location = segment.node.id << DEPTH_BITS | segment.node.start + segment.offset
            holdings.located.update(zip(part, range(location, location + segment.length), strict=True))
            self._hold(holdings, tier, group, segment, part, applied)
            at += segment.length

    def segments(self, holdings: Holdings, hashes: list[int]) -> Iterator[Segment]:
        """Where these known blocks lie, those side by side in a run taken together."""
        located = holdings.located
        at = 0
        while at < len(hashes):
            node, depth = self.locate(holdings, hashes[at])
            base = (node.id << DEPTH_BITS | depth) - at
            limit = min(len(hashes), at + node.end - depth)
            end = at + 1
            while end < limit and located[hashes[end]] == base + end:
                end += 1
            yield Segment(node, depth - node.start, end - at)
            at = end

    def mark(self, holdings: Holdings, tier: Tier, group: Group, hashes: list[int], applied: Applied) -> None:
        """Adds a copy of each of these known blocks."""
        at = 0
        for segment in self.segments(holdings, hashes):
            self._hold(holdings, tier, group, segment, hashes[at : at + segment.length], applied)
            at += segment.length

    def withdraw(self, holdings: Holdings, block_hash: int, applied: Applied) -> None:
        """Takes a block out of all tiers, with all its copies."""
        node, depth = self.locate(holdings, block_hash)
        bit = 1 << depth - node.start
        for tier in Tier:
            if holdings.bits(tier, node) & bit:
                holdings.release(tier, node, bit)
                holdings.copies.forget(tier, block_hash)
        holdings.forget_hash(block_hash)
        self._tree.prune(node)
        applied.moved += 1

    def remove_copy(self, holdings: Holdings, tier: Tier, group: Group, block_hash: int, applied: Applied) -> bool:
        """Takes back one resident copy; False if the group has none."""
        if block_hash not in holdings.located:
            return False
        node, depth = self.locate(holdings, block_hash)
        bit = 1 << depth - node.start
        if not holdings.bits(tier, node) & bit:
            return False
        left = holdings.copies.remove(tier, group, block_hash)
        if left is None:
            return False
        if not left:
            holdings.release(tier, node, bit)
            if not holdings.bits(_OTHER[tier], node) & bit:
                holdings.forget_hash(block_hash)
            if depth + 1 == node.end:
                self._tree.prune(node)
            applied.removed_blocks += 1
        return True

    def clear(self, holdings: Holdings, tier: Tier) -> None:
        """Takes everything of the publisher out of the tier. O(what it holds)."""
        other = _OTHER[tier]
        emptied = [node for node in holdings.nodes if node.held[tier].pop(holdings, 0)]
        holdings.nodes.difference_update([node for node in emptied if holdings not in node.held[other]])
        holdings.blocks[tier] = 0
        holdings.copies.clear(tier)
        holdings.orphans.cancel_tier(tier)
        holdings.placeholders.cancel_tier(tier)
        if holdings.blocks[other]:
            for block_hash in [known for known in holdings.located if not self._is_held(holdings, known)]:
                holdings.forget_hash(block_hash)
        else:
            holdings.located.clear()
            holdings.private.clear()
        self._tree.prune_all(emptied)

    def _is_held(self, holdings: Holdings, block_hash: int) -> bool:
        node, depth = self.locate(holdings, block_hash)
        return bool(holdings.bits_anywhere(node) >> (depth - node.start) & 1)

    def _hold(
        self, holdings: Holdings, tier: Tier, group: Group, segment: Segment, hashes: list[int], applied: Applied
    ) -> None:
        mask = segment.mask()
        new = holdings.hold(tier, segment.node, mask)
        if new == mask:
            holdings.copies.first(tier, group, hashes)
            applied.stored_blocks += segment.length
            return
        for number, block_hash in enumerate(hashes, segment.offset):
            if new >> number & 1:
                holdings.copies.first(tier, group, (block_hash,))
                applied.stored_blocks += 1
            else:
                holdings.copies.another(tier, group, block_hash)
                applied.copies += 1
