"""An index that may not hold more than so much."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.block_hash import block_keys, root_key
from index.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Tier
from index.radix import Applied, Cached, Publisher, RadixIndex
from index.snapshot import dump, load

A, B = Publisher("a:8000", 0), Publisher("b:8000", 0)
NONE = Cached(0, 0, 0)


def name(contents: str) -> int:
    return int.from_bytes(contents.encode(), "big")


def stored(contents: str, start: int = 0, **fields: Any) -> BlockStored:
    """One-token blocks, a letter each; a block is named by its prompt."""
    hashes = [name(contents[:end]) for end in range(start + 1, len(contents) + 1)]
    parent = name(contents[:start]) if start else None
    return BlockStored(hashes, parent, list(map(ord, contents[start:])), 1, **fields)


def removed(*prompts: str, **fields: Any) -> BlockRemoved:
    return BlockRemoved([name(prompt) for prompt in prompts], **fields)


class Small:
    """Two publishers in an index of at most so many blocks, checked after every step."""

    def __init__(self, max_blocks: int | None, **limits: int) -> None:
        self.index = RadixIndex(max_blocks=max_blocks, **limits)
        for publisher in (A, B):
            self.index.add_publisher(publisher, "base")

    def apply(self, *events: Event, publisher: Publisher = A) -> Applied:
        applied = self.index.apply(publisher, events)
        self.index.check_invariants()
        return applied

    def matches(self, prompt: str) -> dict[Publisher, Cached]:
        return self.index.match({1: block_keys(list(map(ord, prompt)), 1, root_key("base", 1))})

    def cached(self, prompt: str, publisher: Publisher = A) -> Cached:
        return self.matches(prompt).get(publisher, NONE)


def test_the_coldest_branch_goes_first_from_its_end() -> None:
    small = Small(6)
    assert small.apply(stored("abc"), stored("xyz")).evicted == 0
    small.matches("abc")
    assert small.apply(stored("mn")) == Applied(stored_blocks=2, evicted=2)
    assert [small.cached(prompt).gpu for prompt in ("abc", "xyz", "mn")] == [3, 1, 2]
    assert small.index.stats().evicted == 2


def test_what_is_stored_into_again_is_warm_again() -> None:
    small = Small(6)
    small.apply(stored("abc"))
    small.apply(stored("xyz"))
    small.apply(stored("abc"))
    small.apply(stored("mno"))
    assert [small.cached(prompt).gpu for prompt in ("abc", "xyz", "mno")] == [3, 0, 3]


def test_a_shared_beginning_outlives_the_branches_behind_it() -> None:
    small = Small(6)
    small.apply(stored("abcx"))
    small.apply(stored("abcy", 3))
    assert small.apply(stored("mnop")).evicted == 3
    assert [small.cached(prompt).gpu for prompt in ("abc", "abcx", "abcy", "mnop")] == [2, 2, 2, 4]


def test_all_residencies_of_a_block_go_together() -> None:
    small = Small(9)
    for publisher in (A, B):
        small.apply(stored("abcd"), stored("ab", tier=Tier.CPU), stored("ab", tier=Tier.CPU), publisher=publisher)
    small.matches("abcd")
    assert small.apply(stored("x")).evicted == 0
    assert small.index.stats().blocks == {Tier.GPU: 5, Tier.CPU: 4}
    assert small.matches("abcd") == {A: Cached(2, 2, 2), B: Cached(2, 2, 2)}
    assert small.apply(stored("y")).evicted == 1
    assert (small.cached("x"), small.cached("y")) == (NONE, Cached(1, 0, 1))
    small.apply(stored("mn"))
    assert small.matches("abcd") == {A: Cached(1, 1, 1), B: Cached(1, 1, 1)}
    assert small.index.stats().blocks == {Tier.GPU: 5, Tier.CPU: 2}
    assert small.apply(stored("ab"), removed("ab"), removed("ab")) == Applied(
        stored_blocks=1, copies=1, removed_blocks=1, evicted_removed=1
    )


def test_the_removal_of_what_was_given_up_is_no_error() -> None:
    small = Small(2)
    small.apply(stored("abcd"))
    assert small.apply(removed("abcd", "abc", "ab")) == Applied(removed_blocks=1, evicted_removed=2)
    assert small.apply(removed("abcd")) == Applied(unknown_removed=1)
    small.apply(stored("abcd"), AllBlocksCleared())
    assert small.apply(removed("abcd")) == Applied(unknown_removed=1)


def test_what_follows_a_block_that_was_given_up_waits_until_it_is_announced_again() -> None:
    small = Small(3)
    small.apply(stored("abc"))
    small.apply(stored("xy"))
    assert small.apply(stored("abcd", 3)) == Applied(orphaned=1)
    assert small.apply(stored("abc")) == Applied(stored_blocks=3, copies=1, adopted=1, evicted=3)
    assert small.cached("abcd").gpu == 3


def test_an_event_larger_than_the_bound_is_kept_as_far_as_it_goes() -> None:
    small = Small(4, max_run_blocks=3)
    assert small.apply(stored("abcdefgh")) == Applied(stored_blocks=8, evicted=4)
    assert small.cached("abcdefgh").gpu == 4
    nothing = Small(0)
    assert nothing.apply(stored("ab")).evicted == 2


@pytest.mark.parametrize("forget", ["clear", "clear_gpu", "remove_pod", "change_model"])
def test_what_is_forgotten_makes_room(forget: str) -> None:
    small = Small(4)
    small.apply(stored("abc"))
    if forget == "clear":
        small.index.clear(A)
    elif forget == "clear_gpu":
        small.index.clear(A, Tier.GPU)
    elif forget == "remove_pod":
        small.index.remove_pod(A.pod)
    else:
        small.index.add_publisher(A, "other")
    assert small.apply(stored("wxyz"), publisher=B).evicted == 0


def test_a_snapshot_is_loaded_into_a_smaller_index_as_far_as_it_goes() -> None:
    large = Small(None)
    large.apply(stored("abcdef"))
    small = Small(4)
    load(dump(large.index, {}), small.index)
    small.index.check_invariants()
    assert small.cached("abcdef").gpu == 4


def test_branches_that_come_and_go_leave_nothing_behind() -> None:
    small = Small(1000)
    for number in range(500):
        small.apply(BlockStored([number], None, [number], 1), BlockRemoved([number]))
    leaves = small.index._tree.leaves
    assert leaves is not None
    assert len(leaves._heap) <= 64


prompts = st.text("ab", min_size=1, max_size=6)
publishers = st.sampled_from([A, B])
steps = st.lists(
    st.tuples(publishers, prompts, st.sampled_from(["store", "store", "store", "remove", "match", "clear"])),
    max_size=40,
)


@settings(deadline=None)
@given(steps, st.integers(0, 12), st.integers(1, 4))
def test_a_bounded_index_claims_nothing_that_an_unbounded_one_does_not(
    stream: list[tuple[Publisher, str, str]], max_blocks: int, max_run: int
) -> None:
    small, large = Small(max_blocks, max_run_blocks=max_run), Small(None)
    balance = 0
    for publisher, prompt, step in stream:
        if step == "match":
            small.matches(prompt)
            continue
        if step == "clear":
            balance -= small.index.blocks(publisher)[Tier.GPU]
        event = {"store": stored(prompt), "remove": removed(prompt), "clear": AllBlocksCleared()}[step]
        large.apply(event, publisher=publisher)
        applied = small.apply(event, publisher=publisher)
        balance += applied.stored_blocks - applied.removed_blocks - applied.evicted
        assert small.index.stats().blocks[Tier.GPU] == balance <= max_blocks
    for prompt in {prompt for _, prompt, _ in stream}:
        claimed, true = small.matches(prompt), large.matches(prompt)
        assert all(cached.any <= true[publisher].any for publisher, cached in claimed.items())


def test_a_run_that_took_in_another_is_given_up_where_it_ends() -> None:
    small = Small(6)
    small.apply(stored("abcd"), stored("abx", 2), removed("abx"))
    small.apply(stored("mno"))
    assert [small.cached(prompt).gpu for prompt in ("abcd", "mno")] == [3, 3]
    small.apply(stored("abce", 3), stored("ay", 1), removed("ay"))
    assert small.apply(removed("abce"), stored("pqrs")).evicted
    assert small.index.stats().blocks[Tier.GPU] == 6


def test_a_run_that_ends_a_branch_again_can_be_given_up() -> None:
    small = Small(4, max_run_blocks=2)
    small.apply(stored("abcd"), removed("abcd", "abc"))
    assert small.apply(stored("wxyz")) == Applied(stored_blocks=4, evicted=2)
    assert small.cached("ab") == NONE


def test_what_forks_below_a_run_that_took_in_another_can_be_given_up() -> None:
    small = Small(6)
    small.apply(stored("abc"), stored("abd", 2), stored("ae", 1), removed("ae"))
    assert small.apply(stored("vwxyz")).evicted == 3
    assert small.cached("a").gpu == 1
