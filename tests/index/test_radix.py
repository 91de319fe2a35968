import itertools

import pytest
from msgspec.structs import replace

from index.block_hash import block_keys, extra_bytes, root_key, salt_extra
from index.events import AllBlocksCleared, BlockRemoved, BlockStored, Tier
from index.radix import Applied, Cached, IndexStats
from index.removals import joined_removals
from tests.index.fleet import A1, SIZE, A, B, Fleet, hashes, placeholder, removed, stored, tokens


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(max_run_blocks=4)


# Stores


def test_a_stored_prompt_is_found_by_its_prefixes_and_extensions(fleet: Fleet) -> None:
    assert fleet.apply(stored("abcde")) == Applied(stored_blocks=5)
    assert fleet.matches("abcde") == {A: Cached(20, 0, 20)}
    assert fleet.cached("abc") == (3, 0, 3)
    assert fleet.cached("abcdefg") == (5, 0, 5)
    assert fleet.cached("abx") == (2, 0, 2)
    assert fleet.matches("xbcde") == fleet.matches("") == {}


def test_a_store_continues_at_its_parent(fleet: Fleet) -> None:
    fleet.apply(stored("ab"), stored("abcdefghij", 2))
    assert fleet.cached("abcdefghij") == (10, 0, 10)


def test_prompts_fork_in_the_middle_of_a_run(fleet: Fleet) -> None:
    fleet.apply(stored("abcd"), stored("abxy", 2))
    fleet.apply(stored("abcd"), publisher=B)
    assert fleet.cached("abcd") == fleet.cached("abxy") == (4, 0, 4)
    assert fleet.cached("abxy", B) == (2, 0, 2)
    assert fleet.index.stats().nodes == 3


def test_a_location_made_before_two_splits_still_leads_to_its_block(fleet: Fleet) -> None:
    fleet.apply(stored("abcd"), stored("abcx", 3), stored("ay", 1), stored("abz", 2))
    fleet.apply(stored("abcde", 4), removed("abcd"))
    assert fleet.cached("abcde") == (3, 0, 3)


def test_a_split_leaves_each_holder_the_part_it_holds(fleet: Fleet) -> None:
    for publisher in (A, A1, B):
        fleet.apply(stored("abcd"), publisher=publisher)
    fleet.apply(removed("a", "ab"), publisher=A1)
    fleet.apply(removed("abc", "abcd"), publisher=B)
    fleet.apply(stored("abx", 2))
    assert fleet.matches("abcd") == {A: Cached(16, 0, 16), B: Cached(8, 0, 8)}
    fleet.apply(stored("ab"), publisher=A1)
    assert fleet.cached("abcd", A1) == (4, 0, 4)


def test_a_full_run_is_continued_by_another(fleet: Fleet) -> None:
    fleet.apply(stored("abcd"), stored("abcde", 4))
    assert fleet.index.stats().nodes == 2
    fleet.apply(AllBlocksCleared())
    assert fleet.index.stats().nodes == 0


def test_runs_are_at_most_as_long_as_said() -> None:
    fleet = Fleet(max_run_blocks=3)
    fleet.apply(stored("abcdefgh"))
    assert fleet.index.stats().nodes == 3


def test_an_event_may_mix_known_and_new_blocks(fleet: Fleet) -> None:
    fleet.apply(stored("ab"), stored("abcde"))
    assert fleet.cached("abcde") == (5, 0, 5)
    assert fleet.apply(removed("ab")) == Applied()
    assert fleet.apply(removed("ab"), removed("abcde")).removed_blocks == 2
    assert fleet.cached("abcde") == (1, 0, 1)


def test_an_event_without_blocks_is_nothing(fleet: Fleet) -> None:
    assert fleet.apply(BlockStored([], 7, [], SIZE), BlockRemoved([]), stored("a")) == Applied(stored_blocks=1)


@pytest.mark.parametrize(
    "event",
    [
        BlockStored([1, 2], None, tokens("a"), SIZE),
        BlockStored([1, 1], None, tokens("ab"), SIZE),
        BlockStored([1, 2], 2, tokens("ab"), SIZE),
        BlockStored([1, 2], None, tokens("ab"), SIZE, extra_keys=[None]),
        BlockStored([1], None, tokens("a"), 0),
    ],
)
def test_an_event_that_contradicts_itself_is_counted_and_left(fleet: Fleet, event: BlockStored) -> None:
    assert fleet.apply(event) == Applied(malformed=1)
    assert fleet.index.stats().nodes == 0


def test_an_event_of_another_block_size_than_its_parent_is_counted_and_left(fleet: Fleet) -> None:
    fleet.apply(stored("ab"))
    assert fleet.apply(BlockStored([9], hashes("ab")[-1], [1, 2], 2)) == Applied(malformed=1)


def test_a_chain_deeper_than_locations_can_say_is_counted_and_left(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index.store.MAX_DEPTH_BLOCKS", 3)
    fleet.apply(stored("ab"))
    assert fleet.apply(stored("abcd", 2)) == Applied(malformed=1)
    assert fleet.apply(stored("abc", 2)) == Applied(stored_blocks=1)


# Removals


def test_a_removed_block_ends_the_prefix_but_not_what_lies_behind(fleet: Fleet) -> None:
    fleet.apply(stored("abcde"))
    assert fleet.apply(removed("abc")) == Applied(removed_blocks=1)
    assert fleet.cached("abcde") == (2, 0, 2)
    assert fleet.apply(stored("abc", 2)) == Applied(stored_blocks=1)
    assert fleet.cached("abcde") == (5, 0, 5)


def test_when_the_last_block_goes_the_tree_is_empty(fleet: Fleet) -> None:
    fleet.apply(stored("abcdefgh"), stored("abx", 2))
    prompts = ["abx", *("abcdefgh"[:end] for end in range(1, 9))]
    assert fleet.apply(removed(*prompts)) == Applied(removed_blocks=9)
    assert replace(fleet.index.stats(), table_bytes=0) == IndexStats(
        publishers=3, nodes=0, blocks={Tier.GPU: 0, Tier.CPU: 0}, orphans=0, placeholders=0
    )
    assert fleet.index.block_sizes("base") == ()


def test_the_memory_of_the_tables_is_told_and_grows_with_what_is_held() -> None:
    fleet = Fleet()
    empty = fleet.index.stats().table_bytes
    fleet.apply(*(stored(f"{number:07d}") for number in range(1000)))
    assert fleet.index.stats().table_bytes > empty > 0


def test_a_removal_of_what_is_not_held_is_counted(fleet: Fleet) -> None:
    fleet.apply(stored("ab"))
    assert fleet.apply(removed("abc"), removed("ab", tier=Tier.CPU), removed("ab", group=3)).unknown_removed == 3
    assert fleet.cached("ab") == (2, 0, 2)


def test_of_a_stretch_that_a_tier_holds_in_part_that_part_is_removed(fleet: Fleet) -> None:
    fleet.apply(stored("abc"), stored("ab", tier=Tier.CPU))
    assert fleet.apply(removed("a", "ab", "abc", tier=Tier.CPU)) == Applied(removed_blocks=2, unknown_removed=1)
    assert fleet.cached("abc") == (3, 0, 3)


# Copies and groups


def test_a_block_stays_until_its_last_copy_is_removed(fleet: Fleet) -> None:
    assert fleet.apply(stored("ab"), stored("ab"), stored("ab")) == Applied(stored_blocks=2, copies=4)
    assert fleet.apply(removed("ab", "ab")) == Applied()
    assert fleet.cached("ab") == (2, 0, 2)
    assert fleet.apply(removed("ab"), removed("ab")) == Applied(removed_blocks=1, unknown_removed=1)
    assert fleet.cached("ab") == (1, 0, 1)


def test_groups_count_their_copies_separately(fleet: Fleet) -> None:
    kind = "full_attention"
    fleet.apply(stored("a", group_idx=0, spec_kind=kind), stored("ab", 1, group_idx=1, spec_kind=kind))
    fleet.apply(stored("ab", group_idx=1, spec_kind=kind), removed("ab", group=1))
    assert fleet.apply(removed("ab", group=0)) == Applied(unknown_removed=1)
    assert fleet.cached("ab") == (2, 0, 2)
    assert fleet.apply(removed("a", group=0), removed("a", group=0)) == Applied(unknown_removed=1)
    assert fleet.cached("ab") == (2, 0, 2)
    assert fleet.apply(removed("ab", "a", group=1)) == Applied(removed_blocks=2)


def test_groups_that_hold_part_of_a_prefix_are_ignored_even_when_they_omit_their_kind(fleet: Fleet) -> None:
    fleet.apply(stored("ab", group_idx=1, spec_kind="sliding_window"), stored("ab", group_idx=0))
    assert fleet.apply(stored("abc", group_idx=1), placeholder("abc", group=1)).ignored_group == 4
    assert fleet.apply(removed("ab", group=1)) == Applied(ignored_group=1)
    assert fleet.cached("abc") == (2, 0, 2)


@pytest.mark.parametrize("kind", ["full_attention", "mla_attention", "sink_full_attention", None])
def test_groups_that_hold_whole_prefixes_are_indexed(fleet: Fleet, kind: str | None) -> None:
    fleet.apply(stored("ab", group_idx=0, spec_kind=kind))
    assert fleet.cached("ab") == (2, 0, 2)


def test_what_a_group_is_goes_with_the_publisher(fleet: Fleet) -> None:
    fleet.apply(stored("ab", group_idx=1, spec_kind="sliding_window"))
    fleet.index.clear(A)
    fleet.apply(stored("ab", group_idx=1))
    assert fleet.cached("ab") == (2, 0, 2)


# Tiers


def test_lengths_are_counted_per_tier_and_as_the_engine_reuses_them(fleet: Fleet) -> None:
    fleet.apply(stored("abcdefgh"), stored("abcdef", tier=Tier.CPU), removed("abcd"))
    assert fleet.cached("abcdefgh") == (3, 6, 6)
    fleet.apply(removed("ab", tier=Tier.CPU))
    assert fleet.cached("abcdefgh") == (3, 1, 6)
    fleet.apply(removed("a"))
    assert fleet.cached("abcdefgh") == (0, 1, 1)


def test_offloaded_blocks_continue_only_from_where_the_gpu_prefix_ends(fleet: Fleet) -> None:
    fleet.apply(stored("abcdefgh"), stored("abcdefgh", tier=Tier.CPU), removed("a", "ab", tier=Tier.CPU))
    fleet.apply(removed("abcdefg"))
    assert fleet.cached("abcdefgh") == (6, 0, 8)
    fleet.apply(removed("abcdefg", tier=Tier.CPU))
    assert fleet.cached("abcdefgh") == (6, 0, 6)
    assert fleet.cached("abcdef") == (6, 0, 6)


def test_the_gpu_reset_keeps_the_cpu_tier(fleet: Fleet) -> None:
    fleet.apply(stored("abcd"), stored("ab", tier=Tier.CPU), stored("cd"))
    assert fleet.apply(AllBlocksCleared()) == Applied(cleared=1)
    assert fleet.cached("abcd") == (0, 2, 2)
    assert fleet.index.blocks(A) == {Tier.GPU: 0, Tier.CPU: 2}
    fleet.apply(stored("abc", 2))
    assert fleet.cached("abcd") == (0, 2, 2)
    fleet.apply(AllBlocksCleared(), removed("a", "ab", tier=Tier.CPU))
    assert fleet.index.stats().nodes == 0


def test_copies_end_with_their_tier(fleet: Fleet) -> None:
    fleet.apply(stored("a"), stored("a"), stored("a", tier=Tier.CPU), stored("a", tier=Tier.CPU), AllBlocksCleared())
    fleet.apply(stored("a"), removed("a"), removed("a", tier=Tier.CPU))
    assert fleet.cached("a") == (0, 1, 1)


def test_an_offloaded_copy_is_known_by_its_hash_as_its_event_leaves_out_the_salt(fleet: Fleet) -> None:
    fleet.apply(stored("ab", extra_keys=[["pepper"], None]), stored("abc", tier=Tier.CPU))
    assert fleet.cached("abc", extra=salt_extra("pepper")) == (2, 3, 3)
    assert fleet.matches("abc") == {}


# Namespaces and extras


def test_adapters_and_models_do_not_share_blocks(fleet: Fleet) -> None:
    fleet.apply(stored("ab", lora_name="adapter", extra_keys=[["adapter"], ["adapter"]]))
    assert fleet.cached("ab", namespace="adapter") == (2, 0, 2)
    assert fleet.matches("ab") == {}
    assert fleet.index.block_sizes("adapter") == (SIZE,)
    assert fleet.index.block_sizes("base") == ()


def test_salted_blocks_are_found_with_their_salt_only(fleet: Fleet) -> None:
    fleet.apply(stored("ab", lora_name="adapter", extra_keys=[["adapter", "pepper"], ["adapter"]]))
    assert fleet.cached("ab", namespace="adapter", extra=salt_extra("pepper")) == (2, 0, 2)
    assert fleet.matches("ab", namespace="adapter") == {}


def test_media_are_part_of_their_block(fleet: Fleet) -> None:
    fleet.apply(stored("ab", extra_keys=[[["image", 0]], None]))
    assert fleet.cached("ab", extra=extra_bytes([["image", 0]])) == (2, 0, 2)


def test_each_block_size_is_matched_with_its_own_keys(fleet: Fleet) -> None:
    fleet.apply(stored("ab"), BlockStored([1, 2, 3], None, tokens("ab")[:6], 2), publisher=B)
    fleet.apply(stored("a"))
    sizes = fleet.index.block_sizes("base")
    assert sizes == (2, 4)
    prompts = {size: block_keys(tokens("ab"), size, root_key("base", size)) for size in sizes}
    assert fleet.index.match(prompts) == {A: Cached(4, 0, 4), B: Cached(8, 0, 8)}


def test_a_block_size_is_told_from_its_first_block_to_its_last(fleet: Fleet) -> None:
    for _ in range(2):  # what was told once is not told on when it has changed
        assert fleet.index.block_sizes("base") == fleet.index.block_sizes("base") == ()
        fleet.apply(stored("ab"), stored("x"))
        assert fleet.index.block_sizes("base") == fleet.index.block_sizes("base") == (SIZE,)
        fleet.apply(BlockStored([1, 2, 3], None, tokens("ab")[:6], 2), publisher=B)
        assert fleet.index.block_sizes("base") == fleet.index.block_sizes("base") == (2, SIZE)
        fleet.apply(removed("a", "ab"))
        assert fleet.index.block_sizes("base") == (2, SIZE)
        fleet.apply(removed("x"))
        assert fleet.index.block_sizes("base") == (2,)
        fleet.index.clear(B)


def test_of_several_block_sizes_the_longest_prefix_counts(fleet: Fleet) -> None:
    fleet.apply(BlockStored([1, 2, 3], None, tokens("ab")[:6], 2), stored("a", tier=Tier.CPU))
    prompts = {size: block_keys(tokens("ab"), size, root_key("base", size)) for size in (2, 4)}
    assert fleet.index.match(prompts) == {A: Cached(6, 4, 6)}


# Blocks announced again as something else


def test_a_hash_announced_again_with_other_content_moves(fleet: Fleet) -> None:
    fleet.apply(BlockStored([1, 2, 3], None, tokens("abc"), SIZE))
    assert fleet.apply(BlockStored([1, 2, 4], None, tokens("axd"), SIZE)) == Applied(stored_blocks=2, copies=1, moved=1)
    assert fleet.cached("axd") == (3, 0, 3)
    assert fleet.cached("abc") == (1, 0, 1)


def test_a_gpu_event_corrects_what_an_offloaded_copy_left_out(fleet: Fleet) -> None:
    fleet.apply(stored("a", tier=Tier.CPU))
    assert fleet.apply(stored("a", extra_keys=[["pepper"]])) == Applied(stored_blocks=1, moved=1)
    assert fleet.matches("a") == {}
    assert fleet.cached("a", extra=salt_extra("pepper")) == (1, 0, 1)


def test_a_known_block_stays_where_it_is_if_its_parent_is_not_known(fleet: Fleet) -> None:
    fleet.apply(stored("ab"), removed("a"))
    assert fleet.apply(stored("ab", 1)) == Applied(copies=1)
    assert fleet.apply(stored("abc", 1)) == Applied(stored_blocks=1, copies=1)


def test_known_blocks_behind_new_ones_are_kept_while_the_new_ones_wait(fleet: Fleet) -> None:
    fleet.apply(stored("abc"), removed("a", "ab"))
    assert fleet.apply(stored("abcd", 1)) == Applied(stored_blocks=1, copies=1, orphaned=1)
    assert fleet.apply(stored("a")) == Applied(stored_blocks=2, adopted=1)
    assert fleet.cached("abcd") == (4, 0, 4)


def test_a_run_may_hold_copies_and_new_blocks_alike(fleet: Fleet) -> None:
    fleet.apply(stored("abc"), placeholder("ab"))
    assert fleet.apply(stored("abc", tier=Tier.CPU)) == Applied(stored_blocks=2, copies=1)
    assert fleet.apply(removed("a", "ab", "abc", tier=Tier.CPU)) == Applied(removed_blocks=2)
    assert fleet.index.blocks(A)[Tier.CPU] == 1


def test_two_hashes_of_equal_content_are_kept_apart(fleet: Fleet) -> None:
    """Nothing tells them apart but their hashes, so only the first is claimed to be what its tokens say."""
    fleet.apply(BlockStored([1, 2], None, tokens("ab"), SIZE))
    assert fleet.apply(BlockStored([1, 12, 13], None, tokens("abc"), SIZE)) == Applied(
        stored_blocks=2, copies=1, private=2
    )
    assert fleet.cached("abc") == (2, 0, 2)
    assert fleet.apply(BlockStored([14], 13, tokens("d"), SIZE)) == Applied(stored_blocks=1)
    assert fleet.apply(BlockStored([1, 12, 13], None, tokens("abc"), SIZE)) == Applied(copies=3)
    assert fleet.apply(BlockRemoved([12, 12, 13, 13, 14])) == Applied(removed_blocks=3)
    assert fleet.cached("abc") == (2, 0, 2)
    assert fleet.index.blocks(A)[Tier.GPU] == 2


def test_a_second_hash_is_kept_apart_from_where_its_content_is_taken(fleet: Fleet) -> None:
    fleet.apply(stored("abc"), removed("a", "ab"))
    assert fleet.apply(BlockStored([1, 2, 3], None, tokens("abc"), SIZE, extra_keys=[None, None, []])) == Applied(
        stored_blocks=3, private=1
    )
    assert fleet.cached("abc") == (3, 0, 3)


def test_equal_private_blocks_of_two_publishers_are_told_apart(fleet: Fleet) -> None:
    for publisher in (A, B):
        fleet.apply(stored("ab"), BlockStored([1, 2], None, tokens("ab"), SIZE), publisher=publisher)
    assert fleet.apply(AllBlocksCleared(), publisher=B) == Applied(cleared=1)
    assert fleet.index.blocks(A)[Tier.GPU] == 4
    assert fleet.matches("ab") == {A: Cached(8, 0, 8)}


# What comes too early


def test_a_child_may_come_before_its_parent(fleet: Fleet) -> None:
    applied = fleet.apply(stored("abcdef", 4), stored("abcd", 2), stored("abcx", 3), stored("ab"))
    assert applied == Applied(stored_blocks=7, orphaned=5, adopted=5)
    assert fleet.cached("abcdef") == (6, 0, 6)
    assert fleet.cached("abcx") == (4, 0, 4)


def test_an_orphan_removed_meanwhile_is_not_there_when_its_parent_comes(fleet: Fleet) -> None:
    fleet.apply(stored("abc", 1), stored("abcd", 3), stored("abcd", 3))
    assert fleet.apply(removed("ab", "ab", "abcd")) == Applied(cancelled=2, unknown_removed=1)
    fleet.apply(stored("a"))
    assert fleet.cached("abcd") == (1, 0, 1)
    fleet.apply(stored("ab", 1))
    assert fleet.cached("abcd") == (4, 0, 4)


def test_orphans_removed_by_a_reset_still_link_their_children(fleet: Fleet) -> None:
    fleet.apply(stored("ab", 1), stored("abc", 2, tier=Tier.CPU), AllBlocksCleared(), stored("a", tier=Tier.CPU))
    assert fleet.index.blocks(A) == {Tier.GPU: 0, Tier.CPU: 2}
    fleet.apply(stored("ab", 1, tier=Tier.CPU))
    assert fleet.index.stats().orphans == 0
    assert fleet.cached("abc") == (0, 3, 3)


def test_orphans_are_bounded_and_the_oldest_are_dropped() -> None:
    fleet = Fleet(orphan_limit_blocks=3)
    fleet.apply(stored("xy", 1), stored("abc", 1))
    assert fleet.apply(stored("pq", 1)) == Applied(orphaned=1, dropped=1)
    assert fleet.apply(stored("lmnop", 1)) == Applied(orphaned=4, dropped=7)
    assert fleet.apply(stored("a"), stored("x")) == Applied(stored_blocks=2)


def test_an_orphan_that_does_not_fit_its_parent_is_dropped(fleet: Fleet) -> None:
    parent = hashes("a")[0]
    fleet.apply(BlockStored([9], parent, [1, 2], 2), BlockRemoved([9]))
    assert fleet.apply(stored("a")) == Applied(stored_blocks=1, adopted=1, malformed=1)


def test_a_placeholder_adds_a_tier_to_a_known_block(fleet: Fleet) -> None:
    fleet.apply(stored("ab"))
    assert fleet.apply(placeholder("a")) == Applied(stored_blocks=1)
    assert fleet.cached("ab") == (2, 1, 2)


def test_a_placeholder_waits_for_its_block_to_be_described(fleet: Fleet) -> None:
    assert fleet.apply(placeholder("ab"), placeholder("ab")) == Applied(placeholder_pending=2)
    assert fleet.index.stats().placeholders == 1
    assert fleet.apply(stored("ab")) == Applied(stored_blocks=3, copies=1)
    assert fleet.cached("ab") == (2, 0, 2)
    fleet.apply(removed("a"), removed("ab", tier=Tier.CPU))
    assert fleet.index.blocks(A) == {Tier.GPU: 1, Tier.CPU: 1}


def test_a_placeholder_removed_meanwhile_is_forgotten(fleet: Fleet) -> None:
    fleet.apply(placeholder("a"), placeholder("a"), placeholder("a", group=1), placeholder("b"))
    assert fleet.apply(
        removed("a", "a", "a", tier=Tier.CPU), removed("b", "a", tier=Tier.CPU, group=1), removed("b", tier=Tier.CPU)
    ) == Applied(cancelled=4, unknown_removed=2)
    fleet.apply(stored("a"))
    assert fleet.cached("a") == (1, 0, 1)


def test_placeholders_of_a_cleared_tier_are_forgotten(fleet: Fleet) -> None:
    fleet.apply(placeholder("a"), placeholder("a", Tier.GPU), placeholder("b", Tier.GPU), AllBlocksCleared())
    fleet.apply(stored("a", tier=Tier.CPU))
    assert fleet.cached("a") == (0, 1, 1)
    assert fleet.index.stats().placeholders == 0


def test_placeholders_are_bounded_and_the_oldest_are_dropped() -> None:
    fleet = Fleet(placeholder_limit_blocks=2)
    assert fleet.apply(placeholder("a"), placeholder("b"), placeholder("c")) == Applied(
        placeholder_pending=3, dropped=1
    )
    fleet.apply(stored("a"), stored("b"))
    assert (fleet.cached("a"), fleet.cached("b")) == ((1, 0, 1), (1, 1, 1))


# Publishers


def test_publishers_hold_blocks_of_their_own(fleet: Fleet) -> None:
    fleet.apply(stored("abc"))
    fleet.apply(stored("ab"), publisher=A1)
    fleet.apply(stored("abcx", tier=Tier.CPU), publisher=B)
    assert fleet.matches("abcx") == {A: Cached(12, 0, 12), A1: Cached(8, 0, 8), B: Cached(0, 16, 16)}


def test_a_publisher_without_the_first_block_is_absent(fleet: Fleet) -> None:
    fleet.apply(stored("abc"), removed("a"))
    assert fleet.matches("abc") == {}


def test_a_removed_pod_is_forgotten_with_all_its_ranks(fleet: Fleet) -> None:
    for publisher in (A, A1, B):
        fleet.apply(stored("ab"), stored("xyz", 1), placeholder("q"), publisher=publisher)
    fleet.index.remove_pod(A.pod)
    fleet.index.check_invariants()
    assert fleet.matches("ab") == {B: Cached(8, 0, 8)}
    assert fleet.index.stats().publishers == 1
    assert fleet.index.blocks(A) == {Tier.GPU: 0, Tier.CPU: 0}


def test_events_of_a_removed_pod_do_not_bring_its_blocks_back(fleet: Fleet) -> None:
    fleet.index.remove_pod(A.pod)
    assert fleet.apply(stored("ab"), removed("a")) == Applied(unknown_publisher=2)
    fleet.index.clear(A)
    assert fleet.matches("ab") == {}


def test_adding_a_publisher_again_changes_nothing_unless_the_model_does(fleet: Fleet) -> None:
    fleet.apply(stored("ab"))
    fleet.index.add_publisher(A, "base")
    assert fleet.cached("ab") == (2, 0, 2)
    fleet.index.add_publisher(A, "other")
    assert fleet.matches("ab") == {}
    fleet.apply(stored("ab"))
    assert fleet.cached("ab", namespace="other") == (2, 0, 2)


def test_clearing_a_tier_keeps_the_other(fleet: Fleet) -> None:
    fleet.apply(stored("ab"), stored("a", tier=Tier.CPU))
    fleet.index.clear(A, Tier.CPU)
    fleet.index.check_invariants()
    assert fleet.cached("ab") == (2, 0, 2)


def test_clearing_a_publisher_forgets_what_waits(fleet: Fleet) -> None:
    fleet.apply(stored("a"), stored("xy", 1), placeholder("q"))
    fleet.index.clear(A)
    fleet.index.check_invariants()
    stats = fleet.index.stats()
    assert (stats.nodes, stats.orphans, stats.placeholders, stats.publishers) == (0, 0, 0, 3)


def test_a_shared_run_outlives_the_publisher_that_made_it(fleet: Fleet) -> None:
    for contents, publisher in itertools.product(["abcdefgh", "abcdxy"], [A, B]):
        fleet.apply(stored(contents), publisher=publisher)
    fleet.index.remove_pod(A.pod)
    fleet.index.check_invariants()
    assert fleet.cached("abcdefgh", B) == (8, 0, 8)


def test_a_contradiction_in_the_record_is_found(fleet: Fleet) -> None:
    fleet.apply(stored("ab"))
    fleet.index._publishers[A].blocks[Tier.GPU] += 1
    with pytest.raises(AssertionError, match="miscounted"):
        fleet.index.check_invariants()


def test_removals_announced_one_by_one_from_the_end_are_taken_out_together() -> None:
    removals = [BlockRemoved([number]) for number in (5, 4, 3)]
    stored = BlockStored([9], None, [1], 1)
    joined = list(joined_removals([*removals, stored, BlockRemoved([2], Tier.CPU), BlockRemoved([1])]))
    assert joined == [BlockRemoved([3, 4, 5]), stored, BlockRemoved([2], Tier.CPU), BlockRemoved([1])]
    assert [event.block_hashes for event in removals] == [[5], [4], [3]]


def test_of_joined_removals_each_takes_one_copy() -> None:
    joined = list(joined_removals([BlockRemoved([1, 2]), BlockRemoved([1])]))
    assert joined == [BlockRemoved([1, 1, 2])]
