"""Runs that grow together again where what had forked off is gone."""

import random

import pytest

from index.events import AllBlocksCleared, Tier
from index.radix import Applied, Cached
from tests.index.fleet import SIZE, A, B, Fleet, hashes, removed, stored


def letters(count: int) -> str:
    return "".join(chr(0x4E00 + number) for number in range(count))


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_a_run_is_one_again_when_its_fork_has_gone(fleet: Fleet) -> None:
    fleet.apply(stored("abcd"), publisher=B)
    fleet.apply(stored("abcd"), stored("abx", 2), removed("abx"))
    assert fleet.index.stats().nodes == 1
    assert fleet.matches("abcd") == {A: Cached(16, 0, 16), B: Cached(16, 0, 16)}


def test_each_holder_keeps_what_it_holds_in_each_tier(fleet: Fleet) -> None:
    fleet.apply(stored("abcdef"), stored("ab", tier=Tier.CPU))
    fleet.apply(stored("abcd", tier=Tier.CPU), removed("abcd", tier=Tier.CPU), publisher=B)
    fleet.apply(stored("abcx", 3), removed("abcx"))
    assert fleet.index.stats().nodes == 1
    assert fleet.matches("abcdef") == {A: Cached(24, 8, 24), B: Cached(0, 12, 12)}
    assert fleet.apply(removed("abcd", "abcdef")) == Applied(removed_blocks=2)
    assert fleet.cached("abcdef") == (3, 2, 3)


def test_one_that_holds_only_the_rest_keeps_it(fleet: Fleet) -> None:
    fleet.apply(stored("abcdef"), stored("abx", 2))
    fleet.apply(stored("abcdef"), removed("a", "ab"), publisher=B)
    fleet.apply(removed("abx"))
    assert fleet.index.stats().nodes == 1
    fleet.apply(stored("ab"), publisher=B)
    assert fleet.cached("abcdef", B) == (6, 0, 6)


def test_locations_made_before_between_and_after_lead_to_their_blocks(fleet: Fleet) -> None:
    fleet.apply(stored("abcd"), stored("abx", 2), stored("abcdef", 4), removed("abx"), stored("abcdefgh", 6))
    fleet.apply(stored("abcdey", 5), stored("abz", 2))
    for end in range(8, 0, -1):
        assert fleet.apply(removed("abcdefgh"[:end])) == Applied(removed_blocks=1)
    assert fleet.apply(removed("abz", "abcdey")) == Applied(removed_blocks=2)
    assert fleet.index.stats().nodes == 0


def test_what_forks_below_moves_up(fleet: Fleet) -> None:
    fleet.apply(stored("abcd"), stored("abcx", 3), stored("ay", 1), removed("ay"))
    assert fleet.index.stats().nodes == 3
    assert fleet.cached("abcd") == fleet.cached("abcx") == (4, 0, 4)
    fleet.apply(removed("abcx"), stored("abcde", 4))
    assert fleet.index.stats().nodes == 1


def test_a_fork_that_comes_and_goes_leaves_nothing_behind(fleet: Fleet) -> None:
    prompt = letters(8)
    fleet.apply(stored(prompt))
    for turn in range(200):
        at = turn % 7 + 1
        fleet.apply(stored(prompt[:at] + "x", at), removed(prompt[:at] + "x"), publisher=A)
    assert fleet.index.stats().nodes == 1
    tree = fleet.index._tree
    assert len(tree.merged) <= 16
    for end in range(8, 0, -1):
        assert fleet.apply(removed(prompt[:end])) == Applied(removed_blocks=1)


def test_a_prompt_that_was_forked_everywhere_is_few_runs_again(fleet: Fleet) -> None:
    prompt = letters(300)
    fleet.apply(stored(prompt), stored(prompt, tier=Tier.CPU))
    order = list(range(1, 300))
    random.Random(0).shuffle(order)
    forks = [prompt[:at] + "x" for at in order]
    fleet.index.apply(B, [stored(prompt), *(stored(fork, len(fork) - 1) for fork in forks)])
    assert fleet.index.stats().nodes > 500
    random.Random(1).shuffle(forks)
    fleet.index.apply(B, [removed(fork) for fork in forks])
    fleet.index.check_invariants()
    assert fleet.index.stats().nodes <= 10
    assert fleet.cached(prompt) == (300, 300, 300)


def test_two_long_runs_stay_apart_and_so_do_those_that_would_be_too_long() -> None:
    fleet = Fleet()
    prompt = letters(100)
    fleet.apply(stored(prompt), stored(prompt[:50] + "x", 50), removed(prompt[:50] + "x"))
    assert fleet.index.stats().nodes == 2
    short = Fleet(max_run_blocks=4)
    short.apply(stored("abcdefg"), stored("abcdx", 4), removed("abcdx"))
    assert short.index.stats().nodes == 2


def test_clearing_prunes_a_run_that_was_taken_into_another(fleet: Fleet) -> None:
    fleet.apply(stored("abcd"), publisher=B)
    fleet.apply(stored("abcdef"), stored("abx", 2), stored("abcdy", 4))
    fleet.apply(AllBlocksCleared())
    assert fleet.index.stats().nodes == 1
    assert fleet.matches("abcdef") == {B: Cached(16, 0, 16)}


def test_a_place_that_was_found_before_runs_became_one_is_found_again(fleet: Fleet) -> None:
    """An event corrects a block, which takes a fork away and so merges the run that the event goes on in."""
    fleet.apply(stored("abcd"), stored("abx", 2))
    moved = stored("aby", 2)
    moved.block_hashes = [hashes("abx")[-1], *hashes("abyz")[-1:]]
    moved.token_ids = [ord(letter) for letter in "yz" for _ in range(SIZE)]
    fleet.apply(moved)
    assert fleet.cached("abyz") == (4, 0, 4)
    assert fleet.cached("abcd") == (4, 0, 4)
    assert fleet.cached("abx") == (2, 0, 2)
