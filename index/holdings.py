"""What one publisher holds, as far as it is not in the tree itself.

Events name blocks by the engine's hash. Two things lead from a hash to its block: `located` says in which run the
block was put, and the publisher's *column* beside that run, a packed array of 8-byte hashes aligned with the run's
blocks, says where in it. A search of a column is a search for 8 bytes in at most 8 KB, in C.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

from index.copies import Copies, Group
from index.events import Tier
from index.locations import Locations
from index.node import Node, ones, trailing_ones
from index.scratch import Scratches
from index.waiting import Orphans, Placeholders

HASH_BYTES: Final = 8


def members(hashes: Sequence[int], bits: int) -> Sequence[int]:
    """Those of the hashes whose bits are set."""
    if bits == ones(len(hashes)):
        return hashes
    return [block_hash for number, block_hash in enumerate(hashes) if bits >> number & 1]


class Publisher(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """One event stream: the pod (host:port of its URL) and the data-parallel rank of the subscription."""

    pod: str
    rank: int


class Holdings:
    """A publisher's residency; it is its own key in the bit sets of runs.

    `located` maps the engine's hash of every block that the publisher holds in some tier to the id of the run where it
    was put. `columns` are the runs it has bits in, each with the packed hashes of its blocks; an entry counts only
    where a bit is set, and a column may be shorter or longer than its run. `kinds` is what the publisher said its
    KV-cache groups are. `given_up` counts, per tier, blocks that were evicted from the index and whose removal was not
    announced yet. `private` are the blocks whose key contains their hash. `recent` is the run, one of those with a
    column, where blocks were put last; the next ones mostly follow.
    """

    __slots__ = (
        "blocks",
        "columns",
        "copies",
        "given_up",
        "kinds",
        "located",
        "model",
        "orphans",
        "placeholders",
        "private",
        "publisher",
        "recent",
    )

    def __init__(
        self, publisher: Publisher, model: str, *, orphan_limit: int, placeholder_limit: int, scratches: Scratches
    ) -> None:
        self.publisher = publisher
        self.model = model
        self.located = Locations(scratches)
        self.recent: Node | None = None
        self.columns: dict[Node, bytearray] = {}
        self.blocks = [0, 0]
        self.given_up = [0, 0]
        self.copies = Copies()
        self.kinds: dict[Group, str] = {}
        self.private: set[int] = set()
        self.orphans = Orphans(orphan_limit)
        self.placeholders = Placeholders(placeholder_limit)

    def bits(self, tier: Tier, node: Node) -> int:
        """The publisher's bit set in `node`."""
        return node.held[tier].get(self, 0)

    def bits_anywhere(self, node: Node) -> int:
        """The bit set of the blocks it holds in any tier."""
        return node.held[Tier.GPU].get(self, 0) | node.held[Tier.CPU].get(self, 0)

    def place(self, node: Node, offset: int, hashes: Sequence[int], bits: int | None = None) -> None:
        """Writes the hashes of blocks that are about to get bits, from the run's block number `offset` on.

        `bits` are those among them that will, if not all.
        """
        column = self.columns.get(node)
        if column is None:
            column = self.columns[node] = bytearray()
        start = offset * HASH_BYTES
        if len(column) < start:
            column.extend(bytes(start - len(column)))
        column[start : start + len(hashes) * HASH_BYTES] = self.located.packed(hashes)
        if bits is not None:
            hashes = members(hashes, bits)
        self.located.put(hashes, node.id)
        self.recent = node

    def append(self, tier: Tier, node: Node, hashes: Sequence[int]) -> None:
        """Takes blocks that were added to the end of a run of which the publisher has, and holds, the block before."""
        column = self.columns[node]
        count = len(hashes)
        number = len(column) // HASH_BYTES
        column += self.located.packed(hashes)
        self.located.put(hashes, node.id)
        held = node.held[tier]
        held[self] = held.get(self, 0) | ones(count) << number
        self.blocks[tier] += count
        self.recent = node

    def find(self, node: Node, block_hash: int) -> int | None:
        """The number in `node` of a block with this hash; None if the publisher holds none there. O(run), in C."""
        column = self.columns.get(node)
        if column is None:
            return None
        needle = block_hash.to_bytes(HASH_BYTES, sys.byteorder)
        at = column.rfind(needle)
        while at >= 0:
            if not at % HASH_BYTES and self.bits_anywhere(node) >> at // HASH_BYTES & 1:
                return at // HASH_BYTES
            at = column.rfind(needle, 0, at + HASH_BYTES - 1)
        return None

    def find_last(self, node: Node, block_hash: int | None) -> int | None:
        """The same of a run it has blocks in, but only if it is the last that was written there. O(1)."""
        column = self.columns[node]
        if block_hash is None or not column.endswith(block_hash.to_bytes(HASH_BYTES, sys.byteorder)):
            return None
        number = len(column) // HASH_BYTES - 1
        gpu, cpu = node.held
        is_held = gpu.get(self, 0) >> number & 1 or cpu.get(self, 0) >> number & 1
        return number if is_held else None

    def hashes(self, node: Node, offset: int = 0, end: int | None = None) -> "array[int]":
        """The hashes of the run's blocks from `offset` on; meaningful where a bit is set."""
        column = self.columns[node]
        end = len(column) if end is None else end * HASH_BYTES
        return array("Q", bytes(column[offset * HASH_BYTES : end]))

    def side_by_side(self, node: Node, offset: int, hashes: Sequence[int], at: int) -> int:
        """How many blocks from `offset` on are, one by one, the `hashes` from `at` on."""
        bits = self.bits_anywhere(node) >> offset
        limit = min(trailing_ones(bits), len(hashes) - at)
        column = self.hashes(node, offset, offset + limit).tolist()
        wanted = hashes[at : at + limit]
        if column == wanted:
            return limit
        return next(number for number in range(limit) if column[number] != wanted[number])

    def forget(self, node: Node, bits: int) -> None:
        """The blocks of these bits left their last tier."""
        self.forget_all(members(self.hashes(node, 0, bits.bit_length()), bits))

    def split(self, node: Node, lower: Node, offset: int) -> None:
        """Hands what lies in `node` from its block number `offset` on to `lower`, its new rest."""
        column = self.columns[node]
        high = self.bits_anywhere(node) >> offset
        if high:
            self.columns[lower] = column[offset * HASH_BYTES :]
            if self.recent is node:
                self.recent = lower
        del column[offset * HASH_BYTES :]
        for tier in Tier:
            held = node.held[tier]
            if not (bits := held.get(self, 0)):
                continue
            if high := bits >> offset:
                lower.held[tier][self] = high
            if rest := bits & ones(offset):
                held[self] = rest
            else:
                del held[self]
        if not self.bits_anywhere(node):
            self.leave(node)

    def leave(self, node: Node) -> None:
        """The publisher holds nothing in the run any more."""
        del self.columns[node]
        if self.recent is node:
            self.recent = None

    def merge(self, node: Node, lower: Node) -> None:
        """Hands what lies in `lower` to `node`, which it follows."""
        length = len(node.keys)
        column = self.columns.setdefault(node, bytearray())
        start = length * HASH_BYTES
        column.extend(bytes(max(0, start - len(column))))
        column[start:] = self.columns[lower]
        self.leave(lower)
        for tier in Tier:
            if high := lower.held[tier].get(self, 0):
                node.held[tier][self] = node.held[tier].get(self, 0) | high << length

    def locate_anew(self, node: Node) -> None:
        """Locates by its id what lies in `node`."""
        bits = self.bits_anywhere(node)
        self.located.move(members(self.hashes(node, 0, bits.bit_length()), bits), node.id)

    def hold(self, tier: Tier, node: Node, mask: int) -> int:
        """Sets bits of blocks that have their place, and returns those that were not set before."""
        held = node.held[tier]
        before = held.get(self, 0)
        new = mask & ~before
        if new:
            held[self] = before | mask
            node.changed()
            self.blocks[tier] += new.bit_count()
        return new

    def release(self, tier: Tier, node: Node, mask: int) -> None:
        """Clears bits, all of which are set."""
        node.changed()
        held = node.held[tier]
        self.blocks[tier] -= mask.bit_count()
        if rest := held[self] & ~mask:
            held[self] = rest
            return
        del held[self]
        if not self.bits_anywhere(node):
            self.leave(node)

    def forget_all(self, hashes: Sequence[int]) -> None:
        """The blocks left their last tier."""
        self.located.drop(hashes)
        if self.private:
            self.private.difference_update(hashes)
