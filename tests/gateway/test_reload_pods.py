"""Pods that are added, removed or changed by SIGHUP: no stream notices, and nothing is remembered too long."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest

from tests.gateway.announcer import announcing
from tests.gateway.fleet import (
    PREFIX_ONLY,
    SLOW,
    SMALL,
    client,
    completions,
    ids,
    name,
    resident,
    simulated,
    spec,
    text_body,
    until,
    warm,
)
from tests.gateway.keyring import bearer
from tests.gateway.reloading import begin, reloadable
from tests.gateway.scripted import scripted


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


async def test_a_stream_on_a_pod_that_is_removed_is_whole(file: Path) -> None:
    async with simulated(2, profile=SLOW) as (one, two), reloadable([one], file) as gateway:
        front = gateway.front
        stream = await begin(front, max_tokens=40, seed=7)
        assert await gateway.reload([two]) == "ok"
        await front.until_ready(1)
        assert list(await front.pods()) == [two.url]
        assert (await front.complete([2])).pod == two.url
        assert not stream.done()
        told = await stream
        assert [request.outcome for request in completions(one)] == ["finished"]
        async with (
            client() as http,
            http.post(f"{one.url}/v1/completions", json=text_body([1], stream=True, max_tokens=40, seed=7)) as answer,
        ):
            assert pieces(told) == pieces(await answer.read())


def pieces(stream: bytes) -> list[str]:
    """The texts of a stream's events, to its end."""
    *events, done, end = stream.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    return [choice["text"] for event in events for choice in msgspec.json.decode(event[6:])["choices"]]


async def test_nothing_is_remembered_of_a_pod_that_is_removed(file: Path) -> None:
    async with simulated(2) as (one, two), reloadable([one, two], file) as gateway:
        front = gateway.front
        await warm(one, ids(400))
        await front.settled(one, two)
        await front.complete(ids(400))
        assert await front.metric("index_blocks", pod=name(one)) > 0
        assert await gateway.reload([two]) == "ok"
        index = front.parts.index
        assert {publisher.pod for publisher in index.publishers()} == {name(two)}
        await until(lambda: name(one).encode() not in generate_latest(front.parts.metrics.registry))
        assert (await front.complete(ids(400))).pod == two.url
        tasks = {task.get_name() for task in asyncio.all_tasks()}
        assert not {task for task in tasks if name(one) in task}
        assert (await front.get("/ready")).json["pods"] == {name(two): "ready"}


async def test_the_metrics_of_a_pod_that_is_removed_end_with_its_last_request(file: Path) -> None:
    async with simulated(2, profile=SLOW) as (one, two), reloadable([one], file) as gateway:
        front = gateway.front
        stream = await begin(front, max_tokens=20)
        assert await gateway.reload([two]) == "ok"
        assert await front.metric("polls_total", pod=name(one)) > 0
        await stream
        await until(lambda: name(one).encode() not in generate_latest(front.parts.metrics.registry))


async def test_a_pod_that_is_added_serves(file: Path) -> None:
    async with simulated(2) as (one, two), reloadable([one], file) as gateway:
        front = gateway.front
        assert await gateway.reload([one, two]) == "ok"
        await front.until_ready(2)
        pods = {(await front.complete([n + 1])).pod for n in range(20)}
        assert pods == {one.url, two.url}
        await warm(two, ids(400))
        await front.settled(one, two)


async def test_a_pod_that_returns_starts_from_nothing_and_is_learnt_anew(file: Path) -> None:
    async with simulated(2) as (one, two), reloadable([one, two], file, placement=PREFIX_ONLY) as gateway:
        front = gateway.front
        await warm(one, ids(400))
        await front.settled(one, two)
        assert await gateway.reload([two]) == "ok"
        assert await gateway.reload([two, one]) == "ok"
        await front.until_ready(2)
        await front.settled(one, two)
        assert (await front.complete(ids(400))).pod == one.url
        assert await front.metric("requests_total", pod=name(one)) == 1


async def test_a_pod_that_is_left_as_it_was_keeps_its_state(file: Path) -> None:
    async with simulated(2, profile=SLOW) as (one, two), reloadable([one], file) as gateway:
        front = gateway.front
        stream = await begin(front, max_tokens=40)
        await front.settled(one)
        before, tasks = front.parts.pods[name(one)], asyncio.all_tasks()
        polled = before.streams[0]
        assert await gateway.reload([one, two], breaker={"failures": 7}) == "ok"
        after = front.parts.pods[name(one)]
        assert after is before
        assert after.streams[0] is polled
        assert after.requests == 1
        assert {t for t in tasks if not t.done()} >= {t for t in tasks if name(one) in t.get_name()}
        assert (await front.row(one))["cached_blocks"]["gpu"] == (resident(one) or (0, 0))[0]
        await stream
        await front.idle()


async def test_other_labels_and_another_address_for_pulls_change_no_task(file: Path) -> None:
    async with simulated(1) as (pod,), reloadable([pod], file) as gateway:
        front = gateway.front
        supervisor = [task for task in asyncio.all_tasks() if task.get_name() == f"supervise {name(pod)}"]
        assert await gateway.reload([spec(pod, labels={"zone": "b"}, p2p="10.1.1.1:77")]) == "ok"
        row = await front.row(pod)
        assert (row["labels"], row["p2p"]) == ({"zone": "b"}, "10.1.1.1:77")
        assert [t for t in asyncio.all_tasks() if t.get_name() == f"supervise {name(pod)}"] == supervisor


async def test_another_place_for_events_is_listened_to_and_the_pod_serves_meanwhile(file: Path) -> None:
    async with simulated(profile=SMALL) as (pod,), announcing() as announcer, reloadable([pod], file) as gateway:
        front = gateway.front
        await warm(pod, ids(400))
        await front.settled(pod)
        elsewhere = spec(pod, kv_events=announcer.events)
        assert await gateway.reload([elsewhere]) == "ok"
        assert (await front.complete([1])).pod == pod.url
        assert (await front.row(pod))["state"] == "ready"

        async def forgotten() -> bool:
            return bool((await front.row(pod))["cached_blocks"] == {"gpu": 0, "cpu": 0})

        await until(forgotten)
        assert await gateway.reload([pod]) == "ok"
        await front.settled(pod)


async def test_a_pod_that_cannot_be_reached_yet_may_be_added(file: Path) -> None:
    async with simulated(2) as (one, two), reloadable([one], file) as gateway:
        await two.stop()
        assert await gateway.reload([one, two]) == "ok"
        assert (await gateway.front.complete([1])).pod == one.url
        await two.restart()
        await gateway.front.until_ready(2)


async def test_the_keys_of_pods_follow_the_file(file: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-pod-1")
    async with scripted() as pod, reloadable([pod], file) as gateway:
        await gateway.front.post("/v1/completions", text_body([1]), bearer("clients-own"))
        assert await gateway.reload([spec(pod, api_key_file=str(key))]) == "ok"
        await gateway.front.post("/v1/completions", text_body([1]), bearer("clients-own"))
        assert await gateway.reload([pod]) == "ok"
        await gateway.front.post("/v1/completions", text_body([1]), bearer("clients-own"))
    shown = [request.headers.get("authorization") for request in pod.requests]
    assert shown == ["Bearer clients-own", "Bearer sk-pod-1", "Bearer clients-own"]
