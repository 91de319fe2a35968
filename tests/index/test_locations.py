"""The packed mapping from engine hashes to runs does what a dict does."""

import random
from array import array
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from index.locations import Locations
from index.scratch import Scratches

SPREAD = random.Random(0)
HASHES: dict[str, Callable[[int], int]] = {
    "spread": lambda _: SPREAD.getrandbits(64),
    "counted": lambda number: number,
    "of one home": lambda number: number << 48,
    "of the last home": lambda number: number << 48 | 0xFFFFF,
    "of one mark": lambda number: 7 << 48 | number * 0x9E3779B1,
    "of one home and mark": lambda number: 7 << 48 | number << 20,
    "of bytes that repeat": lambda number: (number & 0xFF) * 0x0101010101010101 ^ (number >> 8),
}


def batches(kind: str, sizes: Iterable[int]) -> list[list[int]]:
    fresh = iter(dict.fromkeys(HASHES[kind](number) for number in range(6000)))
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
        assert locations.any_of(hashes, set(hashes))
        assert locations.all_of(hashes)
        locations.check()
    assert len(locations) == sum(map(len, put))
    assert sorted(locations) == sorted(each for hashes in put for each in hashes)
    for number, hashes in enumerate(put):
        assert [locations.get(each) for each in hashes] == [number] * len(hashes)
    for hashes in put[::2]:
        locations.drop(hashes)
        assert not locations.any_of(hashes)
        assert not locations.any_of(hashes, set(hashes))
        locations.check()
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


def test_zero_that_finds_its_window_full_is_kept() -> None:
    locations = Locations()
    locations.put([number << 48 for number in range(1, 17)], 1)
    hashes = [0, *(number << 48 | 99 * number for number in range(1, 12))]
    assert not locations.any_of(hashes)
    locations.put(hashes, 2)
    assert locations.get(0) == 2
    locations.check()


@pytest.mark.parametrize("size", [1, 12])
def test_a_hash_whose_mark_is_zero_is_a_hash_like_others(size: int) -> None:
    locations = Locations()
    hashes = [*batches("spread", [size - 1])[0], 5]
    assert not locations.any_of(hashes)
    locations.put(hashes, 7)
    assert locations.all_of(hashes)
    assert locations.get(5) == 7
    locations.check()
    locations.drop(hashes)
    assert not len(locations)


def test_hashes_at_the_end_of_the_table_stay_known_when_it_grows() -> None:
    locations = Locations()
    last = [number << 48 | (number % 3) << 10 | 0x3FF for number in range(1, 21)]
    locations.put(last, 1)
    for hashes in batches("spread", [500] * 3):
        locations.put(hashes, 2)
        locations.check()
        assert {locations.get(each) for each in last} == {1}
        assert {locations.get(each) for each in hashes} == {2}


def test_tables_that_share_scratches_do_not_mistake_each_others_results() -> None:
    scratches = Scratches()
    one, other = Locations(scratches), Locations(scratches)
    (known, unknown) = batches("spread", [64, 64])
    other.put(known, 1)
    assert not one.any_of(unknown)
    assert not other.any_of(unknown)
    one.put(unknown, 2)
    assert not one.any_of(known)
    assert other.any_of(known)
    one.put(known, 3)
    for locations, expected in ((one, {2, 3}), (other, {1})):
        locations.check()
        assert {locations.get(each) for each in locations} == expected
    assert bytes(one.packed(unknown)) == array("Q", unknown).tobytes()


def test_a_hash_may_move_to_another_run() -> None:
    locations = Locations()
    hashes = batches("of one home", [40])[0]
    locations.put(hashes, 1)
    locations.move(hashes[:2], 2)
    locations.move(hashes[2:], 2**32 - 1)
    assert [locations.get(each) for each in hashes] == [2] * 2 + [2**32 - 1] * 38
    locations.put([0], 3)
    locations.move([0, *hashes], 4)
    assert {locations.get(each) for each in locations} == {4}


def test_a_hash_is_not_found_across_two_others() -> None:
    locations = Locations()
    one, other = 0x1_0005 << 32 | 5, 0x2_0000 << 32 | 0x3_0005
    locations.put([one, other], 1)
    across = 0x3_0005 << 32 | 0x1_0005  # the latter half of the one and the former of the other, all of one home
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


def test_batches_of_ever_other_sizes_are_found_again_in_bounded_memory() -> None:
    scratches = Scratches()
    locations = Locations(scratches)
    put = batches("spread", [*range(12, 90), 513])
    for number, hashes in enumerate(put):
        assert not locations.any_of(hashes)
        locations.put(hashes, number)
        assert len(scratches) <= 64
        assert max(scratches) <= 512
    assert all(locations.get(each) == number for number, hashes in enumerate(put) for each in hashes)


class LikeADict(RuleBasedStateMachine):
    """Random calls against a dict; few bits, so that rows fill and bytes repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.locations = Locations()
        self.model: dict[int, int] = {}

    hashes = st.lists(
        st.one_of(
            st.integers(0, 200),
            st.integers(0, 40).map(lambda n: n << 48 | 1023),
            st.integers(0, 300).map(lambda n: 5 << 48 | n),
            st.integers(0, 2**64 - 1),
        ),
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

    @precondition(lambda self: len(self.model) < 600)
    @rule(seed=st.integers(0, 2**32 - 1))
    def put_many(self, seed: int) -> None:
        spread = random.Random(seed)
        fresh = [each for each in {spread.getrandbits(64) for _ in range(200)} if each not in self.model]
        self.locations.put(fresh, seed)
        self.model.update(dict.fromkeys(fresh, seed))

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
        assert self.locations.any_of(hashes, set(hashes)) == any(each in self.model for each in hashes)
        assert self.locations.all_of(hashes) == all(each in self.model for each in hashes)
        assert array("Q", bytes(self.locations.packed(hashes))).tolist() == hashes

    @invariant()
    def holds_the_same(self) -> None:
        assert {each: self.locations.get(each) for each in self.locations} == self.model
        assert len(self.locations) == len(self.model)
        self.locations.check()


TestLikeADict = LikeADict.TestCase
TestLikeADict.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.integers(0, 2**64 - 1), unique=True, min_size=1, max_size=600))
def test_everything_is_found_again_however_much_is_put_at_once(hashes: list[int]) -> None:
    locations = Locations()
    locations.put(hashes, 3)
    assert all(locations.get(each) == 3 for each in hashes)
