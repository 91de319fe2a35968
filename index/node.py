"""Runs: the nodes of the prefix tree, and how two chains of keys are compared.

A run is a stretch of consecutive blocks in which prompts do not diverge. Because keys are chained, two sequences that
agree at one position agree at every position before it. So one comparison, of the last keys, settles whether a whole
stretch agrees, and where it does not, bisection finds the point of divergence: O(log n) instead of O(n).

Who holds what lies beside a run as bit sets: per tier, holder → int, bit i for the run's i-th block. A store or a
removal flips bits and leaves the tree as it is; contiguity questions are arithmetic on one int.
"""

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from index.events import Tier

if TYPE_CHECKING:
    from index.holdings import Holdings


class Root:
    """Where the prompts of one namespace and block size start. `tops` counts the runs that start here."""

    __slots__ = ("block_size", "key", "namespace", "tops")

    def __init__(self, namespace: str, block_size: int, key: int) -> None:
        self.namespace = namespace
        self.block_size = block_size
        self.key = key
        self.tops = 0


class Node:
    """A run of blocks at depths `start` … `end` - 1 below `root`.

    `parent` is the run it follows (None: it is the first), `children` the runs that follow it by their first key,
    `cont` the child that was this run's own rest before a split. `held[tier]` maps holders to bit sets, never 0.
    Whoever changes keys or bit sets calls `changed`. `used` is the tree's clock when the run was last used. A run that
    was taken `into` another is no more; the other answers for its id, which is among `also`.
    """

    __slots__ = (
        "_whole",
        "also",
        "children",
        "cont",
        "held",
        "id",
        "into",
        "keys",
        "parent",
        "root",
        "start",
        "used",
    )

    def __init__(self, node_id: int, root: Root, parent: "Node | None", keys: "array[int]") -> None:
        self.id = node_id
        self.root = root
        self.parent = parent
        self.start = parent.end if parent else 0
        self.keys = keys
        self.used = 0
        self.children: dict[int, Node] = {}
        self.cont: Node | None = None
        self.into: Node | None = None
        self.also: list[int] = []
        self.held: tuple[dict[Holdings, int], dict[Holdings, int]] = ({}, {})
        self._whole: tuple[frozenset[Holdings], frozenset[Holdings]] | None = None

    @property
    def end(self) -> int:
        """The depth after the run's last block."""
        return self.start + len(self.keys)

    def whole(self, tier: Tier) -> "frozenset[Holdings]":
        """Who holds all of the run in the tier. O(holders) after a change, O(1) until the next."""
        if self._whole is None:
            every = ones(len(self.keys))
            gpu, cpu = (frozenset(holder for holder, bits in held.items() if bits == every) for held in self.held)
            self._whole = gpu, cpu
        return self._whole[tier]

    def changed(self) -> None:
        """The run or its bit sets have changed."""
        self._whole = None

    def held_length(self) -> int:
        """How many leading blocks reach the last one that anybody holds. O(holders)."""
        longest = 0
        for tier in self.held:
            for bits in tier.values():
                longest = max(longest, bits.bit_length())
        return longest

    def tail_is_held(self) -> bool:
        """Whether anybody holds the run's last block. O(holders), less where an early one does."""
        length = len(self.keys)
        return any(bits.bit_length() == length for tier in self.held for bits in tier.values())


def ones(count: int) -> int:
    """A bit set of the first `count` blocks."""
    return (1 << count) - 1


def trailing_ones(bits: int) -> int:
    """How many blocks from the first on are in the bit set without a gap."""
    return (~bits & (bits + 1)).bit_length() - 1


def common_length(run: Sequence[int], run_at: int, keys: Sequence[int], keys_at: int) -> int:
    """How many keys `run` from `run_at` and `keys` from `keys_at` share, both being chained. O(log n)."""
    high, rest = len(run) - run_at, len(keys) - keys_at
    if rest < high:  # noqa: PLR1730 - a third of the time, and called several times a request
        high = rest
    if high <= 0:
        return 0
    if run[run_at + high - 1] == keys[keys_at + high - 1]:
        return high
    low, high = 0, high - 1
    while low < high:
        middle = (low + high) // 2
        if run[run_at + middle] == keys[keys_at + middle]:
            low = middle + 1
        else:
            high = middle
    return low
