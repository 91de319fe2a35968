"""Events of many blocks, which are looked at together, do what their blocks would do one by one."""

import random
from array import array
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.block_hash import block_keys, root_key
from index.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Tier
from index.radix import Applied, Publisher, RadixIndex

PUBLISHERS = [Publisher("a:8000", 0), Publisher("b:8000", 0)]
MODEL = "base"
SIZE = 4


class Prompt:
    """A prompt's blocks; hashes are the same for all who share its beginning."""

    def __init__(self, tokens: "array[int]", hashes: list[int]) -> None:
        self.tokens = tokens
        self.hashes = hashes

    def turned(self, spread: random.Random, at: int, count: int) -> "Prompt":
        """Another that goes its own way after `at` blocks."""
        tokens = array("I", [spread.randrange(1000) for _ in range(count * SIZE)])
        hashes = [spread.getrandbits(64) for _ in range(count)]
        return Prompt(self.tokens[: at * SIZE] + tokens, self.hashes[:at] + hashes)

    def stored(self, start: int, end: int, tier: Tier = Tier.GPU) -> BlockStored:
        parent = self.hashes[start - 1] if start else None
        return BlockStored(self.hashes[start:end], parent, self.tokens[start * SIZE : end * SIZE], SIZE, tier)


def one_by_one(event: Event) -> list[Event]:
    if isinstance(event, AllBlocksCleared):
        return [event]
    if isinstance(event, BlockRemoved):
        return [BlockRemoved([each], event.tier) for each in event.block_hashes]
    parents = [event.parent_block_hash, *event.block_hashes]
    return [
        BlockStored([each], parent, event.token_ids[at * SIZE : (at + 1) * SIZE], SIZE, event.tier)
        for at, (parent, each) in enumerate(zip(parents[:-1], event.block_hashes, strict=True))
    ]


def fleet(max_run_blocks: int) -> RadixIndex:
    index = RadixIndex(max_run_blocks=max_run_blocks)
    for publisher in PUBLISHERS:
        index.add_publisher(publisher, MODEL)
    return index


def counts(applied: list[Applied]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in applied:
        total.update(msgspec.structs.asdict(each))
    return total


def an_event(spread: random.Random, prompts: list[Prompt]) -> Event:
    prompt = spread.choice(prompts)
    length = len(prompt.hashes)
    start = spread.randrange(length)
    end = min(length, start + spread.choice([1, 5, 20, 64, 130]))
    tier = spread.choice([Tier.GPU, Tier.GPU, Tier.GPU, Tier.CPU])
    kind = spread.random()
    if kind < 0.35:
        return BlockRemoved(spread.choice([list, lambda hashes: hashes[::-1]])(prompt.hashes[start:end]), tier)
    if kind < 0.37:
        return AllBlocksCleared()
    return prompt.stored(start, end, tier)


def waits(index: RadixIndex, publisher: Publisher, event: Event) -> bool:
    """Whether the event would be put aside; one that is adopted is removed as a whole, whatever came between."""
    parent = event.parent_block_hash if isinstance(event, BlockStored) else None
    return parent is not None and parent not in index._publishers[publisher].located


@pytest.mark.parametrize("max_run_blocks", [50, 1024])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_the_blocks_of_an_event_are_stored_and_removed_as_if_each_came_alone(max_run_blocks: int, seed: int) -> None:
    spread = random.Random(seed)
    together, apart = fleet(max_run_blocks), fleet(max_run_blocks)
    prompts = [Prompt(array("I"), []).turned(spread, 0, 300)]
    for _ in range(4):
        prompts.append(spread.choice(prompts).turned(spread, spread.randrange(300), spread.randrange(1, 200)))
    for _ in range(40):
        publisher = spread.choice(PUBLISHERS)
        event = an_event(spread, prompts)
        if waits(together, publisher, event):
            continue
        done = together.apply(publisher, [event])
        singly = [apart.apply(publisher, [each]) for each in one_by_one(event)]
        assert counts([done]) == counts(singly)
        together.check_invariants()
        assert together.stats().blocks == apart.stats().blocks
    for prompt in prompts:
        keys = {SIZE: block_keys(prompt.tokens, SIZE, root_key(MODEL, SIZE))}
        assert together.match(keys) == apart.match(keys)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), counts_=st.lists(st.sampled_from([1, 7, 12, 64, 100]), min_size=1, max_size=30))
def test_a_prompt_that_comes_in_pieces_is_the_prompt(seed: int, counts_: list[int]) -> None:
    index = fleet(1024)
    prompt = Prompt(array("I"), []).turned(random.Random(seed), 0, sum(counts_))
    at = 0
    for count in counts_:
        applied = index.apply(PUBLISHERS[0], [prompt.stored(at, at + count)])
        assert applied == Applied(stored_blocks=count)
        at += count
    index.check_invariants()
    keys = {SIZE: block_keys(prompt.tokens, SIZE, root_key(MODEL, SIZE))}
    assert index.match(keys)[PUBLISHERS[0]].gpu == at * SIZE
    assert index.apply(PUBLISHERS[0], [BlockRemoved(prompt.hashes[::-1])]) == Applied(removed_blocks=at)
    assert index.stats().nodes == 0


class Going:
    """One publisher with the first 40 of a prompt's 200 blocks, checked after every step."""

    def __init__(self) -> None:
        self.spread = random.Random(0)
        self.prompt = Prompt(array("I"), []).turned(self.spread, 0, 200)
        self.index = fleet(128)
        self.apply(self.prompt.stored(0, 40))

    def apply(self, *events: Event, publisher: Publisher = PUBLISHERS[0]) -> Applied:
        applied = self.index.apply(publisher, events)
        self.index.check_invariants()
        return applied

    def held(self) -> int:
        keys = {SIZE: block_keys(self.prompt.tokens, SIZE, root_key(MODEL, SIZE))}
        found = self.index.match(keys).get(PUBLISHERS[0])
        return found.gpu // SIZE if found else 0


def test_a_store_goes_on_in_another_tier() -> None:
    going = Going()
    assert going.apply(going.prompt.stored(40, 80, Tier.CPU)) == Applied(stored_blocks=40)
    assert going.apply(going.prompt.stored(80, 120)) == Applied(stored_blocks=40)
    assert going.held() == 40
    assert going.index.blocks(PUBLISHERS[0]) == {Tier.GPU: 80, Tier.CPU: 40}


def test_a_store_goes_on_where_the_run_is_full() -> None:
    going = Going()
    assert going.apply(going.prompt.stored(40, 128)) == Applied(stored_blocks=88)
    assert going.apply(going.prompt.stored(128, 200)) == Applied(stored_blocks=72)
    assert going.held() == 200


def test_a_store_goes_on_after_its_run_was_split_behind_it() -> None:
    going = Going()
    going.apply(going.prompt.stored(40, 80))
    going.apply(going.prompt.turned(going.spread, 60, 1).stored(0, 61), publisher=PUBLISHERS[1])
    assert going.apply(going.prompt.stored(80, 110)) == Applied(stored_blocks=30)
    assert going.held() == 110


def test_a_store_goes_on_after_the_last_blocks_were_removed() -> None:
    going = Going()
    going.apply(BlockRemoved(going.prompt.hashes[39:19:-1]))
    assert going.apply(going.prompt.stored(40, 60)) == Applied(orphaned=20)
    assert going.apply(going.prompt.stored(20, 40)) == Applied(stored_blocks=40, adopted=20)
    assert going.held() == 60


def test_a_store_goes_on_after_others_went_on_longer() -> None:
    going = Going()
    going.apply(going.prompt.stored(0, 100), publisher=PUBLISHERS[1])
    assert going.apply(going.prompt.stored(40, 64)) == Applied(stored_blocks=24)
    assert going.apply(going.prompt.turned(going.spread, 64, 20).stored(64, 84)) == Applied(stored_blocks=20)
    assert going.held() == 64


def test_a_store_goes_on_after_its_run_was_taken_into_the_one_before() -> None:
    going = Going()
    fork = going.prompt.turned(going.spread, 20, 1)
    going.apply(fork.stored(0, 21), publisher=PUBLISHERS[1])
    assert going.index.stats().nodes == 3
    going.apply(BlockRemoved(fork.hashes[20:]), publisher=PUBLISHERS[1])
    assert going.index.stats().nodes == 1
    assert going.apply(going.prompt.stored(40, 60)) == Applied(stored_blocks=20)
    assert going.held() == 60


def test_a_store_that_goes_on_with_known_blocks_moves_them() -> None:
    going = Going()
    other = going.prompt.turned(going.spread, 10, 20)
    going.apply(other.stored(10, 30))
    repeated = going.prompt.stored(40, 60)
    repeated.block_hashes = [*repeated.block_hashes[:-1], other.hashes[29]]
    assert going.apply(repeated) == Applied(stored_blocks=20, moved=1)


def test_after_a_reset_nothing_goes_on() -> None:
    going = Going()
    going.apply(AllBlocksCleared())
    assert going.apply(going.prompt.stored(40, 60)) == Applied(orphaned=20)


def test_blocks_of_another_size_do_not_go_on() -> None:
    going = Going()
    tokens = array("I", range(12 * 2))
    event = BlockStored([going.spread.getrandbits(64) for _ in range(12)], going.prompt.hashes[39], tokens, 2)
    assert going.apply(event) == Applied(malformed=1)
