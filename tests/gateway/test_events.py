"""From what pods announce to what the gateway knows of them."""

from itertools import count
from typing import Any

import msgspec
import pytest

from loadgen.pod import SimulatedPod
from tests.gateway.fleet import (
    BLOCK,
    SMALL,
    Front,
    fleet,
    ids,
    resident,
    serving,
    simulated,
    spec,
    text_body,
    until,
    warm,
)

TIGHT = msgspec.structs.replace(SMALL, gpu_blocks=64, cpu_blocks=96, max_model_len=1024)
NO_REPLAY = {"replay": False}


async def reaches(front: Front, pod: SimulatedPod, **expected: Any) -> None:
    """Return when the pod's row of /pods says so."""

    async def said() -> bool:
        row = await front.row(pod)
        return all(row[field] == value for field, value in expected.items())

    await until(said)


async def cached(front: Front, prompt: Any, **fields: Any) -> dict[str, int]:
    """What /explain believes the first pod to hold of the prompt."""
    (candidate, *_) = (await front.explain(prompt, **fields))["candidates"]
    counts: dict[str, int] = candidate["cached_tokens"]
    return counts


@pytest.mark.parametrize("self_describing", [True, False], ids=["described", "placeholders"])
@pytest.mark.parametrize("hash_mode", ["int", "bytes"])
@pytest.mark.parametrize("encoding", ["map", "array"])
async def test_every_form_of_events_ends_in_the_same_knowledge(
    encoding: str, hash_mode: str, self_describing: bool
) -> None:
    options = {"encoding": encoding, "hash_mode": hash_mode, "self_describing": self_describing}
    async with fleet(pod=options) as (front, (pod,)):
        await front.complete(ids(200))
        await front.complete([*ids(96), *range(500, 600)])
        await front.complete(ids(40, salt=1), max_tokens=20)
        await front.settled(pod)
        row = await front.row(pod)
        # 12 blocks; 6 shared and 6 of its own; 3 with the answer's tokens but its last.
        assert row["cached_blocks"] == {"gpu": 21, "cpu": 21}
        assert (row["gaps"], row["restarts"], row["certain"]) == (0, 0, True)
        assert row["last_seq"] == pod.next_seq() - 1
        whole = {"gpu": 192, "cpu": 192, "any": 192}
        assert await cached(front, ids(200)) == whole
        assert await cached(front, ids(5000)) == whole
        assert await cached(front, [*ids(100), *ids(100)]) == {"gpu": 96, "cpu": 96, "any": 96}
        assert await cached(front, ids(200, salt=2)) == {"gpu": 0, "cpu": 0, "any": 0}
        assert (await front.explain(ids(200)))["block_size"] == BLOCK
        assert await front.metric("kv_events_total", outcome="applied") == pod.next_seq()
        assert await front.metric("kv_event_effects_total", effect="stored_blocks") >= 42


@pytest.mark.parametrize("self_describing", [True, False], ids=["described", "placeholders"])
async def test_what_pods_evict_is_forgotten(self_describing: bool) -> None:
    options = {"profile": TIGHT, "self_describing": self_describing}
    async with fleet(pod=options) as (front, (pod,)):
        for number in range(12):
            await front.complete(ids(300, salt=number))

        async def alike() -> bool:
            held = pod.cached_blocks()
            counts = (await front.row(pod))["cached_blocks"]
            return bool(counts == {"gpu": len(held["GPU"]), "cpu": len(held["CPU"])})

        async def newest_known() -> bool:
            return await cached(front, ids(300, salt=11)) == {"gpu": 288, "cpu": 288, "any": 288}

        await until(newest_known)
        await until(alike)
        assert len(pod.cached_blocks()["CPU"]) == 96
        assert await cached(front, ids(300)) == {"gpu": 0, "cpu": 0, "any": 0}
        assert await front.metric("kv_event_effects_total", effect="removed_blocks") > 0
        assert await front.metric("kv_event_effects_total", effect="unknown_removed") == 0
        front.parts.index.check_invariants()


async def test_what_happened_before_the_gateway_started_is_replayed() -> None:
    async with simulated() as (pod,):
        for number in range(20):
            await warm(pod, ids(100, salt=number))
        async with serving([pod]) as front:
            await front.settled(pod)
            row = await front.row(pod)
            assert (row["certain"], row["gaps"], row["last_seq"]) == (True, 0, pod.next_seq() - 1)
            assert row["cached_blocks"] == {"gpu": 120, "cpu": 120}
            assert await cached(front, ids(100, salt=7)) == {"gpu": 96, "cpu": 96, "any": 96}
            assert await front.metric("kv_replays_total", result="complete") == 1


async def test_a_gap_is_repaired_by_a_replay() -> None:
    async with fleet() as (front, (pod,)):
        await front.complete(ids(100))
        await front.settled(pod)
        # The look at the tail that follows a connection may be the first to find what was dropped; it comes once.
        for salt in (1, 3):
            pod.drop_events(3)
            await warm(pod, ids(200, salt=salt))
            await warm(pod, ids(200, salt=salt + 1))
            await front.settled(pod)
            assert await cached(front, ids(200, salt=salt)) == {"gpu": 192, "cpu": 192, "any": 192}
        row = await front.row(pod)
        assert (row["certain"], row["last_seq"]) == (True, pod.next_seq() - 1)
        assert 1 <= row["gaps"] <= 2
        assert await front.metric("kv_gaps_total") == row["gaps"]
        assert await front.metric("kv_events_total", outcome="gap") == row["gaps"]
        assert await front.metric("kv_stream_certain") == 1


async def followed(front: Front, pod: SimulatedPod) -> None:
    """Return when the gateway hears the pod: what it announced before is lost where it has no replay."""
    for number in range(1000, 2000):
        await warm(pod, ids(20, salt=number))
        if (await front.row(pod))["last_seq"] is not None:
            return
    raise AssertionError


async def test_without_replay_a_gap_leaves_the_stream_uncertain_and_is_counted() -> None:
    async with fleet(pod=NO_REPLAY) as (front, (pod,)):
        await followed(front, pod)
        await front.complete(ids(100))
        await until_cached(front, ids(100), 96)
        before = (await front.row(pod))["gaps"]
        pod.drop_events(1)
        await warm(pod, ids(100, salt=1))
        await reaches(front, pod, gaps=before + 1, certain=False)
        assert await front.metric("kv_stream_certain") == 0
        assert await front.metric("kv_gaps_total") == before + 1
        assert await front.metric("kv_replays_total") == 0
        assert (await cached(front, ids(100)))["any"] == 96
        assert (await front.complete(ids(100))).cached == 96


async def test_without_replay_what_happened_before_stays_unknown() -> None:
    async with simulated(**NO_REPLAY) as (pod,):
        await warm(pod, ids(100))
        async with serving([pod]) as front:
            assert (await front.row(pod))["certain"] is False
            await followed(front, pod)
            await warm(pod, ids(100, salt=1))
            await until_cached(front, ids(100, salt=1), 96)
            await reaches(front, pod, gaps=1, certain=False)
            assert (await cached(front, ids(100)))["any"] == 0


async def until_cached(front: Front, prompt: Any, tokens: int) -> None:
    async def known() -> bool:
        return (await cached(front, prompt))["any"] == tokens

    await until(known)


async def test_a_restarted_engine_starts_from_nothing() -> None:
    async with fleet() as (front, (pod,)):
        for number in range(5):
            await front.complete(ids(100, salt=number))
        await front.settled(pod)
        assert (await front.row(pod))["last_seq"] > 5
        await pod.restart()
        await reaches(front, pod, state="ready", cached_blocks={"gpu": 0, "cpu": 0}, last_seq=None, certain=True)
        assert (await cached(front, ids(100)))["any"] == 0
        await front.complete(ids(100))
        await front.settled(pod)
        row = await front.row(pod)
        assert (row["last_seq"], row["gaps"]) == (pod.next_seq() - 1, 0)
        assert row["cached_blocks"] == {"gpu": 6, "cpu": 6}


async def test_of_a_pod_that_was_killed_no_claim_outlives_its_first_event_without_replay_either() -> None:
    async with fleet(pod=NO_REPLAY) as (front, (pod,)):
        await followed(front, pod)
        old = [ids(100, salt=number) for number in range(5)]
        for prompt in old:
            await warm(pod, prompt)
            await until_cached(front, prompt, 96)
        await pod.kill()
        await pod.restart()
        salts = count(100)

        async def heard() -> bool:
            new = ids(100, salt=next(salts))
            await warm(pod, new)
            answer = await front.post("/explain", text_body(new))  # 503 as long as the pod is taken for dead
            return answer.status == 200 and answer.json["candidates"][0]["cached_tokens"]["any"] > 0

        await until(heard)
        assert [(await cached(front, prompt))["any"] for prompt in old] == [0] * 5
        assert (await front.row(pod))["state"] == "ready"


async def test_a_cleared_gpu_leaves_the_cpu_tier() -> None:
    async with fleet() as (front, (pod,)):
        await front.complete(ids(200))
        await front.settled(pod)
        await until(pod.clear_gpu)
        await reaches(front, pod, cached_blocks={"gpu": 0, "cpu": 12})
        assert await cached(front, ids(200)) == {"gpu": 0, "cpu": 192, "any": 192}
        assert (await front.complete(ids(200))).cached == 192
        await front.settled(pod)
        assert await cached(front, ids(200)) == {"gpu": 192, "cpu": 192, "any": 192}


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"not msgpack", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([1, 2, 3, 4, 5])],
)
async def test_a_payload_that_is_no_batch_is_counted_and_harms_nothing(payload: bytes) -> None:
    async with fleet() as (front, (pod,)):
        await front.complete(ids(100))
        pod.publish_payload(payload)
        await front.complete(ids(100, salt=1))
        await front.settled(pod)
        row = await front.row(pod)
        assert (row["gaps"], row["certain"], row["state"]) == (0, True, "ready")
        assert row["cached_blocks"] == {"gpu": 12, "cpu": 12}
        assert await front.metric("kv_events_total", outcome="undecodable") == 1


async def test_one_bad_event_costs_itself_and_not_its_batch() -> None:
    good = ["BlockStored", [1], None, ids(BLOCK), BLOCK]
    bad: list[Any] = [["BlockStored", "what"], ["Invented"], 7, ["BlockStored", [2], None, [1], BLOCK, None, "TAPE"]]
    async with fleet() as (front, (pod,)):
        pod.publish_payload(msgspec.msgpack.encode([0.0, [*bad, good], 0]))
        await until_cached(front, ids(100), BLOCK)
        for reason in ("malformed-stored", "unknown-kind", "malformed", "unknown-medium"):
            assert await front.metric("kv_event_effects_total", effect=reason) == 1
        assert await front.metric("kv_events_total", outcome="applied") == 1


async def test_event_addresses_may_be_configured_where_a_pod_cannot_tell_them() -> None:
    async with simulated(event_sources=False) as (pod,):
        await warm(pod, ids(100))
        told = spec(pod, kv_events=pod.events[0], kv_replay=pod.replays[0])
        async with serving([told]) as front:
            await front.settled(pod)
            assert await cached(front, ids(100)) == {"gpu": 96, "cpu": 96, "any": 96}


async def test_a_pod_that_cannot_tell_its_addresses_is_served_by_load_alone() -> None:
    async with fleet(2, pod={"event_sources": False}) as (front, pods):
        for _ in range(4):
            await front.complete(ids(100))
        for row in (await front.pods()).values():
            assert (row["state"], row["certain"], row["last_event_age"]) == ("ready", False, None)
            assert row["cached_blocks"] == {"gpu": 0, "cpu": 0}
        told = await front.explain(ids(100))
        assert told["source_reason"] == "no-holder"
        assert all(candidate["waiting"] == 0 for candidate in told["candidates"])
    assert sum(len(pod.requests) for pod in pods) == 4


async def test_a_topic_is_asked_from_the_pod_and_says_nothing_of_identity() -> None:
    async with fleet(2, pod={"topic": "kv@shared"}) as (front, pods):
        await warm(pods[0], ids(100))
        await front.settled(*pods)
        held = [(await front.row(pod))["cached_blocks"]["gpu"] for pod in pods]
        assert held == [6, 0]


async def test_pods_with_different_hash_seeds_hold_the_same_prefix() -> None:
    async with simulated(seed="1") as (one,), simulated(seed="2") as (two,), serving([one, two]) as front:
        await warm(one, ids(100))
        await warm(two, ids(100))
        await front.settled(one, two)
        told = await front.explain(ids(100))
        assert [candidate["cached_tokens"]["any"] for candidate in told["candidates"]] == [96, 96]
        assert resident(one) == resident(two) == (6, 6)
