import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from loadgen.events import Encoding, HashMode
from loadgen.hashing import as_int
from loadgen.pod import SimulatedPod
from loadgen.profile import PodProfile
from tests.loadgen.clients import complete, next_batch, published, replayed, residents, subscribed, until
from tests.loadgen.virtual import in_virtual_time

SMALL = PodProfile(block_size=4, gpu_blocks=16, cpu_blocks=24, max_model_len=64, speed=1000)
PROMPT = list(range(300, 310))


def folded(hashes: set[bytes]) -> set[int]:
    return {as_int(block_hash) for block_hash in hashes}


@pytest.mark.parametrize("encoding", ["map", "array"])
@pytest.mark.parametrize("hash_mode", ["int", "bytes"])
async def test_a_served_prompt_is_announced_in_every_form(
    http: aiohttp.ClientSession, encoding: Encoding, hash_mode: HashMode
) -> None:
    async with SimulatedPod(profile=SMALL, encoding=encoding, hash_mode=hash_mode) as pod:
        await complete(http, pod, PROMPT)
        hashes = pod.engines[0].hasher
        expected: list[bytes] = []
        hashes.extend(expected, PROMPT)
        wire: list[Any] = [as_int(h) for h in expected] if hash_mode == "int" else list(expected)
        events = await published(pod)
    tokens = PROMPT[:8]
    if encoding == "map":
        stored = {
            "type": "BlockStored",
            "block_hashes": wire,
            "parent_block_hash": None,
            "token_ids": tokens,
            "block_size": 4,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None, None],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        assert list(events[0]) == list(stored)
        assert events[0] == stored
        by_parent = {event["parent_block_hash"]: event for event in events[1:]}
        assert by_parent[None]["token_ids"] == tokens[:4]
        assert by_parent[wire[0]]["block_hashes"] == wire[1:]
        assert {event["medium"] for event in events[1:]} == {"CPU"}
    else:
        form = ["BlockStored", wire, None, tokens, 4, None, "GPU", None, [None, None], 0, "full_attention"]
        assert events[0] == form
        assert sorted(event[3] for event in events[1:]) == [tokens[:4], tokens[4:]]


async def test_without_self_description_the_cpu_tier_gives_only_hashes(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=SMALL, self_describing=False) as pod:
        await complete(http, pod, PROMPT)
        events = [event for event in await published(pod) if event["medium"] == "CPU"]
    assert [event.pop("block_hashes") for event in events] != []
    placeholder = {
        "type": "BlockStored",
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 0,
        "lora_id": None,
        "medium": "CPU",
        "lora_name": None,
        "group_idx": 0,
    }
    assert events == [placeholder, placeholder]


async def test_a_batch_is_topic_sequence_number_and_payload(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=SMALL, topic="kv") as pod, subscribed(pod) as sub:
        first = pod.next_seq()
        await complete(http, pod, PROMPT)
        seq, (timestamp, events, rank) = await next_batch(sub)
        assert (seq, rank) == (first, 0)
        assert timestamp > 0
        assert events[0]["medium"] == "GPU"
        assert (await next_batch(sub))[0] == first + 1
        frames = await replayed(pod.replays[0], first)
        assert frames[0][:3] == [b"", b"kv", first.to_bytes(8, "big")]


async def test_evictions_are_announced_until_events_equal_the_cache(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=SMALL) as pod:
        for start in range(0, 400, 50):
            await complete(http, pod, [300 + start + i for i in range(21)])
        events = await published(pod)
        cached = pod.cached_blocks()
    removed = {event["medium"] for event in events if event["type"] == "BlockRemoved"}
    assert removed == {"GPU", "CPU"}
    assert residents(events, "GPU") == folded(cached["GPU"])
    assert residents(events, "CPU") == folded(cached["CPU"])


async def test_generated_tokens_reach_the_cpu_tier_unless_only_prompts_do(http: aiohttp.ClientSession) -> None:
    async with (
        SimulatedPod(profile=SMALL) as all_tokens,
        SimulatedPod(profile=SMALL, offload_prompt_only=True) as prompt,
    ):
        for pod in (all_tokens, prompt):
            await complete(http, pod, PROMPT, max_tokens=11)
        assert len(all_tokens.cached_blocks()["CPU"]) == 5
        assert len(prompt.cached_blocks()["CPU"]) == 2


async def test_a_gpu_reset_is_announced_and_keeps_the_cpu_tier(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=SMALL) as pod, subscribed(pod) as sub:
        await complete(http, pod, PROMPT)
        assert pod.clear_gpu()
        while (events := (await next_batch(sub))[1][1])[0]["type"] != "AllBlocksCleared":
            pass
        assert events == [{"type": "AllBlocksCleared"}]
        assert pod.cached_blocks()["GPU"] == set()
        assert len(pod.cached_blocks()["CPU"]) == 2


async def test_a_cache_salt_marks_the_first_block(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=SMALL) as pod:
        await complete(http, pod, PROMPT, cache_salt="tenant")
        (stored,) = [event for event in await published(pod) if event["medium"] == "GPU"]
        assert stored["extra_keys"] == [["tenant"], None]
        assert (await complete(http, pod, PROMPT))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_an_adapter_is_named_in_its_events(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=SMALL, loras={"sql": "/loras/sql"}) as pod:
        await complete(http, pod, PROMPT, model="sql")
        (stored,) = [event for event in await published(pod) if event["medium"] == "GPU"]
    assert (stored["lora_id"], stored["lora_name"], stored["extra_keys"]) == (1, "sql", [["sql"], ["sql"]])


async def test_a_replay_starts_where_asked_and_ends_with_the_marker(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=SMALL) as pod:
        await complete(http, pod, PROMPT)
        await complete(http, pod, [*PROMPT, *range(400, 410)])
        frames = await replayed(pod.replays[0], 2)
        assert [int.from_bytes(frame[2], "big") for frame in frames[:-1]] == list(range(2, pod.next_seq()))
        assert frames[-1] == [b"", b"", b"\xff" * 8, b""]
        assert await replayed(pod.replays[0], 10_000) == [frames[-1]]


async def test_the_replay_buffer_forgets_the_oldest_batches() -> None:
    async with SimulatedPod(profile=SMALL, replay_hwm=0) as pod:
        for _ in range(10_050):
            pod.publish_payload(b"x")
        frames = await replayed(pod.replays[0], 10_040)
        assert len(frames) == 11
        assert int.from_bytes((await replayed(pod.replays[0], 0))[0][2], "big") == 50


async def test_dropped_batches_leave_a_gap_that_a_replay_fills(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=SMALL) as pod, subscribed(pod) as sub:
        first = pod.next_seq()
        pod.drop_events(1)
        await complete(http, pod, PROMPT)
        assert (await next_batch(sub))[0] == first + 1
        lost = msgspec.msgpack.decode((await replayed(pod.replays[0], first))[0][3])
        assert lost[1][0]["medium"] == "GPU"


async def test_without_a_replay_endpoint_none_is_told(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=SMALL, replay=False) as pod:
        assert pod.replays == []
        async with http.get(f"{pod.url}/kv_event_sources") as response:
            assert (await response.json())["0"]["replay_endpoint"] is None


def test_a_batch_leaves_its_delay_after_its_step() -> None:
    async def batches() -> list[int]:
        seen = []
        async with SimulatedPod(profile=SMALL, event_delay_ms=20.0) as pod, aiohttp.ClientSession() as http:
            await complete(http, pod, PROMPT)
            for wait_s in (0.0, 0.019, 0.002):
                await asyncio.sleep(wait_s)
                seen.append(pod.next_seq())
        return seen

    before, shortly_before, after = in_virtual_time(batches())
    assert before == shortly_before == 0
    assert after > 0


async def test_delayed_batches_keep_their_order(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=SMALL) as prompt_pod, SimulatedPod(profile=SMALL, event_delay_ms=5.0) as late_pod:
        for pod in (prompt_pod, late_pod):
            for start in range(3):
                await complete(http, pod, [start, *PROMPT], max_tokens=20)
        await until(lambda: not late_pod._living().publishers[0]._delayed)
        assert await published(late_pod) == await published(prompt_pod)


async def test_what_is_still_delayed_is_lost_with_the_pod(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=SMALL, event_delay_ms=60_000.0) as pod:
        await complete(http, pod, PROMPT)
        await pod.kill()
        await pod.restart()
        assert pod.next_seq() == 0
