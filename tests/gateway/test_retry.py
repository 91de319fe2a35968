"""Before the first byte a pod's failure is answered by another pod; later, by telling the client."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from tests.gateway.fleet import (
    MODEL,
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
    text_body,
    until,
    warm,
)
from tests.gateway.scripted import Script, breaks_off, never, says, scripted

pytestmark = pytest.mark.usefixtures("ties_go_to_the_first")

OK = says({"ok": True})
PATIENT = {"failures": 100}  # a breaker that does not join in


def name(pod: Any) -> str:
    return str(pod.url.removeprefix("http://"))


async def post(front: Front, **fields: Any) -> Answer:
    return await front.post("/v1/completions", text_body([1, 2, 3], **fields))


async def hangs_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def slow_to_start(request: web.Request) -> web.StreamResponse:
    """Headers at once, as an engine's stream has them; then nothing."""
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    return await never(request)


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_pod_that_is_unavailable_is_replaced_by_another(status: int) -> None:
    async with fleet(2) as (front, (first, second)):
        first.fail_next(status)
        answer = await post(front)
        assert (answer.status, answer.pod) == (200, second.url)
        assert await front.metric("retries_total", reason="pod_unavailable") == 1
        assert await front.metric("requests_total", status="200", pod=name(second)) == 1
        assert await front.metric("requests_total") == 1
        await front.idle()
    assert [len(completions(pod)) for pod in (first, second)] == [1, 1]


@pytest.mark.parametrize(
    "script",
    [hangs_up, breaks_off(), breaks_off(**{"content-length": "100"})],
    ids=["before its headers", "after its headers", "with a length"],
)
async def test_a_pod_that_breaks_off_before_its_first_byte_is_replaced_by_another(script: Script) -> None:
    async with scripted(completions=script) as bad, simulated() as (good,), serving([bad, good]) as front:
        answer = await post(front)
        assert (answer.status, answer.pod) == (200, good.url)
        assert await front.metric("retries_total", reason="pod_disconnected") == 1
        assert await front.metric("broken_answers_total") == 0
        await front.idle()


async def test_a_pod_that_refuses_the_connection_is_replaced_by_another() -> None:
    async with fleet(2, poll={"interval": 30}) as (front, (first, second)):
        await first.stop()
        answer = await post(front)
        assert (answer.status, answer.pod) == (200, second.url)


async def test_another_status_of_a_pod_is_its_answer() -> None:
    async with fleet(2) as (front, (first, second)):
        for status in (400, 404, 429, 500, 501, 505):
            first.fail_next(status)
            answer = await post(front)
            assert (answer.status, answer.pod) == (status, first.url)
        assert await front.metric("retries_total") == 0
    assert not completions(second)


async def test_no_pod_is_asked_twice_and_no_more_than_the_limit() -> None:
    async with fleet(4, limits={"attempts": 3}, breaker=PATIENT) as (front, pods):
        for pod in pods:
            pod.fail_next(503, 10)
        answer = await post(front)
        assert answer.status == 503
        assert [len(completions(pod)) for pod in pods] == [1, 1, 1, 0]
        assert await front.metric("retries_total") == 2
        assert await front.metric("requests_total", status="503", pod=name(pods[2])) == 1


async def test_a_single_attempt_can_be_asked_for() -> None:
    async with fleet(2, limits={"attempts": 1}) as (front, pods):
        pods[0].fail_next(503)
        assert (await post(front)).status == 503
        assert await front.metric("retries_total") == 0
    assert not completions(pods[1])


async def test_when_all_fail_the_last_failure_is_the_answer_the_pods_own_where_it_gave_one() -> None:
    async with scripted(completions=hangs_up) as one, scripted(completions=says({"detail": "busy"}, 503)) as two:
        async with serving([two, one]) as front:
            answer = await front.post("/v1/completions", text_body([1]), {"x-request-id": "it"})
            assert answer.status == 502
            assert answer.json["error"]["type"] == "bad_gateway_error"
            assert answer.json["error"]["code"] == "pod_disconnected"
            assert one.url in answer.json["error"]["message"]
            assert answer.headers["x-request-id"] == "it"
            await front.idle()
        async with serving([one, two]) as front:
            answer = await post(front)
            assert (answer.status, answer.json, answer.pod) == (503, {"detail": "busy"}, two.url)
            assert "retry-after" not in answer.headers  # it did not say so


async def test_a_pod_that_is_too_late_is_not_replaced_since_it_may_still_compute() -> None:
    limits, poll = {"first_byte_timeout": 0.2}, {"interval": 60.0, "max_age": 60.0}
    async with fleet(2, limits=limits, poll=poll) as (front, (first, second)):
        first.stall()
        answer = await post(front, stream=True)
        assert (answer.status, answer.json["error"]["code"]) == (504, "pod_timeout")
        assert answer.json["error"]["type"] == "timeout_error"
        await until(lambda: completions(first)[0].outcome == "aborted")
        await front.idle()
        row = await front.row(first)
        assert (row["suspect"], row["state"]) == (False, "ready")
        assert await front.metric("polls_total", result="ok") == 2
    assert not completions(second)


async def test_headers_alone_are_no_first_byte() -> None:
    async with (
        scripted(completions=slow_to_start) as pod,
        serving([pod], limits={"first_byte_timeout": 0.2}) as front,
    ):
        answer = await post(front, stream=True)
        assert (answer.status, answer.json["error"]["code"]) == (504, "pod_timeout")


async def test_each_attempt_that_names_a_source_has_an_id_of_its_own() -> None:
    async with fleet(3, placement=QUEUE_ONLY) as (front, (first, second, holder)):
        await warm(holder, ids(200))
        await front.settled(holder)
        first.fail_next(503)
        answer = await front.complete(ids(200))
        assert (answer.pod, answer.source) == (second.url, holder.url)
    params: list[Any] = [completions(pod)[-1].json["kv_transfer_params"] for pod in (first, second)]
    sources = [each["remote_kv_source"] for each in params]
    assert sources[0].pop("kv_request_id") != sources[1].pop("kv_request_id")
    assert sources[0] == sources[1]


async def test_a_retry_draws_its_source_anew() -> None:
    async with fleet(4, placement=QUEUE_ONLY, breaker=PATIENT) as (front, (first, second, *holders)):
        drawn: list[list[Any]] = []

        async def nobody_waits() -> bool:
            return all(row["waiting"] == 0 for row in (await front.pods()).values())

        for salt in range(8):
            for holder in holders:
                await warm(holder, ids(100, salt))
            await front.settled(*holders)
            # A poll that met the last request in a queue would send this one elsewhere.
            await until(nobody_waits)
            first.fail_next(503)
            answer = await front.complete(ids(100, salt), headers={"x-request-id": f"request {salt}"})
            assert answer.pod == second.url
            params: list[Any] = [completions(pod)[-1].json["kv_transfer_params"] for pod in (first, second)]
            drawn.append([each["remote_kv_source"]["remote_port"] for each in params])
            await until(lambda: not front.parts.pods[name(first)].suspect)
    # Two coins per request: all alike, or all different, once in hundreds of choices of ids; these are fixed.
    assert 0 < sum(one == two for one, two in drawn) < len(drawn)


async def test_a_retry_is_a_decision_of_its_own() -> None:
    async with fleet(2, placement=QUEUE_ONLY) as (front, (first, holder)):
        await warm(holder, ids(200))
        await front.settled(holder)
        first.fail_next(503)
        answer = await front.complete(ids(200))
        assert (answer.pod, answer.source) == (holder.url, None)
        assert answer.cached == 192
        assert await front.metric("pulls_total", outcome="named") == 1
        assert await front.metric("pulls_total", outcome="self") == 1
    assert b"kv_transfer_params" not in completions(holder)[-1].body


async def test_a_broken_stream_ends_with_an_error_event_and_without_an_end() -> None:
    async with fleet(pod={"profile": SLOW}) as (front, (pod,)), connection(front) as (reader, writer):
        writer.write(posted(text_body([1, 2, 3], stream=True, max_tokens=1000)))
        await reader.readuntil(b"data: ")
        await pod.kill()
        seen = await reader.read()
        event = seen.rpartition(b"data: ")[2].partition(b"\n\n")[0]
        error = json.loads(event)["error"]
        assert (error["type"], error["code"]) == ("bad_gateway_error", "pod_disconnected")
        assert b"[DONE]" not in seen
        assert not seen.endswith(b"\r\n0\r\n\r\n")
        await front.idle()
        assert await front.metric("broken_answers_total", pod=name(pod), reason="pod_disconnected") == 1
        assert await front.metric("requests_total", status="200") == 1
        assert await front.metric("retries_total") == 0


@pytest.mark.parametrize("headers", [{}, {"content-length": "500"}], ids=["chunked", "with a length"])
async def test_a_broken_json_answer_is_seen_to_be_truncated(headers: dict[str, str]) -> None:
    script = breaks_off(b'{"id":"1","choi', b'ces":[', **headers)
    async with (
        scripted(completions=script) as bad,
        simulated() as (good,),
        serving([bad, good]) as front,
        connection(front) as (reader, writer),
    ):
        writer.write(posted(text_body([1])))
        head, _, seen = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b'{"id":"1","choi' in seen
        assert b"error" not in seen
        assert not seen.endswith(b"0\r\n\r\n")
        await front.idle()
        assert await front.metric("broken_answers_total", pod=name(bad)) == 1
    assert not completions(good)


async def test_a_stream_that_falls_silent_is_broken_off() -> None:
    limits = {"idle_timeout": 0.3}
    async with fleet(pod={"profile": SLOW}, limits=limits) as (front, (pod,)), connection(front) as (reader, writer):
        writer.write(posted(text_body([1, 2, 3], stream=True, max_tokens=1000)))
        await reader.readuntil(b"data: ")
        pod.stall()
        assert b'"code":"pod_timeout"' in await reader.read()
        assert await front.metric("broken_answers_total", pod=name(pod), reason="pod_timeout") == 1
        await until(lambda: completions(pod)[0].outcome == "aborted")


async def test_a_pod_that_fails_again_and_again_is_left_out_then_tried_with_one_request() -> None:
    async with fleet(2, breaker={"failures": 2, "cooldown": 0.3}) as (front, (first, second)):
        first.fail_next(503, 3)
        for _ in range(2):
            assert (await post(front)).pod == second.url
            await until(lambda: not front.parts.pods[name(first)].suspect)
        assert (await front.row(first))["breaker"] == "open"
        assert await front.metric("pod_breaker_open", pod=name(first)) == 1
        assert (await post(front)).pod == second.url
        assert len(completions(first)) == 2  # nobody asked it a third time

        async def tried_again() -> bool:
            return bool((await front.row(first))["breaker"] == "half-open")

        await until(tried_again)
        assert await front.metric("pod_breaker_open", pod=name(first)) == 0  # until somebody is sent there
        assert (await post(front)).pod == second.url  # the trial failed, and cost its client nothing
        assert len(completions(first)) == 3
        assert (await front.row(first))["breaker"] == "open"
        await until(tried_again)
        await until(lambda: not front.parts.pods[name(first)].suspect)
        assert (await post(front)).pod == first.url
        assert (await front.row(first))["breaker"] == "closed"
        assert await front.metric("pod_breaker_open", pod=name(first)) == 0


async def test_where_every_pod_is_left_out_one_is_asked_all_the_same() -> None:
    async with fleet(breaker={"failures": 1, "cooldown": 60}) as (front, (pod,)):
        pod.fail_next(503)
        assert (await post(front)).status == 503
        assert (await front.row(pod))["breaker"] == "open"
        assert (await post(front)).status == 200


async def test_while_a_trial_runs_the_others_go_elsewhere() -> None:
    async with fleet(2, breaker={"failures": 1, "cooldown": 0.05}, poll={"interval": 0.05}) as (front, (first, second)):
        first.fail_next(503)
        assert (await post(front)).pod == second.url

        async def half_open() -> bool:
            row = await front.row(first)
            return row["breaker"] == "half-open" and not row["suspect"]

        await until(half_open)
        first.stall()
        trial = asyncio.create_task(post(front))
        await until(lambda: len(completions(first)) == 2)
        assert (await post(front)).pod == second.url
        first.resume()
        assert (await trial).pod == first.url
        assert (await front.row(first))["breaker"] == "closed"


async def test_a_model_on_one_pod_only_fails_with_that_pod() -> None:
    async with simulated(model="rare") as (rare,), simulated() as (other,), serving([rare, other]) as front:
        rare.fail_next(502)
        answer = await front.post("/v1/completions", {"model": "rare", "prompt": [1]})
        assert answer.status == 502
        assert "injected failure" in answer.json["error"]["message"]
        assert await front.metric("retries_refused_total", reason="no_pod") == 1
        assert (await front.post("/v1/completions", {"model": MODEL, "prompt": [1]})).status == 200
