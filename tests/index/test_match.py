"""A lookup in a crowd: right for each, and no dearer for what others hold."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.block_hash import block_keys, root_key
from index.events import BlockRemoved, BlockStored, Tier
from index.node import Node
from index.radix import Cached, Publisher, RadixIndex

CROWD = [Publisher(f"{number}:8000", 0) for number in range(12)]
PROMPT = list(range(12))
tier_bits = st.lists(st.tuples(st.integers(0, 2**12 - 1), st.integers(0, 2**12 - 1)), min_size=12, max_size=12)


def holding(publishers: dict[Publisher, tuple[int, int]], max_run: int) -> RadixIndex:
    """An index whose publishers hold these blocks of the prompt in their tiers; each block is named by its number."""
    index = RadixIndex(max_run_blocks=max_run)
    for publisher, tiers in publishers.items():
        index.add_publisher(publisher, "base")
        for tier, bits in zip(Tier, tiers, strict=True):
            index.apply(publisher, [BlockStored(PROMPT, None, PROMPT, 1, tier)])
            index.apply(publisher, [BlockRemoved([n for n in PROMPT if not bits >> n & 1], tier)])
    return index


def keys(prompt: list[int]) -> list[int]:
    return block_keys(prompt, 1, root_key("base", 1))


@settings(deadline=None)
@given(tier_bits, st.integers(1, 13), st.integers(0, 12))
def test_a_publisher_is_found_in_a_crowd_as_it_is_found_alone(
    bits: list[tuple[int, int]], max_run: int, length: int
) -> None:
    crowd = dict(zip(CROWD, bits, strict=True))
    prompt = {1: keys(PROMPT[:length])}
    alone: dict[Publisher, Cached] = {}
    for publisher, tiers in crowd.items():
        alone |= holding({publisher: tiers}, 12).match(prompt)
    assert holding(crowd, max_run).match(prompt) == alone


class Counted(list[int]):
    """A prompt that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)


def crowded(prompts: int) -> RadixIndex:
    """Prompts of 64 blocks that share their first half, and one publisher that holds them all."""
    index = RadixIndex()
    index.add_publisher(CROWD[0], "base")
    for number in range(prompts):
        tokens = [*range(32), number, *range(31)]
        index.apply(CROWD[0], [BlockStored([number << 32 | n for n in range(64)], None, tokens, 1)])
    return index


@pytest.mark.parametrize("last", [5, 70_000])
def test_a_lookup_looks_at_as_little_of_a_prompt_however_much_is_indexed(last: int) -> None:
    looks = []
    for prompts in (10, 100, 1000):
        prompt = Counted(keys([*range(32), last, *range(31)]))
        crowded(prompts).match({1: prompt})
        looks.append(prompt.looks)
    assert len(set(looks)) == 1
    assert looks[0] < 20


def test_forgetting_a_pod_touches_its_own_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    touched = []
    for others in (1, 10):
        index = crowded(50)
        for number in range(others):
            index.add_publisher(CROWD[1 + number], "base")
            for start in range(20):
                index.apply(CROWD[1 + number], [BlockStored([start], None, [number << 8 | start], 1)])
        runs: list[Node] = []

        def changed(node: Node, runs: list[Node] = runs) -> None:
            runs.append(node)

        with monkeypatch.context() as patched:
            patched.setattr(Node, "changed", changed)
            index.remove_pod(CROWD[1].pod)
        touched.append(len(runs))
    assert touched == [20, 20]
