"""A pod that accepts requests and gets nowhere is left alone until it moves again."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.gateway.fleet import QUEUE_ONLY, SLOW, Answer, Front, completions, fleet, text_body, until

pytestmark = pytest.mark.usefixtures("ties_go_to_the_first")

POLL = {"interval": 0.02, "stall_after": 0.2}


def name(pod: Any) -> str:
    return str(pod.url.removeprefix("http://"))


def post(front: Front, count: int = 1000) -> "asyncio.Task[Answer]":
    body = text_body([1, 2, 3], max_tokens=count, stream=True)
    return asyncio.create_task(front.post("/v1/completions", body))


async def stalled(front: Front, pod: Any) -> bool:
    return bool((await front.row(pod))["stalled"])


async def test_a_stalled_pod_gets_no_requests_while_another_serves_and_is_back_when_it_moves() -> None:
    async with fleet(2, pod={"profile": SLOW}, poll=POLL, placement=QUEUE_ONLY) as (front, (first, second)):
        held = post(front, count=60)
        await until(lambda: first.engines[0].running == 1)
        await asyncio.sleep(0)
        first.stall()
        await until(lambda: stalled(front, first))
        assert (await front.row(first))["state"] == "ready"
        assert await front.metric("pod_stalled", pod=name(first)) == 1
        assert await front.metric("pod_stalled", pod=name(second)) == 0
        for _ in range(3):
            assert (await front.complete([4, 5])).pod == second.url
        assert len(completions(first)) == 1

        first.resume()
        answer = await held
        assert (answer.status, answer.pod) == (200, first.url)
        assert b"[DONE]" in answer.body
        await until(lambda: front.parts.pods[name(first)].stalled is False)
        assert await front.metric("pod_stalled", pod=name(first)) == 0
        assert (await front.complete([4, 5])).pod == first.url


async def test_where_no_other_can_serve_a_stalled_pod_is_asked_all_the_same() -> None:
    async with fleet(pod={"profile": SLOW}, poll=POLL) as (front, (pod,)):
        held = post(front, count=20)
        await until(lambda: pod.engines[0].running == 1)
        pod.stall()
        await until(lambda: stalled(front, pod))
        waiting = post(front, count=1)
        await until(lambda: len(completions(pod)) == 2)
        pod.resume()
        assert {(await held).status, (await waiting).status} == {200}


async def test_a_stalled_pod_is_no_source() -> None:
    async with fleet(pod={"profile": SLOW}, poll=POLL) as (front, (pod,)):
        held = post(front, count=5)
        await until(lambda: pod.engines[0].running == 1)
        pod.stall()
        await until(lambda: stalled(front, pod))
        (candidate,) = front.parts.pods.candidates([front.parts.pods[name(pod)]], {})
        assert (candidate.p2p_host, candidate.p2p_port) == (None, None)
        pod.resume()
        await held


async def test_a_long_answer_that_moves_is_no_stall() -> None:
    slow = msgspec.structs.replace(SLOW, decode_ms=60)
    async with fleet(pod={"profile": slow}, poll=POLL) as (front, (pod,)):
        seen = []
        answer = post(front, count=15)
        while not answer.done():
            seen.append(await stalled(front, pod))
        assert len(seen) > 10
        assert not any(seen)
        assert (await answer).status == 200


async def test_pods_are_not_watched_where_nobody_asks() -> None:
    async with fleet(pod={"profile": SLOW}, poll=POLL | {"stall_after": None}) as (front, (pod,)):
        held = post(front, count=5)
        await until(lambda: pod.engines[0].running == 1)
        pod.stall()
        polls = await front.metric("polls_total", result="ok")

        async def polled_on() -> bool:
            return await front.metric("polls_total", result="ok") > polls + 15

        await until(polled_on)
        assert not await stalled(front, pod)
        pod.resume()
        await held
