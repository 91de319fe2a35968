"""The books of residency: bit, location and copy count of a block, always changed together.

A block's life in a publisher's holdings: its first tier bit brings a location, its last one takes the location away;
in between, copies beyond the first are counted. Whatever takes bits away also prunes what nobody holds any more.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from index.copies import Group
from index.events import Tier
from index.holdings import Holdings, members
from index.node import Node, ones
from index.tree import Place, Segment, Tree

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
    evicted: int = 0
    """Residencies of any publisher given up, the coldest first, to stay within the index's bound."""
    evicted_removed: int = 0
    """Removals of blocks not held, as many as were given up before."""
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

    def find(self, holdings: Holdings, block_hash: int) -> tuple[Node, int] | None:
        """The run that holds a block, and the block's number in it; None if the publisher does not hold it.

        O(splits since it was last asked for).
        """
        location = holdings.located.get(block_hash)
        if location is None:
            return None
        node = self._tree.at(location)
        while (offset := holdings.find(node, block_hash)) is None:
            assert node.cont is not None, "a location is stale"  # noqa: S101 - what `tree` proves cannot be
            node = node.cont
        if node.id != location:
            holdings.located.move([block_hash], node.id)
        return node, offset

    def locate(self, holdings: Holdings, block_hash: int) -> tuple[Node, int]:
        """The same of a block that the publisher holds."""
        found = self.find(holdings, block_hash)
        assert found is not None, "a block that is held is nowhere"  # noqa: S101 - for mypy
        return found

    def after(self, holdings: Holdings, block_hash: int) -> Place | None:
        """The point right after a block; None if the publisher does not hold it."""
        recent = holdings.recent
        if recent is not None and (last := holdings.find_last(recent, block_hash)) is not None:
            return Place(recent.root, recent, recent.start + last + 1)
        if (found := self.find(holdings, block_hash)) is None:
            return None
        node, offset = found
        return Place(node.root, node, node.start + offset + 1)

    def occupy(
        self, holdings: Holdings, tier: Tier, group: Group, path: list[Segment], hashes: list[int], applied: Applied
    ) -> None:
        """Gives blocks the publisher did not hold their places along `path`, and sets their bits."""
        at = 0
        for segment in path:
            part = hashes if segment.length == len(hashes) else hashes[at : at + segment.length]
            holdings.place(segment.node, segment.offset, part)
            self._hold(holdings, tier, group, segment, part, applied)
            at += segment.length

    def append(
        self, holdings: Holdings, tier: Tier, group: Group, node: Node, hashes: list[int], applied: Applied
    ) -> None:
        """The same for the last blocks of a run of which the publisher holds all blocks up to the one before them."""
        holdings.append(tier, node, hashes)
        holdings.copies.first(tier, group, hashes)
        applied.stored_blocks += len(hashes)

    def segments(self, holdings: Holdings, hashes: list[int]) -> Iterator[Segment]:
        """Where these known blocks lie, those side by side in a run taken together."""
        at = 0
        while at < len(hashes):
            node, offset = self.locate(holdings, hashes[at])
            length = holdings.side_by_side(node, offset, hashes, at)
            node.used = self._tree.clock
            yield Segment(node, offset, length)
            at += length

    def mark(self, holdings: Holdings, tier: Tier, group: Group, hashes: list[int], applied: Applied) -> None:
        """Adds a copy of each of these known blocks."""
        at = 0
        for segment in self.segments(holdings, hashes):
            self._hold(holdings, tier, group, segment, hashes[at : at + segment.length], applied)
            at += segment.length

    def withdraw(self, holdings: Holdings, block_hash: int, applied: Applied) -> None:
        """Takes a block out of all tiers, with all its copies."""
        node, offset = self.locate(holdings, block_hash)
        for tier in Tier:
            if holdings.bits(tier, node) >> offset & 1:
                holdings.release(tier, node, 1 << offset)
                holdings.copies.forget(tier, block_hash)
        holdings.forget_all([block_hash])
        self._tree.prune(node)
        applied.moved += 1

    def remove_copies(
        self, holdings: Holdings, tier: Tier, group: Group, hashes: list[int], at: int, applied: Applied
    ) -> int:
        """Takes back one resident copy each of the blocks from `at` on, as far as they are resident side by side.

        Returns how many, 0 if the group has no copy of the first.
        """
        if (found := self.find(holdings, hashes[at])) is None:
            return 0
        node, offset = found
        many = at + 1 < len(hashes) and holdings.copies.are_usual(group)
        length = holdings.side_by_side(node, offset, hashes, at) if many else 1
        mask = ones(length) << offset
        if length > 1 and holdings.bits(tier, node) & mask != mask:
            length, mask = 1, 1 << offset
        if not holdings.bits(tier, node) & mask:
            return 0
        left = holdings.copies.remove(tier, group, hashes[at])
        if left is None:
            return 0
        if not left:
            self._vacate(holdings, tier, Segment(node, offset, length), hashes[at : at + length])
            applied.removed_blocks += length
        return length

    def give_up(self, node: Node, offset: int) -> int:
        """Takes the blocks of a leaf from `offset` on from everyone; returns how many residencies that were."""
        count = 0
        for holdings in node.held[Tier.GPU].keys() | node.held[Tier.CPU].keys():
            bits = holdings.bits_anywhere(node) >> offset
            hashes = holdings.hashes(node, offset, offset + bits.bit_length())
            for tier in Tier:
                if gone := holdings.bits(tier, node) >> offset:
                    holdings.release(tier, node, gone << offset)
                    holdings.given_up[tier] += gone.bit_count()
                    count += gone.bit_count()
                    for block_hash in members(hashes[: gone.bit_length()], gone):
                        holdings.copies.forget(tier, block_hash)
            holdings.forget_all(members(hashes, bits))
        self._tree.prune(node)
        return count

    def _vacate(self, holdings: Holdings, tier: Tier, segment: Segment, hashes: list[int]) -> None:
        """Clears bits, all of which are set, and forgets the blocks that left their last tier."""
        node, offset, length = segment
        holdings.release(tier, node, segment.mask())
        gone = ones(length) & ~(holdings.bits(_OTHER[tier], node) >> offset)
        if gone:
            holdings.forget_all(members(hashes, gone))
        if offset + length == len(node.keys):
            self._tree.prune(node)

    def clear(self, holdings: Holdings, tier: Tier) -> None:
        """Takes everything of the publisher out of the tier. O(what it holds)."""
        other = _OTHER[tier]
        emptied = [node for node in holdings.columns if holdings in node.held[tier]]
        for node in emptied:
            bits = node.held[tier].pop(holdings)
            node.changed()
            kept = node.held[other].get(holdings, 0)
            if holdings.blocks[other]:
                holdings.forget(node, bits & ~kept)
            if not kept:
                holdings.leave(node)
        holdings.blocks[tier] = holdings.given_up[tier] = 0
        holdings.copies.clear(tier)
        holdings.orphans.cancel_tier(tier)
        holdings.placeholders.cancel_tier(tier)
        if not holdings.blocks[other]:
            holdings.located.clear()
            holdings.private.clear()
        self._tree.prune_all(emptied)

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
