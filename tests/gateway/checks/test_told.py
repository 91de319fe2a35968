from collections.abc import Sequence
from typing import Any

import pytest

from gateway.checks import told as module
from gateway.checks.told import Occupancy, Told
from tests.gateway.announcer import batch, stored
from tests.gateway.fleet import BLOCK

PROMPT = list(range(100, 100 + 2 * BLOCK))
ANSWER = list(range(500, 500 + BLOCK))


def removed(*hashes: int, medium: str = "CPU") -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium}


def placeholder(block_hash: int) -> dict[str, Any]:
    return stored(block_hash, tokens=[], medium="CPU") | {"block_size": 0}


def told(*events: Any) -> Told:
    made = Told()
    made.trail = made.follow(PROMPT)  # type: ignore[attr-defined]
    made.apply(batch(*events))
    return made


def trail(made: Told) -> Any:
    return made.trail  # type: ignore[attr-defined]


ON_GPU = (stored(1, 2, tokens=PROMPT), stored(3, tokens=ANSWER, parent=2))


def test_a_prompt_is_followed_from_its_first_block_into_its_answer() -> None:
    made = told(*ON_GPU)
    assert (trail(made).stored, trail(made).block_size) == ([1, 2, 3], BLOCK)
    assert trail(made).first.block_hashes == [1, 2]
    assert (made.batches, made.unusable.total(), made.offloaded(trail(made))) == (1, 0, 0)


@pytest.mark.parametrize(
    "events",
    [
        (stored(1, 2, tokens=[7, *PROMPT[1:]]),),
        (stored(2, tokens=PROMPT[BLOCK:], parent=1),),
        (stored(1, 2, tokens=PROMPT) | {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"},),
        (stored(1, 2, tokens=PROMPT) | {"group_idx": 1},),
        (stored(1, tokens=[]) | {"block_size": 0},),
    ],
    ids=["other tokens", "no beginning", "a group that keeps a part", "an unknown group", "no tokens"],
)
def test_what_is_not_the_prompt_is_not_followed(events: Sequence[Any]) -> None:
    assert trail(told(*events)).stored == []


def test_a_prompt_that_is_announced_twice_is_followed_once() -> None:
    assert trail(told(*ON_GPU, ON_GPU[0], stored(9, tokens=ANSWER, parent=8))).stored == [1, 2, 3]


def test_blocks_reach_the_cpu_tier_in_any_order() -> None:
    made = told(*ON_GPU, stored(2, tokens=PROMPT[BLOCK:], parent=1, medium="CPU"))
    assert made.offloaded(trail(made)) == 2
    made.apply(batch(stored(1, tokens=PROMPT[:BLOCK], medium="CPU"), removed(1)))
    assert made.offloaded(trail(made)) == 2
    assert made.described(trail(made))


def test_a_chunk_of_the_cpu_tier_is_named_by_its_last_block() -> None:
    made = told(*ON_GPU, placeholder(3))
    assert made.offloaded(trail(made)) == 3
    assert not made.described(trail(made))


def test_a_block_is_described_if_one_of_its_groups_is() -> None:
    made = told(*ON_GPU, stored(1, tokens=PROMPT[:BLOCK], medium="CPU"), placeholder(1))
    assert made.described(trail(made))


def test_what_cannot_be_used_is_counted() -> None:
    made = told({"type": "Unheard"})
    made.apply(b"\xc1")
    assert dict(made.unusable) == {"unknown-kind": 1, "undecodable": 1}


def test_a_busy_pod_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 1)
    made = told(*ON_GPU, placeholder(1), placeholder(3))
    assert made.offloaded(trail(made)) == 1


def test_a_tier_that_evicts_is_full() -> None:
    seen = Occupancy()
    seen.apply(0, batch(*(placeholder(i) for i in range(4))))
    assert (seen.most, seen.blocks) == (4, None)
    seen.apply(1, batch(removed(0), placeholder(4), removed(9, medium="GPU"), stored(5, tokens=PROMPT[:BLOCK])))
    seen.apply(2, b"\xc1")
    assert (seen.most, seen.blocks) == (4, 4)


def test_of_a_replay_that_begins_late_only_the_least_is_known() -> None:
    seen = Occupancy()
    seen.apply(17, batch(placeholder(1), removed(0)))
    assert (seen.whole, seen.evicted, seen.most, seen.blocks) == (False, True, 1, None)
