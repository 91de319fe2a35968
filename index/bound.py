"""What to give up when the index holds more than it may.

Coldest first, and only ends of branches: a block without the blocks before it is of no use, and the blocks before are
shared by more prompts. A run is as cold as the number of calls since it was last looked up or stored into; the index
has no clock. Leaves wait in a heap by the time they were last used when they were put there. A leaf that was used since
is put back when it comes up, so using a run costs one assignment, and each giving-up O(log(leaves)).
"""

from bisect import bisect_right
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from index.events import Tier
from index.node import Node

_SPARE: Final = 64
"""Entries of runs that are no more, beyond as many as there are runs, before the heap is made anew."""


class Leaves:
    """The runs that end a branch, and perhaps some that did."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._waiting: dict[int, Node] = {}

    def __contains__(self, node: Node) -> bool:
        return node.id in self._waiting

    def add(self, node: Node) -> None:
        """The run ends a branch now. O(log(leaves)), amortized over the runs that are no more."""
        if node.id not in self._waiting:
            self._waiting[node.id] = node
            heappush(self._heap, (node.used, node.id))
            if len(self._heap) > _SPARE + 2 * len(self._waiting):
                self._heap = [(leaf.used, leaf.id) for leaf in self._waiting.values()]
                heapify(self._heap)

    def drop(self, node: Node) -> None:
        """The run is no more."""
        self._waiting.pop(node.id, None)

    def coldest(self) -> Node:
        """The leaf that was used the longest ago; there must be one."""
        while True:
            used, number = self._heap[0]
            node = self._waiting.get(number)
            if node is None or node.children:
                heappop(self._heap)
                self._waiting.pop(number, None)
            elif node.used != used:
                heapreplace(self._heap, (node.used, number))
            else:
                return node


def tail(node: Node, excess: int) -> int:
    """The block of a leaf from which on to give it up: as few from the end as hold `excess`, if not all. O(holders)."""

    def kept(offset: int) -> int:
        return -sum((bits >> offset).bit_count() for tier in Tier for bits in node.held[tier].values())

    return max(0, bisect_right(range(len(node.keys)), -excess, key=kept) - 1)
