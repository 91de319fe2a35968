"""What a prefix depends on besides its tokens: rank, adapter, alias, salt."""

from typing import Any

import pytest

from tests.gateway.fleet import (
    MODEL,
    PREFIX_ONLY,
    QUEUE_ONLY,
    SLOW,
    Answer,
    Front,
    completions,
    connection,
    fleet,
    ids,
    posted,
    serving,
    simulated,
    spec,
    text_body,
    until,
    warm,
)
from tests.gateway.scripted import models, says, scripted

LORA: dict[str, Any] = {"loras": {"poet": "/loras/poet", "clerk": "/loras/clerk"}}


def held(explained: Any, rank: int = 0) -> int:
    (tokens,) = (each["cached_tokens"]["any"] for each in explained["candidates"] if each["rank"] == rank)
    return int(tokens)


def on_rank(rank: int) -> dict[str, str]:
    return {"x-data-parallel-rank": str(rank)}


async def warm_rank(front: Front, pod: Any, rank: int, prompt: Any) -> None:
    async with front.http.post(f"{pod.url}/v1/completions", json=text_body(prompt), headers=on_rank(rank)) as answer:
        assert answer.status == 200


async def predicted(front: Front, prompt: Any, **fields: Any) -> tuple[int, int]:
    """What was foretold of a request's cached tokens, and what its pod reported."""
    foretold = (await front.explain(prompt, **fields))["predicted_cached_tokens"]
    answer: Answer = await front.complete(prompt, **fields)
    return foretold, answer.cached


async def test_each_rank_has_its_own_stream_and_its_own_residency() -> None:
    async with fleet(pod={"ranks": 3}) as (front, (pod,)):
        await warm_rank(front, pod, 1, ids(200))
        await warm_rank(front, pod, 2, ids(100))
        await front.settled(pod)
        told = await front.explain(ids(200))
        assert [held(told, rank) for rank in range(3)] == [0, 192, 96]
        ranks = (await front.row(pod))["ranks"]
        assert [each["rank"] for each in ranks] == [0, 1, 2]
        assert [each["last_seq"] for each in ranks] == [None, pod.next_seq(1) - 1, pod.next_seq(2) - 1]
        assert (await front.row(pod))["cached_blocks"] == {"gpu": 18, "cpu": 18}
        assert await front.metric("index_blocks", rank="1", tier="gpu") == 12


async def test_a_request_is_sent_to_the_rank_that_was_chosen() -> None:
    async with fleet(pod={"ranks": 2}, placement=PREFIX_ONLY) as (front, (pod,)):
        await warm_rank(front, pod, 1, ids(200))
        await front.settled(pod)
        told = await front.explain(ids(200))
        assert (told["chosen_rank"], told["predicted_cached_tokens"]) == (1, 192)
        answer = await front.complete(ids(200), headers=on_rank(0))
        assert answer.cached == 192
        assert completions(pod)[-1].headers["x-data-parallel-rank"] == "1"
        assert completions(pod)[-1].rank == 1


async def test_a_pod_of_one_rank_is_told_no_rank() -> None:
    async with fleet() as (front, (pod,)):
        await front.complete([1])
    assert "x-data-parallel-rank" not in completions(pod)[-1].headers


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_another_rank_of_the_same_pod_is_a_source_at_its_own_port() -> None:
    async with fleet(pod={"ranks": 2}, placement=QUEUE_ONLY) as (front, (pod,)):
        await warm_rank(front, pod, 1, ids(200))
        await front.settled(pod)
        answer = await front.complete(ids(200))
        assert (answer.source, answer.cached) == (pod.url, 192)
    arrived = completions(pod)[-1]
    assert arrived.rank == 0
    source = arrived.json["kv_transfer_params"]["remote_kv_source"]
    assert source["remote_port"] == pod.p2p_port + 1


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_load_and_work_under_way_are_counted_by_rank() -> None:
    async with fleet(pod={"ranks": 2, "profile": SLOW}, placement=QUEUE_ONLY) as (front, (pod,)):
        async with connection(front) as (reader, writer):
            writer.write(posted(text_body([1], stream=True, max_tokens=1000)))
            await reader.readuntil(b"data: ")
            ranks = (await front.row(pod))["ranks"]
            assert [each["in_flight_requests"] for each in ranks] == [1, 0]

            async def polled() -> bool:
                return [each["running"] for each in (await front.row(pod))["ranks"]] == [1, 0]

            await until(polled)
        await front.idle()


async def test_the_size_of_a_pod_that_cannot_tell_its_ranks_is_configured() -> None:
    async with simulated(ranks=2, event_sources=False) as (pod,):
        entry = spec(pod, data_parallel_size=2, kv_events=pod.events[0], kv_replay=pod.replays[0])
        async with serving([entry]) as front:
            await warm_rank(front, pod, 1, ids(100))
            await front.settled(pod)
            told = await front.explain(ids(100))
            assert [held(told, rank) for rank in range(2)] == [0, 96]


async def test_adapters_do_not_share_what_is_cached() -> None:
    async with fleet(pod=LORA) as (front, (pod,)):
        await front.complete(ids(200), model="poet")
        await front.settled(pod)
        assert await predicted(front, ids(200), model="poet") == (192, 192)
        assert await predicted(front, ids(200), model="clerk") == (0, 0)
        assert await predicted(front, ids(200)) == (0, 0)
        await front.settled(pod)
        assert await predicted(front, ids(200)) == (192, 192)
        assert await front.metric("mispredicted_requests_total") == 0


async def test_an_adapter_is_matched_wherever_it_is_served() -> None:
    async with (
        simulated(**LORA) as (both,),
        simulated(loras={"poet": "/loras/poet"}) as (poet,),
        serving([both, poet], placement=PREFIX_ONLY) as front,
    ):
        await warm(poet, ids(200), model="poet")
        await front.settled(both, poet)
        assert (await front.complete(ids(200), model="poet")).pod == poet.url
        assert (await front.complete(ids(200), model="clerk")).pod == both.url


async def test_salts_do_not_share_what_is_cached() -> None:
    async with fleet() as (front, (pod,)):
        await front.complete(ids(200), cache_salt="tenant-a")
        await front.settled(pod)
        assert await predicted(front, ids(200), cache_salt="tenant-a") == (192, 192)
        assert await predicted(front, ids(200), cache_salt="tenant-b") == (0, 0)
        assert await predicted(front, ids(200)) == (0, 0)
        await front.settled(pod)
        assert await predicted(front, ids(200)) == (192, 192)
        assert await front.metric("mispredicted_requests_total") == 0


async def test_an_adapter_with_a_salt_is_matched_by_both() -> None:
    async with fleet(pod=LORA) as (front, (pod,)):
        await front.complete(ids(200), model="poet", cache_salt="a")
        await front.settled(pod)
        assert await predicted(front, ids(200), model="poet", cache_salt="a") == (192, 192)
        assert await predicted(front, ids(200), model="poet", cache_salt="b") == (0, 0)
        assert await predicted(front, ids(200), model="clerk", cache_salt="a") == (0, 0)


async def test_names_of_one_model_share_what_is_cached() -> None:
    cards = models({"id": "long/name"}, {"id": "short"}, {"id": "poet", "parent": "long/name"})
    async with simulated(model="long/name") as (pod,), scripted(models=says(cards)) as alias:
        alias.scripts["/kv_event_sources"] = says({"0": {"endpoint": pod.events[0], "replay_endpoint": pod.replays[0]}})
        async with serving([alias]) as front:
            await warm(pod, ids(100), model="long/name")

            async def known() -> bool:
                return held(await front.explain(ids(100), model="short")) == 96

            await until(known)
            assert held(await front.explain(ids(100), model="long/name")) == 96
            assert held(await front.explain(ids(100), model="poet")) == 0


async def test_pods_of_two_models_do_not_answer_for_each_other() -> None:
    async with simulated(model="one") as (one,), simulated(model="two") as (two,), serving([one, two]) as front:
        await warm(one, ids(100), model="one")
        await warm(two, ids(100), model="two")
        await front.settled(one, two)
        told = await front.explain(ids(100), model="one")
        assert [(each["pod"], each["cached_tokens"]["any"]) for each in told["candidates"]] == [(one.url, 96)]
        assert (await front.complete(ids(100), model="two")).pod == two.url


async def test_an_adapter_that_is_loaded_later_is_served_later() -> None:
    async with scripted(completions=says({})) as pod, serving([pod], poll={"interval": 0.02}) as front:
        assert (await front.post("/v1/completions", {"model": "late", "prompt": [1]})).status == 404
        pod.scripts["/v1/models"] = says(models({"id": MODEL}, {"id": "late", "parent": MODEL}))

        async def loaded() -> bool:
            return (await front.post("/v1/completions", {"model": "late", "prompt": [1]})).status == 200

        await until(loaded)
