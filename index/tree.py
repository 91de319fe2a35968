"""The prefix tree of runs: finding, growing, splitting and pruning it.

Runs split only where contents diverge, and the last run of a branch grows in place, so a tree has about as many nodes
as the fleet's prompts have points of divergence, not as they have blocks.

A location names a block as `node id << 24 | depth`, small enough to keep one per block and holder. A split at depth d
leaves the upper part its id and makes the lower part a new child, linked as the upper part's `cont`, so a location
(id, depth) is resolved by following `cont` while the depth lies at or behind the end of the node. That is right
because no location is ever stale:

- A holder has a location for a block exactly as long as it holds the block in some tier, that is, has its bit.
- A node, or the tail of a leaf, goes only when nobody has a bit in it; so no location leads there.
- `cont` is a child, hence goes before its parent, and a block of it that somebody holds keeps the whole way to it.
- Ids are not used twice, and a leaf that lost its tail (or its `cont`) and then grows again holds new blocks there,
  which only new locations name.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from index.block_hash import root_key
from index.node import Node, Root, common_length, ones

DEPTH_BITS: Final = 24
MAX_DEPTH_BLOCKS: Final = 1 << DEPTH_BITS
_DEPTH_MASK: Final = MAX_DEPTH_BLOCKS - 1


class Place(NamedTuple):
    """A point between blocks: after the blocks of `node` before `depth`, or the root's start where `node` is None."""

    root: Root
    node: Node | None
    depth: int

    def key(self) -> int:
        """What the key of a block put here is seeded with."""
        return self.node.keys[self.depth - 1 - self.node.start] if self.node else self.root.key


class Segment(NamedTuple):
    """`length` consecutive blocks of `node` from its block number `offset` on."""

    node: Node
    offset: int
    length: int

    def mask(self) -> int:
        """The segment as a bit set over the node's run."""
        return ones(self.length) << self.offset


class Tree:
    """All runs of all namespaces and block sizes.

    `tops` holds the first runs by first key, of all roots together: root keys differ, so their chains do.
    """

    def __init__(self, max_run_blocks: int) -> None:
        self.tops: dict[int, Node] = {}
        self.nodes: dict[int, Node] = {}
        self.roots: dict[tuple[str, int], Root] = {}
        self._max_run_blocks = max_run_blocks
        self._next_id = 0

    def start(self, namespace: str, block_size: int) -> Place:
        """Where prompts start; the root is remembered only once a run starts there."""
        root = self.roots.get((namespace, block_size))
        return Place(root or Root(namespace, block_size, root_key(namespace, block_size)), None, 0)

    def resolve(self, location: int) -> tuple[Node, int]:
        """The node that holds the block now, and the block's depth. O(splits since the location was made)."""
        node = self.nodes[location >> DEPTH_BITS]
        depth = location & _DEPTH_MASK
        while depth >= node.end:
            assert node.cont is not None, "a location is stale"  # noqa: S101 - states the module's theorem for mypy
            node = node.cont
        return node, depth

    def path(self, keys: Sequence[int]) -> list[Segment]:
        """The longest way from the start that `keys` and the tree share. O(runs * log(run))."""
        return self._follow(self.tops.get(keys[0]) if keys else None, keys, 0)

    def follow(self, place: Place, keys: Sequence[int]) -> list[Segment]:
        """The longest way from `place` that `keys` and the tree share."""
        node = place.node
        if node is None:
            return self.path(keys)
        offset = place.depth - node.start
        if offset == len(node.keys):
            return self._follow(node.children.get(keys[0]), keys, 0)
        count = common_length(node.keys, offset, keys, 0)
        if not count:
            return []
        first = Segment(node, offset, count)
        if offset + count < len(node.keys) or count == len(keys):
            return [first]
        return [first, *self._follow(node.children.get(keys[count]), keys, count)]

    def _follow(self, node: Node | None, keys: Sequence[int], at: int) -> list[Segment]:
        segments = []
        while node is not None:
            count = common_length(node.keys, 0, keys, at)
            segments.append(Segment(node, 0, count))
            at += count
            if count < len(node.keys) or at == len(keys):
                break
            node = node.children.get(keys[at])
        return segments

    def grow(self, place: Place, keys: list[int]) -> list[Segment]:
        """Adds blocks that differ from all that follow `place`; the run it lies inside is split there."""
        root, node, depth = place
        if node is not None and depth < node.end:
            self._split(node, depth - node.start)
        segments = []
        at = 0
        if node is not None and not node.children:
            at = min(self._max_run_blocks - len(node.keys), len(keys))
            if at:
                segments.append(Segment(node, len(node.keys), at))
                node.keys += keys[:at]
        while at < len(keys):
            run = keys[at : at + self._max_run_blocks]
            node = self._add(root, node, run)
            segments.append(Segment(node, 0, len(run)))
            at += len(run)
        return segments

    def prune(self, node: Node | None) -> None:
        """Takes away what nobody holds at the end of `node`, if it is a leaf, and of the leaves this makes."""
        while node is not None and not node.children and not node.tail_is_held():
            if length := node.held_length():
                del node.keys[length:]
                return
            self._drop(node)
            node = node.parent

    def prune_all(self, nodes: Iterable[Node]) -> None:
        """Prunes the nodes, the deepest first; one may take others of them with it."""
        for node in sorted(nodes, key=attrgetter("start"), reverse=True):
            if node.id in self.nodes:
                self.prune(node)

    def _add(self, root: Root, parent: Node | None, keys: list[int]) -> Node:
        node = self._new(root, parent, keys)
        if parent is None:
            self.roots[root.namespace, root.block_size] = root
            root.tops += 1
            self.tops[keys[0]] = node
        else:
            parent.children[keys[0]] = node
        return node

    def _drop(self, node: Node) -> None:
        del self.nodes[node.id]
        parent, root = node.parent, node.root
        if parent is None:
            del self.tops[node.keys[0]]
            root.tops -= 1
            if not root.tops:
                del self.roots[root.namespace, root.block_size]
            return
        del parent.children[node.keys[0]]
        if parent.cont is node:
            parent.cont = None

    def _split(self, node: Node, offset: int) -> None:
        """Cuts `node` before its block number `offset`; O(its holders + its children)."""
        lower_keys = node.keys[offset:]
        del node.keys[offset:]
        lower = self._new(node.root, node, lower_keys)
        lower.children, lower.cont = node.children, node.cont
        for child in lower.children.values():
            child.parent = lower
        node.children, node.cont = {lower_keys[0]: lower}, lower
        low = ones(offset)
        for upper_held, lower_held in zip(node.held, lower.held, strict=True):
            for holder, bits in list(upper_held.items()):
                if high := bits >> offset:
                    lower_held[holder] = high
                    holder.nodes.add(lower)
                if rest := bits & low:
                    upper_held[holder] = rest
                else:
                    del upper_held[holder]
        for holder in set(lower.held[0]) | set(lower.held[1]):
            if holder not in node.held[0] and holder not in node.held[1]:
                holder.nodes.discard(node)

    def _new(self, root: Root, parent: Node | None, keys: list[int]) -> Node:
        node = Node(self._next_id, root, parent, keys)
        self._next_id += 1
        self.nodes[node.id] = node
        return node
