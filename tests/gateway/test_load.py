"""What placement is told of load: what pods say, as long as it is fresh, and what is under way through this gateway."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.gateway.fleet import (
    QUEUE_ONLY,
    SLOW,
    Front,
    completions,
    connection,
    fleet,
    ids,
    posted,
    serving,
    text_body,
    until,
    warm,
)
from tests.gateway.scripted import METRICS, page, says, scripted

NARROW = msgspec.structs.replace(SLOW, max_running=1)


def loads(explained: Any) -> list[tuple[int | None, int | None]]:
    """Waiting and running of each candidate."""
    return [(each["waiting"], each["running"]) for each in explained["candidates"]]


async def explained(front: Front, waiting: list[tuple[int | None, int | None]]) -> None:
    """Return when /explain says so."""

    async def said() -> bool:
        return loads(await front.explain([1])) == waiting

    await until(said)


async def test_what_pods_say_of_their_load_is_polled_and_decides() -> None:
    async with fleet(2, pod={"profile": NARROW}, placement=QUEUE_ONLY) as (front, (busy, idle)):
        sent = text_body(ids(20), max_tokens=5000)
        behind = [asyncio.create_task(warm(busy, **sent)) for _ in range(3)]
        await explained(front, [(2, 1), (0, 0)])
        row = await front.row(busy)
        assert (row["waiting"], row["running"]) == (2, 1)
        assert row["kv_usage"] > 0
        for _ in range(5):
            assert (await front.complete([1])).pod == idle.url
        told = await front.explain([1])
        assert [each["scores"]["queue"] for each in told["candidates"]] == [0.0, 1.0]
        for task in behind:
            task.cancel()
        await asyncio.wait(behind)
        await explained(front, [(0, 0), (0, 0)])


async def test_a_load_that_nobody_tells_is_neutral() -> None:
    scorers = {"scorers": [{"type": "queue"}, {"type": "kv-utilization"}]}
    async with (
        scripted(metrics=page(b""), completions=says({})) as silent,
        scripted(metrics=page(METRICS.replace(b'waiting{engine="0"} 0.0', b'waiting{engine="0"} 9.0'))) as loaded,
        scripted(metrics=page(METRICS)) as idle,
        serving([silent, loaded, idle], placement=scorers) as front,
    ):
        told = await front.explain([1])
        assert loads(told) == [(None, None), (9, 0), (0, 0)]
        assert [each["scores"]["queue"] for each in told["candidates"]] == [0.5, 0.0, 1.0]
        assert told["chosen"] == idle.url
        row = await front.row(silent)
        assert (row["waiting"], row["running"], row["kv_usage"], row["state"]) == (None, None, None, "ready")


async def test_where_no_load_is_known_every_pod_is_used() -> None:
    quiet = {"metrics": page(b""), "completions": says({})}
    async with scripted(**quiet) as one, scripted(**quiet) as two, serving([one, two]) as front:
        chosen = set()
        for _ in range(40):
            chosen.add((await front.post("/v1/completions", text_body([1]))).pod)
        assert chosen == {one.url, two.url}


async def test_a_load_that_is_too_old_is_unknown() -> None:
    poll = {"interval": 60.0, "max_age": 0.2}
    async with fleet(poll=poll, placement=QUEUE_ONLY) as (front, (pod,)):
        await explained(front, [(None, None)])
        row = await front.row(pod)
        assert row["state"] == "ready"
        assert (await front.complete([1])).pod == pod.url


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_work_under_way_is_counted_at_placement_and_released_step_by_step() -> None:
    async with fleet(2, pod={"profile": SLOW}, placement=QUEUE_ONLY) as (front, (pod, other)):
        pod.stall()
        async with connection(front) as (reader, writer):
            writer.write(posted(text_body(ids(100), stream=True, max_tokens=10)))
            await until(lambda: bool(completions(pod)))
            row = await front.row(pod)
            assert (row["in_flight_requests"], row["in_flight_tokens"]) == (1, 100)
            assert await front.metric("in_flight_requests", pod=pod.url.removeprefix("http://")) == 1
            assert await front.metric("in_flight_tokens") == 100
            (candidate, _) = (await front.explain([1]))["candidates"]
            assert (candidate["in_flight_requests"], candidate["in_flight_tokens"]) == (1, 100)
            pod.resume()
            await reader.readuntil(b"data: ")
            row = await front.row(pod)
            assert (row["in_flight_requests"], row["in_flight_tokens"]) == (1, 0)
            await reader.readuntil(b"[DONE]")
            await front.idle()
        assert (await front.row(other))["in_flight_requests"] == 0


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_only_tokens_that_must_be_computed_are_counted() -> None:
    async with fleet() as (front, (pod,)):
        await front.complete(ids(100))
        await front.settled(pod)
        pod.stall()
        under_way = asyncio.create_task(front.complete(ids(120)))
        await until(lambda: len(completions(pod)) == 2)
        assert (await front.row(pod))["in_flight_tokens"] == 120 - 96
        pod.resume()
        assert (await under_way).cached == 96
        await front.idle()


async def test_a_prompt_of_unknown_length_counts_as_a_request_without_tokens() -> None:
    async with fleet() as (front, (pod,)):
        pod.stall()
        body = text_body("text", truncate_prompt_tokens=3)
        under_way = asyncio.create_task(front.post("/v1/completions", body))
        await until(lambda: bool(completions(pod)))
        row = await front.row(pod)
        assert (row["in_flight_requests"], row["in_flight_tokens"]) == (1, 0)
        pod.resume()
        assert (await under_way).status == 200
        await front.idle()


async def test_requests_that_fail_are_released_too() -> None:
    async with fleet(2) as (front, pods):
        for pod in pods:
            pod.fail_next(503, 2)
        for _ in range(2):
            assert (await front.post("/v1/completions", text_body(ids(50)))).status == 503
        rows = (await front.pods()).values()
        assert [(row["in_flight_requests"], row["in_flight_tokens"]) for row in rows] == [(0, 0), (0, 0)]


async def test_a_pod_that_returns_starts_from_zero_and_never_goes_below() -> None:
    async with fleet(pod={"profile": SLOW}) as (front, (pod,)), connection(front) as (reader, writer):
        writer.write(posted(text_body(ids(50), stream=True, max_tokens=5000)))
        await reader.readuntil(b"data: ")
        incarnation = front.parts.pods[pod.url.removeprefix("http://")]
        old = incarnation.in_flight[0]
        assert old.requests == 1
        await pod.restart()
        await until(lambda: incarnation.in_flight[0] is not old)
        await front.until_ready(1)
        await reader.read()
        await until(lambda: old.requests == 0)
        row = await front.row(pod)
        assert (row["in_flight_requests"], row["in_flight_tokens"]) == (0, 0)
        pod.stall()
        under_way = asyncio.create_task(front.post("/v1/completions", text_body(ids(30))))
        await until(lambda: len(completions(pod)) == 2)
        row = await front.row(pod)
        assert (row["in_flight_requests"], row["in_flight_tokens"]) == (1, 30)
        pod.resume()
        await under_way
        await front.idle()


async def test_a_burst_leaves_nothing_behind() -> None:
    async with fleet(3) as (front, pods):
        answers = await asyncio.gather(*(front.complete(ids(40, salt=n % 5), max_tokens=4) for n in range(60)))
        assert {answer.status for answer in answers} == {200}
        await front.idle()
        assert await front.metric("requests_total", status="200") == 60
        assert await front.metric("request_duration_seconds_count") == 60
        assert await front.metric("decision_seconds_count") == 60
        assert sum(len(completions(pod)) for pod in pods) == 60
