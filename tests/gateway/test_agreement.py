"""Pods that can never pull from each other are found by what their events say, and shown."""

from collections.abc import MutableMapping
from typing import Any

import pytest

from gateway.agreement import Agreement, Disagreement
from index import BlockStored, Publisher, Tier
from tests.gateway.fleet import BLOCK, Front, fleet, ids, serving, simulated, until, warm

A, B, C = (Publisher(f"{name}:8000", 0) for name in "abc")


def stored(block_hash: int, *, tokens: list[int] | None = None, size: int = BLOCK, **fields: object) -> BlockStored:
    """The first block of a prompt."""
    return BlockStored([block_hash], None, tokens or list(range(size)), size, **fields)  # type: ignore[arg-type]


def test_the_same_content_with_the_same_hash_is_agreement() -> None:
    agreement = Agreement()
    for publisher in (A, B, A):
        assert agreement.observe(publisher, "m", stored(1)) == []
    assert agreement.of(A.pod) == {}


def test_the_same_content_with_another_hash_is_told_once_and_shown_from_both_sides() -> None:
    agreement = Agreement()
    agreement.observe(A, "m", stored(1))
    assert agreement.observe(B, "m", stored(2)) == [Disagreement(A.pod, B.pod, "hash")]
    assert agreement.observe(B, "m", stored(2)) == []
    assert agreement.observe(B, "m", stored(4, tokens=[7] * BLOCK)) == []
    assert agreement.observe(A, "m", stored(3, tokens=[7] * BLOCK)) == []
    assert (agreement.of(A.pod), agreement.of(B.pod)) == ({B.pod: "hash"}, {A.pod: "hash"})


def test_another_block_size_is_told_even_without_a_common_prompt() -> None:
    agreement = Agreement()
    agreement.observe(A, "m", stored(1))
    agreement.observe(C, "other-model", stored(9, size=64))
    assert agreement.observe(B, "m", stored(2, tokens=[5] * 32, size=32)) == [Disagreement(A.pod, B.pod, "block-size")]
    assert agreement.of(C.pod) == {}


def test_a_third_pod_is_held_against_both() -> None:
    agreement = Agreement()
    for number, publisher in enumerate((A, B, C)):
        agreement.observe(publisher, "m", stored(number))
    assert agreement.of(C.pod) == {A.pod: "hash", B.pod: "hash"}


def test_a_pod_that_left_is_forgotten_and_may_come_back_agreeing() -> None:
    agreement = Agreement()
    agreement.observe(A, "m", stored(1))
    agreement.observe(B, "m", stored(2))
    agreement.forget(B.pod)
    assert agreement.of(A.pod) == {}
    assert agreement.observe(B, "m", stored(1)) == []


@pytest.mark.parametrize(
    "event",
    [
        BlockStored([2], 77, list(range(BLOCK)), BLOCK),  # in the middle of a prompt
        stored(2, tier=Tier.CPU),  # names neither salt nor media
        BlockStored([2], None, [], 0),  # a placeholder
        BlockStored([], None, [], BLOCK),
        BlockStored([2], None, [1, 2], BLOCK),
        stored(2, group_idx=1, spec_kind="sliding_window"),
        stored(2, group_idx=1),  # a group whose kind was told earlier, if at all
        stored(2, extra_keys=[["salt"]]),  # other content
        stored(2, lora_name="adapter"),
    ],
)
def test_what_does_not_tell_a_blocks_whole_content_is_not_compared(event: BlockStored) -> None:
    agreement = Agreement()
    agreement.observe(A, "m", stored(1))
    assert agreement.observe(B, "m", event) == []


def test_salted_blocks_and_adapters_are_compared_among_themselves() -> None:
    for fields in ({"extra_keys": [["salt"]]}, {"lora_name": "x", "extra_keys": [["x"]]}):
        agreement = Agreement()
        agreement.observe(A, "m", stored(1, **fields))
        assert agreement.observe(B, "m", stored(2, **fields)) == [Disagreement(A.pod, B.pod, "hash")]
        assert agreement.observe(C, "m", stored(1, **fields)) == [Disagreement(B.pod, C.pod, "hash")]


def test_what_pods_say_of_themselves_is_compared_fact_by_fact_as_far_as_both_say_it() -> None:
    agreement = Agreement()
    assert agreement.identified(A.pod, "m", {"dtype": "bfloat16", "tensor_parallel": 2}) == []
    assert agreement.identified(B.pod, "m", {"dtype": "bfloat16", "model": "x"}) == []
    assert agreement.identified(C.pod, "m", {"dtype": "float16", "tensor_parallel": 1, "model": "x"}) == [
        Disagreement(A.pod, C.pod, "dtype"),
        Disagreement(A.pod, C.pod, "tensor_parallel"),
        Disagreement(B.pod, C.pod, "dtype"),
    ]
    assert agreement.identified("d:8000", "other", {"dtype": "int8"}) == []


def test_whoever_goes_by_what_differs_is_told_when_that_changes_and_only_then() -> None:
    told = []
    agreement = Agreement(lambda: told.append(agreement.found))
    agreement.identified(A.pod, "m", {"version": "0.32"})
    agreement.identified(B.pod, "m", {"version": "0.33"})
    agreement.identified(B.pod, "m", {"version": "0.33"})
    agreement.observe(A, "m", stored(1))
    agreement.observe(B, "m", stored(2))
    differing = frozenset({Disagreement(A.pod, B.pod, "version"), Disagreement(A.pod, B.pod, "hash")})
    assert told == [frozenset({Disagreement(A.pod, B.pod, "version")}), differing]
    agreement.forget(C.pod)
    assert len(told) == 2
    agreement.forget(B.pod)
    assert told[2:] == [frozenset()]
    assert agreement.identified(B.pod, "m", {"version": "0.32"}) == []


def test_old_prompts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.agreement._REMEMBERED_PROMPTS", 2)
    agreement = Agreement()
    for number in range(3):
        agreement.observe(A, "m", stored(number, tokens=[number] * BLOCK))
    assert agreement.observe(B, "m", stored(99, tokens=[0] * BLOCK)) == []
    assert agreement.observe(B, "m", stored(99, tokens=[2] * BLOCK)) == [Disagreement(A.pod, B.pod, "hash")]


async def disagreements(front: Front) -> dict[str, dict[str, str]]:
    return {url: row["cannot_pull_from"] for url, row in (await front.pods()).items()}


async def all_disagree(front: Front) -> bool:
    return all((await disagreements(front)).values())


async def probed(front: Front, result: str, count: int) -> bool:
    return await front.metric("probes_total", result=result) == count


async def test_a_probe_finds_pods_of_different_seeds_at_start(log: list[MutableMapping[str, Any]]) -> None:
    async with (
        simulated(seed="0") as (one,),
        simulated(seed="1") as (other,),
        serving([one, other], p2p={"probe": True}) as front,
    ):
        await until(lambda: all_disagree(front))
        names = [pod.url.removeprefix("http://") for pod in (one, other)]
        assert await disagreements(front) == {one.url: {names[1]: "hash"}, other.url: {names[0]: "hash"}}
        assert await front.metric("pod_disagreements") == 2
        await until(lambda: probed(front, "ok", 2))
    warnings = [entry for entry in log if "cannot pull" in entry["event"]]
    assert [[entry["pod"], entry["peer"]] for entry in warnings] == [sorted(names)]
    assert "PYTHONHASHSEED" in warnings[0]["fix"]


async def test_pods_that_agree_are_probed_once_each_and_nothing_is_found() -> None:
    async with fleet(2, p2p={"probe": True}) as (front, pods):
        await until(lambda: probed(front, "ok", 2))
        await front.settled(*pods)
        assert await front.metric("pod_disagreements") == 0
        assert [len(pod.requests) for pod in pods] == [1, 1]
        bodies = [pod.requests[0].json for pod in pods]
        assert bodies[0] == bodies[1]


async def test_a_pod_that_comes_back_with_the_right_seed_agrees_again() -> None:
    async with simulated(seed="0") as (one,), simulated(seed="1") as (other,), serving([one, other]) as front:
        for pod in (one, other):
            await warm(pod, ids(100))
        await until(lambda: all_disagree(front))
        await other.kill()

        async def alone() -> bool:
            return not any((await disagreements(front)).values())

        await until(alone)


async def test_a_probe_that_fails_is_counted_and_harms_nothing() -> None:
    async with simulated(2) as pods:
        pods[0].fail_next(503)
        async with serving(pods, p2p={"probe": True}) as front:
            await until(lambda: probed(front, "pod_unavailable", 1))
            await until(lambda: probed(front, "ok", 1))
            assert await front.metric("pod_ready") == 2
            assert (await front.complete(ids(50))).status == 200
