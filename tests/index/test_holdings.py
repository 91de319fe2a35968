"""Finding a block by its engine hash, where the bytes of the column could mislead."""

from array import array

import pytest

from index.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Tier
from index.radix import Applied, Publisher, RadixIndex

A, B = Publisher("a:8000", 0), Publisher("b:8000", 0)


class Pair:
    """Two publishers of one-token blocks, checked after every step."""

    def __init__(self) -> None:
        self.index = RadixIndex()
        for publisher in (A, B):
            self.index.add_publisher(publisher, "base")

    def apply(self, *events: Event, publisher: Publisher = A) -> Applied:
        applied = self.index.apply(publisher, events)
        self.index.check_invariants()
        return applied


def stored(hashes: list[int], tokens: list[int], parent: int | None = None) -> BlockStored:
    return BlockStored(hashes, parent, array("I", tokens), 1)


def test_a_hash_is_not_found_across_two_others() -> None:
    pair = Pair()
    across, upper, lower = 2 << 32 | 1, 1 << 32, 2
    pair.apply(stored([across, upper, lower], [5, 6, 7]))
    assert pair.apply(BlockRemoved([across])) == Applied(removed_blocks=1)
    assert pair.apply(BlockRemoved([across])) == Applied(unknown_removed=1)


def test_a_hash_that_moved_is_not_found_where_it_was() -> None:
    pair = Pair()
    pair.apply(stored([11, 12, 13], [5, 6, 7]), publisher=B)
    pair.apply(stored([1, 2, 3], [5, 6, 7]), BlockRemoved([3, 2]), stored([3], [6], parent=1))
    assert pair.apply(stored([4], [7], parent=3)) == Applied(stored_blocks=1)
    assert pair.apply(BlockRemoved([3, 4])) == Applied(removed_blocks=2)


def test_the_hash_zero_is_a_hash_like_others() -> None:
    pair = Pair()
    pair.apply(stored([1, 0, 2], [5, 6, 7]), BlockRemoved([2]))
    assert pair.apply(stored([9], [8], parent=0)) == Applied(stored_blocks=1)
    assert pair.apply(BlockRemoved([0, 9, 0])) == Applied(removed_blocks=2, unknown_removed=1)


def test_a_removal_of_many_blocks_takes_those_side_by_side_together_and_counts_each() -> None:
    pair = Pair()
    pair.apply(stored([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]), stored([6], [9], parent=2))
    assert pair.apply(BlockRemoved([2, 3, 5, 4, 77, 1, 6])) == Applied(removed_blocks=6, unknown_removed=1)
    assert pair.index.stats().nodes == 0


@pytest.mark.parametrize("other", [Tier.GPU, Tier.CPU])
def test_of_blocks_side_by_side_those_with_more_copies_or_in_another_tier_stay(other: Tier) -> None:
    pair = Pair()
    pair.apply(stored([1, 2, 3, 4], [1, 2, 3, 4]), BlockStored([2], None, [], 0, other))
    left = 1 if other is Tier.GPU else 0
    assert pair.apply(BlockRemoved([1, 2, 3, 4])) == Applied(removed_blocks=4 - left)
    assert pair.index.blocks(A) == {Tier.GPU: left, Tier.CPU: 1 - left}
    assert pair.apply(BlockRemoved([1, 2, 3, 4], other)) == Applied(removed_blocks=1, unknown_removed=3)


def test_a_reset_of_one_tier_forgets_the_hashes_that_were_in_no_other() -> None:
    pair = Pair()
    pair.apply(stored([1, 2, 3], [1, 2, 3]), BlockStored([2], None, [], 0, Tier.CPU), AllBlocksCleared())
    assert pair.apply(BlockRemoved([1, 2, 3], Tier.CPU)) == Applied(removed_blocks=1, unknown_removed=2)
