"""The prefix tree of runs: finding, growing, splitting and pruning it.

Runs split only where contents diverge, and the last run of a branch grows in place. Where a fork has gone, a short run
and what follows it become one again. So a tree has about as many nodes as the fleet's prompts have points of
divergence, not as they have blocks, and not as they ever had.

A location says of a block which node it was put in, by the node's id. A split leaves the upper part its id and makes
the lower part a new child, linked as the upper part's `cont`; so a block is in the node it was put in or behind it on
the way of `cont`s. Whoever follows that way finds it, because no location is ever stale:

- A holder has a location for a block exactly as long as it holds the block in some tier, that is, has its bit.
- A node, or the tail of a leaf, goes only when nobody has a bit in it; so no location leads there.
- `cont` is a child, hence goes before its parent, and a block of it that somebody holds keeps the whole way to it.
- A run that is taken into the one before it leaves that one its id, and its `cont`: what was behind it still is.
- A leaf that lost its tail (or its `cont`) and then grows again holds new blocks there, which only new locations name;
  so does a run that got the id of one that has gone. Ids are used again to stay small.
"""

from array import array
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from index.block_hash import root_key
from index.bound import Leaves
from index.events import Tier
from index.node import Node, Root, common_length, ones

MAX_DEPTH_BLOCKS: Final = 1 << 24
"""Longest chain; no engine has such a context, so a chain this long is a fault."""


_SHORT: Final = 32
"""Blocks of a run that is worth taking into another. Two long ones are as well apart: one more step for a lookup."""

_MOST_IDS: Final = 16
"""Further ids of a run before its blocks are located anew, and the ids are free."""


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


Step = tuple[Node, int, int]
"""The part of a prompt's path that lies in one run: its blocks are the prompt's from the first number to before the
second."""


class Tree:
    """All runs of all namespaces and block sizes.

    `nodes` holds the runs by id, `merged` those that answer for the ids of others. `tops` holds the first runs by first
    key, of all roots together: root keys differ, so their chains do. `clock` is the time that runs are marked with when
    they are used; `leaves` learns which runs end a branch, if it is wanted.
    """

    def __init__(self, max_run_blocks: int, leaves: Leaves | None = None) -> None:
        self.clock = 0
        self.leaves = leaves
        self.tops: dict[int, Node] = {}
        self.nodes: dict[int, Node] = {}
        self.merged: dict[int, Node] = {}
        self.roots: dict[tuple[str, int], Root] = {}
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._max_run_blocks = max_run_blocks
        self._free_ids: list[int] = []

    def at(self, number: int) -> Node:
        """The run that a location names."""
        node = self.nodes.get(number)
        return node if node is not None else self.merged[number]

    def start(self, namespace: str, block_size: int) -> Place:
        """Where prompts start; the root is remembered only once a run starts there."""
        root = self.roots.get((namespace, block_size))
        return Place(root or Root(namespace, block_size, root_key(namespace, block_size)), None, 0)

    def steps(self, keys: Sequence[int]) -> list[Step]:
        """The longest way from the start that `keys` and the tree share, as a lookup takes it. O(runs * log(run))."""
        steps: list[Step] = []
        node, at = self.tops.get(keys[0]) if keys else None, 0
        while node is not None:
            begin = at
            at += common_length(node.keys, 0, keys, at)
            steps.append((node, begin, at))
            node.used = self.clock
            if at - begin < len(node.keys) or at == len(keys):
                break
            node = node.children.get(keys[at])
        return steps

    def block_sizes(self, namespace: str) -> tuple[int, ...]:
        """Those that the namespace has roots of, ascending. O(roots) after one came or went, O(1) until the next."""
        sizes = self._sizes.get(namespace)
        if sizes is None:
            sizes = tuple(sorted([size for name, size in self.roots if name == namespace]))
            self._sizes[namespace] = sizes
        return sizes

    def follow(self, place: Place, keys: Sequence[int]) -> list[Segment]:
        """The longest way from `place` that `keys` and the tree share."""
        node = place.node
        if node is None:
            return self._follow(self.tops.get(keys[0]) if keys else None, keys, 0)
        offset = place.depth - node.start
        if offset == len(node.keys):
            return self._follow(node.children.get(keys[0]), keys, 0)
        count = common_length(node.keys, offset, keys, 0)
        if not count:
            return []
        node.used = self.clock
        first = Segment(node, offset, count)
        if offset + count < len(node.keys) or count == len(keys):
            return [first]
        return [first, *self._follow(node.children.get(keys[count]), keys, count)]

    def _follow(self, node: Node | None, keys: Sequence[int], at: int) -> list[Segment]:
        segments = []
        while node is not None:
            count = common_length(node.keys, 0, keys, at)
            segments.append(Segment(node, 0, count))
            node.used = self.clock
            at += count
            if count < len(node.keys) or at == len(keys):
                break
            node = node.children.get(keys[at])
        return segments

    def reach(self, place: Place, keys: list[int]) -> list[Segment]:
        """The way of `keys` from `place`; what of it is not there yet is made."""
        return self.complete(place, keys, self.follow(place, keys))

    def complete(self, place: Place, keys: list[int], path: list[Segment]) -> list[Segment]:
        """The way of `keys` from `place`, of which `path` is what is there already."""
        if not path:
            return self.grow(place, keys)
        found = sum(segment.length for segment in path)
        if found == len(keys):
            return path
        node, offset, count = path[-1]
        return path + self.grow(Place(place.root, node, node.start + offset + count), keys[found:])

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
                self.extend(node, keys if at == len(keys) else keys[:at])
        while at < len(keys):
            run = array("Q", keys[at : at + self._max_run_blocks])
            node = self._add(root, node, run)
            segments.append(Segment(node, 0, len(run)))
            at += len(run)
        return segments

    def has_room(self, node: Node, count: int) -> bool:
        """Whether so many blocks more may be added to a leaf."""
        return len(node.keys) + count <= self._max_run_blocks

    def extend(self, node: Node, keys: list[int]) -> None:
        """Adds blocks to a leaf that has room for them."""
        node.keys.fromlist(keys)
        node.changed()
        node.used = self.clock

    def prune(self, node: Node | None) -> None:
        """Takes away what nobody holds at the end of `node`, if it is a leaf, and of the leaves this makes."""
        while node is not None and not node.children and not node.tail_is_held():
            if length := node.held_length():
                del node.keys[length:]
                node.changed()
                return
            self._drop(node)
            node = node.parent

    def prune_all(self, nodes: Iterable[Node]) -> None:
        """Prunes the nodes, the deepest first; one may take others of them with it."""
        for each in sorted(nodes, key=attrgetter("start"), reverse=True):
            node = each
            while node.into is not None:
                node = node.into
            if self.nodes.get(node.id) is node:
                self.prune(node)

    def _add(self, root: Root, parent: Node | None, keys: "array[int]") -> Node:
        node = self._new(root, parent, keys)
        if parent is None:
            if not root.tops:
                self.roots[root.namespace, root.block_size] = root
                self._sizes.clear()
            root.tops += 1
            self.tops[keys[0]] = node
        else:
            parent.children[keys[0]] = node
        return node

    def _drop(self, node: Node) -> None:
        del self.nodes[node.id]
        self._free_ids.append(node.id)
        self._forget_ids(node)
        if self.leaves is not None:
            self.leaves.drop(node)
        parent, root = node.parent, node.root
        if parent is None:
            del self.tops[node.keys[0]]
            root.tops -= 1
            if not root.tops:
                del self.roots[root.namespace, root.block_size]
                self._sizes.clear()
            return
        del parent.children[node.keys[0]]
        if parent.cont is node:
            parent.cont = None
        if len(parent.children) == 1:
            self._merge(parent)
        elif self.leaves is not None and not parent.children:
            self.leaves.add(parent)

    def _merge(self, node: Node) -> None:
        """Takes the only child of `node` into it, if one of them is short; O(its holders + its children)."""
        (child,) = node.children.values()
        length = len(node.keys)
        if min(length, len(child.keys)) > _SHORT or length + len(child.keys) > self._max_run_blocks:
            return
        for holder in child.held[Tier.GPU].keys() | child.held[Tier.CPU].keys():
            holder.merge(node, child)
        node.keys += child.keys
        node.changed()
        node.used = max(node.used, child.used)
        node.children, node.cont = child.children, child.cont
        for grandchild in node.children.values():
            grandchild.parent = node
        child.into = node
        del self.nodes[child.id]
        node.also += [child.id, *child.also]
        self.merged.update(dict.fromkeys(node.also, node))
        if len(node.also) > _MOST_IDS:
            self._locate_anew(node)
        if self.leaves is not None:
            self.leaves.drop(child)
            if not node.children:
                self.leaves.add(node)

    def _locate_anew(self, node: Node) -> None:
        """Leaves no location that names a run by another id; O(blocks * holders) of it and what was its rest."""
        rest: Node | None = node
        while rest is not None:
            for holder in rest.held[Tier.GPU].keys() | rest.held[Tier.CPU].keys():
                holder.locate_anew(rest)
            rest = rest.cont
        self._forget_ids(node)

    def _forget_ids(self, node: Node) -> None:
        for number in node.also:
            del self.merged[number]
        self._free_ids += node.also
        node.also = []

    def _split(self, node: Node, offset: int) -> None:
        """Cuts `node` before its block number `offset`; O(its holders + its children)."""
        lower_keys = node.keys[offset:]
        del node.keys[offset:]
        node.changed()
        lower = self._new(node.root, node, lower_keys)
        lower.children, lower.cont, lower.used = node.children, node.cont, node.used
        for child in lower.children.values():
            child.parent = lower
        node.children, node.cont = {lower_keys[0]: lower}, lower
        for holder in node.held[Tier.GPU].keys() | node.held[Tier.CPU].keys():
            holder.split(node, lower, offset)

    def _new(self, root: Root, parent: Node | None, keys: "array[int]") -> Node:
        number = self._free_ids.pop() if self._free_ids else len(self.nodes) + len(self.merged)
        node = Node(number, root, parent, keys)
        node.used = self.clock
        if self.leaves is not None:
            self.leaves.add(node)
        self.nodes[node.id] = node
        return node
