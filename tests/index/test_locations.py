"""The packed mapping from engine hashes to runs does what a dict does."""

import random
from array import array
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from index.locations import Locations

SPREAD = random.Random(0)
HASHES: dict[str, Callable[[int], int]] = {
    "spread": lambda _: SPREAD.getrandbits(64),
    "counted": lambda number: number,
    "of one row": lambda number: number << 32,
    "of bytes that repeat": lambda number: (number & 0xFF) * 0x0101010101010101 ^ (number >> 8),
}


def batches(kind: str, sizes: Iterable[int]) -> list[list[int]]:
    fresh = iter(dict.fromkeys(HASHES[kind](number) for number in range(4000)))
    return [[next(fresh) for _ in range(size)] for size in sizes]


@pytest.mark.parametrize("kind", HASHES)
def test_what_was_put_is_there_until_it_is_dropped(kind: str) -> None:
    locations = Locations()
    put = batches(kind, [64, 1, 300, 12, 11, 64, 64, 3, 1000, 64])
    for number, hashes in enumerate(put):
        assert not locations.any_of(hashes)
        assert not locations.all_of(hashes)
        locations.put(hashes, number)
        assert locations.any_of(hashes)
        assert locations.all_of(hashes)
    assert len(locations) == sum(map(len, put))
    assert sorted(locations) == sorted(each for hashes in put for each in hashes)
    for number, hashes in enumerate(put):
        assert [locations.get(each) for each in hashes] == [number] * len(hashes)
    for hashes in put[::2]:
        locations.drop(hashes)
        assert not locations.any_of(hashes)
    kept = [each for hashes in put[1::2] for each in hashes]
    assert sorted(locations) == sorted(kept)
    assert locations.all_of(kept)
    for hashes in put[1::2]:
        locations.drop(hashes)
    assert not len(locations)


def test_one_of_many_is_found_and_one_missing_of_many_is_missed() -> None:
    locations = Locations()
    (known, unknown) = batches("spread", [64, 64])
    locations.put(known, 1)
    assert locations.any_of([*unknown[:-1], known[5]])
    assert not locations.all_of([*known, unknown[0]])
    assert locations.get(unknown[0]) is None
    assert unknown[0] not in locations
    assert known[5] in locations


@pytest.mark.parametrize("size", [3, 64])
def test_zero_is_a_hash_like_others(size: int) -> None:
    locations = Locations()
    hashes = [0, *batches("spread", [size - 1])[0]]
    assert not locations.any_of(hashes)
    locations.put(hashes, 7)
    assert locations.get(0) == 7
    assert locations.all_of(hashes)
    assert locations.any_of([0])
    locations.drop(hashes)
    assert not len(locations)
    locations.put(hashes, 8)  # without being asked about first
    assert locations.get(0) == 8
    locations.clear()
    assert not locations.all_of(hashes)


def test_zero_that_finds_its_row_full_is_kept() -> None:
    locations = Locations()
    locations.put([number << 32 for number in range(1, 17)], 1)
    hashes = [0, *(number * 4 + 1 for number in range(11))]
    assert not locations.any_of(hashes)
    locations.put(hashes, 2)
    assert locations.get(0) == 2


def test_a_hash_may_move_to_another_run() -> None:
    locations = Locations()
    hashes = batches("of one row", [40])[0]
    locations.put(hashes, 1)
    locations.move(hashes[:2], 2)
    locations.move(hashes[2:], 2**32 - 1)
    assert [locations.get(each) for each in hashes] == [2] * 2 + [2**32 - 1] * 38
    locations.put([0], 3)
    locations.move([0, *hashes], 4)
    assert {locations.get(each) for each in locations} == {4}


def test_a_hash_is_not_found_across_two_others() -> None:
    locations = Locations()
    locations.put([4 << 32, 8], 1)
    across = 8 << 32 | 4  # the latter half of the one and the former of the other, all of one row
    assert across not in locations
    locations.put([across], 2)
    assert locations.get(across) == 2


def test_hashes_looked_for_before_others_were_put_find_their_own_slots() -> None:
    locations = Locations()
    one, other = batches("spread", [64, 20])
    assert not locations.any_of(one)
    locations.put(other, 1)
    locations.put(one, 2)
    assert locations.any_of(other)
    locations.drop(other)
    assert not locations.any_of(one[:0])
    assert {locations.get(each) for each in one} == {2}


class LikeADict(RuleBasedStateMachine):
    """Random calls against a dict; few bits, so that rows fill and bytes repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.locations = Locations()
        self.model: dict[int, int] = {}

    hashes = st.lists(
        st.one_of(st.integers(0, 200), st.integers(0, 40).map(lambda n: n << 40), st.integers(0, 2**64 - 1)),
        unique=True,
        max_size=80,
    )

    @rule(hashes=hashes, number=st.integers(0, 2**32 - 1), ask=st.booleans())
    def put(self, hashes: list[int], number: int, *, ask: bool) -> None:
        fresh = [each for each in hashes if each not in self.model]
        if ask:
            assert not self.locations.any_of(fresh)
        self.locations.put(fresh, number)
        self.model.update(dict.fromkeys(fresh, number))

    @rule(hashes=hashes)
    def drop(self, hashes: list[int]) -> None:
        known = [each for each in hashes if each in self.model]
        self.locations.drop(known)
        for each in known:
            del self.model[each]

    @rule(hashes=hashes, number=st.integers(0, 2**32 - 1))
    def move(self, hashes: list[int], number: int) -> None:
        known = [each for each in hashes if each in self.model]
        self.locations.move(known, number)
        self.model.update(dict.fromkeys(known, number))

    @rule(hashes=hashes)
    def ask(self, hashes: list[int]) -> None:
        assert self.locations.any_of(hashes) == any(each in self.model for each in hashes)
        assert self.locations.all_of(hashes) == all(each in self.model for each in hashes)
        assert array("Q", bytes(self.locations.packed(hashes))).tolist() == hashes

    @invariant()
    def holds_the_same(self) -> None:
        assert {each: self.locations.get(each) for each in self.locations} == self.model
        assert len(self.locations) == len(self.model)


TestLikeADict = LikeADict.TestCase
TestLikeADict.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, min_size=1, max_size=600))
def test_everything_is_found_again_however_much_is_put_at_once(hashes: list[int]) -> None:
    locations = Locations()
    locations.put(hashes, 3)
    assert all(locations.get(each) == 3 for each in hashes)
