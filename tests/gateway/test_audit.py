"""A pod whose answers do not tell what they reused is judged by its own counters."""

from typing import Any

import pytest

from loadgen.pod import SimulatedPod
from tests.gateway.fleet import AFFINITY, Front, fleet, ids, text_body, until, warm

pytestmark = pytest.mark.usefixtures("ties_go_to_the_first")

SILENT: dict[str, Any] = {"prompt_tokens_details": False}
PROMPT = 200
HELD = 192
PROMPTS = 8


async def held(front: Front, pod: SimulatedPod) -> None:
    """Have the pod hold so many prompts, and the gateway know it."""
    for salt in range(PROMPTS):
        await warm(pod, ids(PROMPT, salt=salt))

    async def all_known() -> bool:
        told = [await front.explain(ids(PROMPT, salt=salt)) for salt in range(PROMPTS)]
        return all(each["candidates"][0]["cached_tokens"]["any"] == HELD for each in told)

    await until(all_known)
    await polled(front)


async def polled(front: Front) -> None:
    """Return when a poll that began from now on has been made use of, so that counters are those of this moment."""
    before = await front.metric("polls_total", result="ok")

    async def twice() -> bool:
        return await front.metric("polls_total", result="ok") >= before + 2

    await until(twice)


async def judged(front: Front, result: str, count: int) -> None:
    async def counted() -> bool:
        return await front.metric("audits_total", result=result) >= count

    await until(counted)


def lose_silently(pod: SimulatedPod, rank: int = 0) -> None:
    """All that is cached is gone, and no event says so."""
    scheduler = pod.engines[rank].scheduler
    assert scheduler.gpu.clear()
    scheduler.cpu = type(scheduler.cpu)(scheduler.cpu.capacity)


async def test_a_pod_that_silently_lost_its_cache_is_found_by_its_counters() -> None:
    async with fleet(pod=SILENT) as (front, (pod,)):
        await held(front, pod)
        lose_silently(pod)
        for salt in range(PROMPTS):
            answer = await front.complete(ids(PROMPT, salt=salt))
            assert answer.json["usage"]["prompt_tokens_details"] is None
            await judged(front, "compared", salt + 1)
        row = await front.row(pod)
        assert row["accuracy"] == 0.0
        assert row["credit"] < 0.5
        assert row["certain"] is True
        (candidate,) = (await front.explain(ids(PROMPT)))["candidates"]
        assert candidate["credit"] < 0.5
        # It holds all of it again, and is believed again.
        for number in range(1, 3 * PROMPTS):
            await front.complete(ids(PROMPT, salt=number % PROMPTS))
            await judged(front, "compared", PROMPTS + number)
        assert (await front.row(pod))["credit"] > row["credit"] + 0.3


async def test_a_pod_that_holds_what_it_says_keeps_its_credit() -> None:
    async with fleet(pod=SILENT) as (front, (pod,)):
        await held(front, pod)
        for salt in range(PROMPTS):
            await front.complete(ids(PROMPT, salt=salt), stream=salt % 2 == 1)
        await judged(front, "compared", 1)
        row = await front.row(pod)
        assert (row["accuracy"], row["credit"]) == (1.0, 1.0)
        assert await front.metric("audits_total", result="unmatched") == 0


async def test_a_stream_without_usage_is_judged_by_counters_too() -> None:
    async with fleet() as (front, (pod,)):
        await held(front, pod)
        lose_silently(pod)
        for salt in range(PROMPTS):
            assert b"usage" not in (await front.complete(ids(PROMPT, salt=salt), stream=True)).body
            await judged(front, "compared", salt + 1)
        assert (await front.row(pod))["credit"] < 0.5


async def test_answers_that_tell_themselves_are_not_judged_twice() -> None:
    async with fleet() as (front, (pod,)):
        await held(front, pod)
        for salt in range(PROMPTS):
            await front.complete(ids(PROMPT, salt=salt))
        await polled(front)
        assert (await front.row(pod))["accuracy"] == 1.0
        assert await front.metric("audits_total") == 0


async def test_where_others_use_the_pod_too_its_counters_say_nothing() -> None:
    async with fleet(pod=SILENT) as (front, (pod,)):
        await held(front, pod)
        lose_silently(pod)

        async def noticed() -> bool:
            await warm(pod, ids(40, salt=50))
            await front.complete(ids(PROMPT))
            await warm(pod, ids(40, salt=50))
            return await front.metric("audits_total", result="unmatched") > 0

        await until(noticed)


async def test_each_rank_is_judged_by_its_own_counters() -> None:
    async with fleet(pod={**SILENT, "ranks": 2}, placement=AFFINITY) as (front, (pod,)):
        for rank in (0, 1):
            body, headers = text_body(ids(PROMPT, salt=rank)), {"x-data-parallel-rank": str(rank)}
            async with front.http.post(f"{pod.url}/v1/completions", json=body, headers=headers) as answer:
                assert answer.status == 200

            async def chosen(rank: int = rank) -> bool:
                told = await front.explain(ids(PROMPT, salt=rank))
                return bool((told["chosen_rank"], told["predicted_cached_tokens"]) == (rank, HELD))

            await until(chosen)
        await polled(front)
        lose_silently(pod, rank=1)
        for rank in (0, 1):
            await front.complete(ids(PROMPT, salt=rank))
        await judged(front, "compared", 2)
        assert [rank["accuracy"] for rank in (await front.row(pod))["ranks"]] == [1.0, 0.0]


async def test_a_request_that_pulls_is_not_judged() -> None:
    pulling: dict[str, Any] = {"placement": {"scorers": [{"type": "queue"}]}}
    async with fleet(2, pod=SILENT, **pulling) as (front, (consumer, source)):
        await warm(source, ids(PROMPT))

        async def named() -> bool:
            return bool((await front.explain(ids(PROMPT)))["source_reason"] == "named")

        await until(named)
        await polled(front)
        answer = await front.complete(ids(PROMPT))
        assert (answer.pod, answer.source) == (consumer.url, source.url)
        await judged(front, "unpredicted", 1)
        assert (await front.row(consumer))["accuracy"] is None
