"""Frames recorded from real vLLM pods, decoded and applied: they mean what the pods did."""

import json
from array import array
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from index import BlockStored, Publisher, RadixIndex, Tier, block_keys, decode_batch, root_key, salt_extra

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
POD = Publisher("10.0.0.1:8000", 0)
MODEL = "model"
TIERS = {"GPU": Tier.GPU, "CPU": Tier.CPU}


class Recording(NamedTuple):
    frames: list[list[bytes]]
    steps: list[dict[str, Any]]
    block_size: int

    def until(self, step: str) -> list[bytes]:
        """The payloads up to the end of a step."""
        end = next(each["frames"][1] for each in self.steps if each["name"] == step)
        return [payload for _, _, payload in self.frames[:end]]

    def request(self, step: str, number: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.steps if each["name"] == step)["requests"][number]
        return found


def recording(name: str) -> Recording:
    meaning = json.loads((GOLDEN / f"{name}.json").read_text())
    frames = msgspec.msgpack.decode((GOLDEN / f"{name}.msgpack").read_bytes())
    return Recording(frames, meaning["steps"], meaning["block_size"])


@pytest.fixture(params=["life", "whole-hashes"])
def recorded(request: pytest.FixtureRequest) -> Recording:
    return recording(request.param)


@pytest.fixture
def life() -> Recording:
    return recording("life")


def indexed(payloads: list[bytes]) -> RadixIndex:
    index = RadixIndex()
    index.add_publisher(POD, MODEL)
    for payload in payloads:
        batch = decode_batch(payload)
        assert not batch.errors
        applied = index.apply(POD, batch.events)
        assert (applied.malformed, applied.moved, applied.private, applied.dropped, applied.unknown_removed) == (0,) * 5
        index.check_invariants()
    return index


def held(index: RadixIndex, tokens: list[int], block_size: int, salt: str | None = None) -> tuple[int, int]:
    """Blocks of a prompt on the GPU and in the CPU tier."""
    extras = {0: salt_extra(salt)} if salt else None
    keys = block_keys(array("I", tokens), block_size, root_key(MODEL, block_size), extras)
    cached = index.match({block_size: keys}).get(POD)
    return (cached.gpu // block_size, cached.cpu // block_size) if cached else (0, 0)


def residents(payloads: list[bytes]) -> Counter[tuple[str, object]]:
    """Copies per tier and hash by the plainest reading of the events, without this project's code."""
    copies: Counter[tuple[str, object]] = Counter()
    for payload in payloads:
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "AllBlocksCleared":
                copies = Counter({key: n for key, n in copies.items() if key[0] != "GPU"})
                continue
            step = 1 if event["type"] == "BlockStored" else -1
            for block_hash in event["block_hashes"]:
                copies[event["medium"], block_hash] += step
    return +copies


def test_sequence_numbers_count_from_zero_without_a_gap(recorded: Recording) -> None:
    numbers = [int.from_bytes(number, "big") for _, number, _ in recorded.frames]
    assert numbers == list(range(len(numbers)))


def test_hashes_are_those_of_the_prompts_whole_or_as_numbers(recorded: Recording) -> None:
    expected = [
        block_hash if isinstance(block_hash, int) else int(block_hash[-16:], 16)
        for block_hash in recorded.request("first turn")["block_hashes"]
    ]
    stored = decode_batch(recorded.frames[0][2]).events[0]
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == expected
    assert stored.parent_block_hash is None


def test_prompt_and_generated_tokens_are_found_in_both_tiers(recorded: Recording) -> None:
    index = indexed(recorded.until("first turn"))
    turn = recorded.request("first turn")
    # The last token was never computed upon, so it has no KV.
    computed = [*turn["prompt"], *turn["output"][:-1]]
    blocks = len(computed) // recorded.block_size
    assert blocks > len(turn["prompt"]) // recorded.block_size
    assert held(index, computed, recorded.block_size) == (blocks, blocks)


def test_the_next_turn_continues_the_same_chain(life: Recording) -> None:
    index = indexed(life.until("second turn"))
    blocks = len(life.request("second turn")["block_hashes"])
    assert held(index, life.request("second turn")["prompt"], life.block_size) == (blocks, blocks)
    assert index.stats().nodes == 1


def test_a_salted_prompt_is_found_under_its_salt_only(recorded: Recording) -> None:
    index = indexed(recorded.until("salted"))
    salted = recorded.request("salted")
    blocks = len(salted["block_hashes"])
    # Events of the CPU tier do not name the salt; the block is known by its hash.
    assert held(index, salted["prompt"], recorded.block_size, "tenant") == (blocks, blocks)
    assert held(index, salted["prompt"], recorded.block_size, "other") == (0, 0)


def test_under_pressure_exactly_what_was_not_removed_is_left(life: Recording) -> None:
    payloads = life.until("pressure")
    index = indexed(payloads)
    left = residents(payloads)
    announced = {
        block_hash for payload in payloads for e in decode_batch(payload).events for block_hash in e.block_hashes
    }  # type: ignore[union-attr]
    assert len(left) < 2 * len(announced)
    for medium, tier in TIERS.items():
        assert index.blocks(POD)[tier] == sum(1 for kind, _ in left if kind == medium)
    newest = life.request("pressure", 3)
    blocks = len(newest["block_hashes"])
    assert held(index, newest["prompt"], life.block_size) == (blocks, blocks)


def test_a_reset_empties_the_gpu_and_keeps_the_cpu_tier(life: Recording) -> None:
    before = indexed(life.until("pressure")).blocks(POD)
    index = indexed(life.until("reset"))
    assert index.blocks(POD) == {Tier.GPU: 0, Tier.CPU: before[Tier.CPU]}
    assert index.blocks(POD)[Tier.CPU] > 0
    after = indexed(life.until("after reset"))
    blocks = len(life.request("after reset")["block_hashes"])
    assert held(after, life.request("after reset")["prompt"], life.block_size)[0] == blocks


def test_both_hash_modes_end_in_the_same_index() -> None:
    numbers, whole = recording("life"), recording("whole-hashes")
    turn = numbers.request("first turn")
    assert turn["prompt"] == whole.request("first turn")["prompt"]
    tokens = [*turn["prompt"], *turn["output"]]
    after_turn = [indexed(each.until("first turn")) for each in (numbers, whole)]
    assert len({held(index, tokens, numbers.block_size) for index in after_turn}) == 1
    assert after_turn[0].blocks(POD) == after_turn[1].blocks(POD)
    assert after_turn[0].stats() == after_turn[1].stats()


def test_a_replay_repeats_the_live_frames_and_ends_with_minus_one(life: Recording) -> None:
    *answers, end = msgspec.msgpack.decode((GOLDEN / "replay.msgpack").read_bytes())
    assert [answer[-2:] for answer in answers] == [frame[-2:] for frame in life.frames]
    assert (int.from_bytes(end[-2], "big", signed=True), end[-1]) == (-1, b"")
