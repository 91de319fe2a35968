"""What one publisher holds, as far as it is not in the tree itself."""

import msgspec

from index.copies import Copies, Group
from index.events import Tier
from index.node import Node
from index.waiting import Orphans, Placeholders


class Publisher(msgspec.Struct, frozen=True, order=True):
    """One event stream: the pod (host:port of its URL) and the data-parallel rank of the subscription."""

    pod: str
    rank: int


class Holdings:
    """A publisher's residency; it is its own key in the bit sets of runs.

    `located` maps the engine's hash of every block that the publisher holds in some tier to its location in the tree,
    `nodes` are the runs it has bits in, `kinds` what it said its KV-cache groups are. `private` are the blocks whose
    key contains their hash.
    """

    __slots__ = (
        "blocks",
        "copies",
        "kinds",
        "located",
        "model",
        "nodes",
        "orphans",
        "placeholders",
        "private",
        "publisher",
    )

    def __init__(self, publisher: Publisher, model: str, *, orphan_limit: int, placeholder_limit: int) -> None:
        self.publisher = publisher
        self.model = model
        self.located: dict[int, int] = {}
        self.nodes: set[Node] = set()
        self.blocks = [0, 0]
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

    def hold(self, tier: Tier, node: Node, mask: int) -> int:
        """Sets bits and returns those that were not set before."""
        held = node.held[tier]
        before = held.get(self, 0)
        new = mask & ~before
        if new:
            held[self] = before | mask
            self.nodes.add(node)
            self.blocks[tier] += new.bit_count()
        return new

    def release(self, tier: Tier, node: Node, mask: int) -> None:
        """Clears bits, all of which are set."""
        held = node.held[tier]
        self.blocks[tier] -= mask.bit_count()
        if rest := held[self] & ~mask:
            held[self] = rest
            return
        del held[self]
        if not self.bits_anywhere(node):
            self.nodes.discard(node)

    def forget_hash(self, block_hash: int) -> None:
        """Drops the location of a block that left its last tier."""
        del self.located[block_hash]
        self.private.discard(block_hash)
