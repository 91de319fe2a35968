"""A stored response is asked for where it is kept: known from answers, or found by asking around."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.sticky import Keeper, Responses
from loadgen.pod import SimulatedPod
from tests.gateway.fleet import MODEL, QUEUE_ONLY, Answer, Front, fleet, serving, simulated, until
from tests.gateway.keyring import ALICE, BOB, ROOT, bearer, write
from tests.gateway.scripted import models, says, scripted

KEYS = [
    {"id": "alice", "key": ALICE, "models": ["a"]},
    {"id": "bob", "key": BOB, "models": ["b"]},
    {"id": "root", "key": ROOT, "admin": True},
]


def asked(pod: SimulatedPod, path: str) -> int:
    return [request.path for request in pod.requests].count(path)


async def make(front: Front, **fields: Any) -> Answer:
    answer = await front.post("/v1/responses", {"model": MODEL, "input": "x", **fields})
    assert answer.status == 200, answer.body
    return answer


async def down(front: Front, pod: SimulatedPod) -> None:
    async def gone() -> bool:
        return bool((await front.row(pod))["state"] == "down")

    await until(gone)


async def test_what_is_asked_of_a_response_goes_to_the_pod_that_made_it() -> None:
    async with fleet(3, placement=QUEUE_ONLY) as (front, _):
        made = [await make(front, background=True) for _ in range(9)]
        assert len({answer.pod for answer in made}) > 1
        for answer in made:
            path = f"/v1/responses/{answer.json['id']}"
            assert (await front.get(path)).pod == answer.pod
            assert (await front.post(f"{path}/cancel", b"")).pod == answer.pod
            after = await make(front, previous_response_id=answer.json["id"])
            assert (after.pod, (await front.get(f"/v1/responses/{after.json['id']}")).pod) == (answer.pod, answer.pod)
        assert await front.metric("requests_total", endpoint="/v1/responses/{id}", status="200") == 18
        assert await front.metric("requests_total", endpoint="/v1/responses/{id}/cancel", status="200") == 9


async def test_a_streamed_response_can_be_asked_for_while_it_is_streamed() -> None:
    ended = asyncio.Event()

    async def streams(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b'event: response.created\ndata: {"response":{"id":"resp_1","model":"x"}}\n\n')
        await ended.wait()
        return answer

    async with scripted() as other, scripted() as pod, serving([other, pod]) as front:
        pod.scripts |= {"/v1/responses": streams, "/v1/responses/resp_1": says({"id": "resp_1"})}
        other.scripts["/v1/responses"] = streams
        async with front.http.post(f"{front.url}/v1/responses", json={"model": MODEL, "input": "x"}) as stream:
            await stream.content.readany()
            keeper = {pod.url: pod, other.url: other}[stream.headers["x-gateway-pod"]]
            asked_before = {each.url: len(each.asked) for each in (pod, other)}
            answer = await front.get("/v1/responses/resp_1")
            assert answer.pod == keeper.url
            stranger = other if keeper is pod else pod
            assert "/v1/responses/resp_1" not in [a.path for a in stranger.asked[asked_before[stranger.url] :]]
            ended.set()


async def test_tokens_are_counted_with_the_answer_and_not_again_when_it_is_looked_at() -> None:
    async with fleet() as (front, _):
        made = await make(front, input="one two three")
        for _ in range(3):
            await front.get(f"/v1/responses/{made.json['id']}")
        assert await front.metric("completion_tokens_total") == 3
        assert (await front.pods())[made.pod]["accuracy"] is None


async def test_a_gateway_that_does_not_know_a_response_asks_around() -> None:
    async with simulated(3) as pods:
        async with serving(pods) as front:
            made = [await make(front) for _ in range(6)]
        async with serving(pods) as front:
            for answer in made:
                path = f"/v1/responses/{answer.json['id']}"
                found = await front.get(path)
                assert (found.status, found.pod, found.json) == (200, answer.pod, answer.json)
                before = [asked(pod, path) for pod in pods]
                assert (await front.get(path)).pod == answer.pod  # known from now on
                assert sum(asked(pod, path) for pod in pods) == sum(before) + 1
        async with serving(pods) as front:
            for answer in made:
                after = await make(front, previous_response_id=answer.json["id"])
                assert after.pod == answer.pod
            assert await front.metric("retries_total") == 0
            assert all(row["breaker"] == "closed" for row in (await front.pods()).values())
            await front.idle()


async def test_what_no_pod_has_is_not_found_in_the_last_pods_words() -> None:
    async with fleet(3) as (front, pods):
        for method, path in (("GET", "/v1/responses/r"), ("POST", "/v1/responses/r/cancel")):
            async with front.http.request(method, front.url + path) as got:
                body = await got.json()
                assert (got.status, body["error"]["message"]) == (404, "Response with id 'r' not found.")
            assert [asked(pod, path) for pod in pods] == [1, 1, 1]
        assert await front.metric("requests_total", status="404") == 2


async def test_with_its_pod_gone_a_response_is_not_found() -> None:
    async with fleet(2) as (front, pods):
        answer = await make(front)
        (pod,) = [pod for pod in pods if pod.url == answer.pod]
        await pod.kill()
        await down(front, pod)
        path = f"/v1/responses/{answer.json['id']}"
        for got in (
            await front.get(path),
            await front.post("/v1/responses", {"input": "x", "previous_response_id": answer.json["id"]}),
        ):
            error = got.json["error"]
            assert (got.status, error["type"], error["param"]) == (404, "invalid_request_error", "response_id")
            assert error["message"] == f"Response with id '{answer.json['id']}' not found."
        assert await front.metric("requests_total", status="404", pod="") == 2


async def test_while_a_pod_does_not_answer_nobody_says_that_it_has_nothing() -> None:
    async with fleet(2, poll={"interval": 60}) as (front, pods):
        await pods[0].kill()
        answer = await front.get("/v1/responses/unknown")
        assert (answer.status, answer.json["error"]["code"]) == (502, "pod_unreachable")
    async with simulated() as (pod,):
        await pod.stop()
        async with serving([pod], ready=0) as front:
            assert (await front.get("/v1/responses/unknown")).status == 503


async def test_a_key_does_not_reach_responses_of_models_that_it_may_not_use(tmp_path: Path) -> None:
    write(keys := tmp_path / "keys.yaml", KEYS)
    async with (
        simulated(model="a") as (one,),
        simulated(model="b") as (two,),
        simulated(model="b", loras={"a": "/a"}) as (both,),
    ):
        section: dict[str, Any] = {"auth": {"keys": str(keys)}, "session": {"headers": bearer(ROOT)}}
        async with serving([one, two, both], **section) as front:
            of_b = await front.post("/v1/responses", {"model": "b", "input": "x"}, bearer(BOB))
            assert of_b.status == 200
            path = f"/v1/responses/{of_b.json['id']}"
            assert (await front.get(path, **bearer(ALICE))).status == 403
            assert (await front.get(path, **bearer(BOB))).status == 200
            sent = {"model": "a", "input": "x", "previous_response_id": of_b.json["id"]}
            assert (await front.post("/v1/responses", sent, bearer(ALICE))).status == 403
        async with serving([one, two, both], **section) as front:  # which knows nothing any more
            for pod in (one, two, both):
                pod.requests.clear()
            assert (await front.get(path, **bearer(ALICE))).status == 404
            assert (await front.post(f"{path}/cancel", {"model": "a"}, bearer(ALICE))).status == 404
            assert (asked(two, path), asked(both, path)) == (0, 0)
            assert (await front.get(path, **bearer(ROOT))).status == 200
            assert (await front.get(path, **bearer(ALICE))).status == 404


@pytest.mark.parametrize(
    ("answer", "learned"),
    [
        (b'{"id":"resp_1","object":"response"}', True),
        (b'{ "id": "resp_1" }', True),
        (b'event: response.created\ndata: {"response":{"id":"resp_1"', True),
        (b'{"id":"' + b"x" * 129 + b'"}', False),
        (b" " * 5000 + b'{"id":"resp_1"}', False),
        (b'{"object":"response"}', False),
    ],
)
async def test_ids_are_read_from_the_beginning_of_answers(answer: bytes, learned: bool) -> None:
    async with scripted(models=says(models({"id": MODEL}))) as pod, serving([pod]) as front:
        responses = Responses(front.parts.pods)
        responses.made(answer, Keeper("p", "m"))
        assert ("resp_1" in responses._keepers) is learned


async def test_a_bounded_number_of_responses_is_remembered() -> None:
    async with scripted() as pod, serving([pod]) as front:
        responses = Responses(front.parts.pods, most=2)
        for number in range(3):
            responses.found(f"r{number}", "p")
        assert list(responses._keepers) == ["r1", "r2"]
        responses.found("x" * 200, "p")
        assert list(responses._keepers) == ["r1", "r2"]
