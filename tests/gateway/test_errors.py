"""Whatever is wrong with a request, its client gets OpenAI's error body, its id, and a place in the metrics."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.gateway.fleet import MODEL, Answer, Front, completions, fleet, serving, simulated, text_body, until
from tests.gateway.scripted import says, scripted

LIMIT = 1000


def assert_error(answer: Answer, status: int, code: str, *, param: str | None = None, kind: str = "") -> None:
    """The error is in OpenAI's shape and carries the request's id."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"error"}
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param)
    assert error["message"]
    assert error["type"] == (kind or "invalid_request_error")
    assert answer.headers["x-request-id"] == "it"


async def post(front: Front, body: Any, path: str = "/v1/completions", **headers: str) -> Answer:
    return await front.post(path, body, {"x-request-id": "it", **headers})


async def counted(front: Front, status: int) -> None:
    assert await front.metric("requests_total", status=str(status), pod="") == 1
    assert await front.metric("requests_total") == 1
    await front.idle()


@pytest.mark.parametrize("body", [b"", b"{", b'{"prompt": "x",}', b"{'prompt': 1}", b'{"a":' * 5000, b'{"a":NaN}'])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_body_that_is_not_json_is_refused(body: bytes, path: str) -> None:
    async with fleet() as (front, (pod,)):
        assert_error(await post(front, body, path), 400, "invalid_json")
        await counted(front, 400)
    assert not pod.requests


@pytest.mark.parametrize("field", ["prompt", "messages"])
async def test_text_that_is_no_utf8_is_left_to_the_pod_to_refuse(field: str) -> None:
    path = "/v1/completions" if field == "prompt" else "/v1/chat/completions"
    async with fleet() as (front, (pod,)):
        answer = await post(front, b'{"%b": "\xff"}' % field.encode(), path)
        assert (answer.status, answer.pod) == (400, pod.url)
        assert answer.json["error"]["param"].startswith("body")
        assert (await front.row(pod))["breaker"] == "closed"


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"1", b"null"])
async def test_json_that_is_no_object_is_refused(body: bytes) -> None:
    async with fleet() as (front, _):
        assert_error(await post(front, body), 400, "invalid_body")
        await counted(front, 400)


@pytest.mark.parametrize(
    ("field", "value"), [("model", 1), ("stream", "yes"), ("n", "two"), ("cache_salt", 5), ("n", [1])]
)
async def test_a_field_of_the_wrong_type_is_named(field: str, value: object) -> None:
    async with fleet() as (front, _):
        assert_error(await post(front, text_body([1]) | {field: value}), 400, "invalid_value", param=field)
        await counted(front, 400)


async def test_an_object_that_cannot_be_forwarded_is_refused() -> None:
    deep = b'{"prompt":[1],"a":%b1%b,"\\u006bv":0}' % (b"[" * 900, b"]" * 900)
    many = b'{"prompt":[1],"kv_transfer_params":{},%b}' % b",".join(b'"f%d":0' % i for i in range(1001))
    async with fleet() as (front, (pod,)):
        assert (await post(front, deep)).status in (200, 400)
        assert_error(await post(front, many), 400, "invalid_body")
        await front.idle()
        assert await front.metric("retries_total") == 0
    assert all(b"kv_transfer_params" not in request.body for request in completions(pod))


async def test_an_unknown_model_is_not_found() -> None:
    async with fleet() as (front, _):
        assert_error(await post(front, {"model": "nobody", "prompt": [1]}), 404, "model_not_found", param="model")
        await counted(front, 404)


async def test_a_model_must_be_named_where_there_are_several() -> None:
    async with simulated(model="one") as (a,), simulated(model="two") as (b,), serving([a, b]) as front:
        assert_error(await post(front, {"prompt": [1]}), 400, "missing_model", param="model")
        await counted(front, 400)
        assert (await post(front, {"model": "two", "prompt": [1]})).pod == b.url


async def test_a_model_need_not_be_named_where_there_is_one() -> None:
    async with fleet() as (front, _):
        assert (await post(front, {"prompt": [1]})).status == 200
        assert (await post(front, {"model": None, "prompt": [1]})).status == 200


async def test_a_body_over_the_limit_is_refused_by_its_stated_length() -> None:
    async with fleet(limits={"max_body": LIMIT}) as (front, (pod,)):
        assert_error(await post(front, text_body("x" * LIMIT)), 413, "body_too_large")
        await counted(front, 413)
    assert not pod.requests


async def test_a_body_over_the_limit_is_refused_while_it_arrives_in_chunks() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(100):
            yield b"x" * LIMIT
        yield b'"}'

    async with fleet(limits={"max_body": LIMIT}) as (front, (pod,)):
        sent = {"content-type": "application/json", "x-request-id": "it"}
        async with front.http.post(f"{front.url}/v1/completions", data=chunks(), headers=sent) as answer:
            assert_error(Answer(answer.status, answer.headers, await answer.read()), 413, "body_too_large")
        await counted(front, 413)
    assert not pod.requests


async def test_a_body_at_the_limit_is_served_in_chunks_or_whole() -> None:
    body = json.dumps(text_body("x", max_tokens=1)).encode()
    body += b" " * (LIMIT - len(body))

    async def chunks() -> AsyncIterator[bytes]:
        yield body[:500]
        yield body[500:]

    async with fleet(limits={"max_body": LIMIT}) as (front, (pod,)):
        assert (await post(front, body)).status == 200
        sent = {"content-type": "application/json"}
        async with front.http.post(f"{front.url}/v1/completions", data=chunks(), headers=sent) as answer:
            assert answer.status == 200
        assert [request.body for request in completions(pod)] == [body, body]
        assert (await post(front, body + b" ")).status == 413


@pytest.mark.parametrize(
    "pieces",
    [
        (b"Content-Length: 50\r\n\r\n", b'{"prompt": '),
        (b"Transfer-Encoding: chunked\r\n\r\n", b'5\r\n{"pro\r\n'),
        (b"Transfer-Encoding: chunked\r\n\r\n", b'5\r\n{"pro\r\n', b"no size\r\n"),
    ],
    ids=["half a body", "half the chunks", "broken chunks"],
)
async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(pieces: tuple[bytes, ...]) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-request-id: it\r\n"
    async with fleet(limits={"idle_timeout": 0.2}) as (front, (pod,)):
        host, _, port = front.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for piece in (head + pieces[0], *pieces[1:]):
            writer.write(piece)
            await front.get("/health")  # the gateway has had its turn to read it
        answer = await reader.readuntil(b"}}")
        writer.close()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_timeout"
        assert b"x-request-id: it" in answer.lower()
        await counted(front, 408)
    assert not pod.requests


async def test_a_body_that_does_not_unpack_is_the_clients_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with fleet() as (front, (pod,)):
        answer = await post(front, b"this is no gzip", **{"content-encoding": "gzip"})
        assert_error(answer, 400, "invalid_body")
        await counted(front, 400)
    assert not pod.requests
    caplog.clear()  # aiohttp stumbles once more over what is left of the body


async def test_a_fleet_of_which_nothing_is_known_yet_is_unavailable() -> None:
    async with simulated() as (pod,):
        await pod.stop()
        async with serving([pod], ready=0) as front:
            answer = await post(front, text_body([1]))
            assert_error(answer, 503, "no_pod_ready", kind="service_unavailable_error")
            assert answer.headers["retry-after"] == "1"
            await counted(front, 503)
            ready = await front.get("/ready")
            assert (ready.status, ready.json["ready"]) == (503, False)
            assert (await front.get("/health")).status == 200
            assert (await front.get("/v1/models")).json["data"] == []


async def test_a_model_whose_pods_are_all_down_is_unavailable_and_not_unknown() -> None:
    async with fleet() as (front, (pod,)):
        await pod.kill()

        async def down() -> bool:
            return bool((await front.row(pod))["state"] == "down")

        await until(down)
        assert_error(await post(front, text_body([1])), 503, "no_pod_ready", kind="service_unavailable_error")
        explained = await post(front, text_body([1]), "/explain")
        assert_error(explained, 503, "no_pod_ready", kind="service_unavailable_error")


async def test_an_unknown_url_is_not_found_in_the_same_shape() -> None:
    async with fleet() as (front, _):
        assert_error(await post(front, {}, "/nothing"), 404, "invalid_request")
        assert_error(await front.get("/", **{"x-request-id": "it"}), 404, "invalid_request")
        assert await front.metric("requests_total", status="404", endpoint="other", pod="") == 2


async def test_below_v1_the_pod_knows_what_is_not_found() -> None:
    async with fleet() as (front, (pod,)):
        answer = await post(front, {}, "/v1/nothing")
        assert (answer.status, answer.pod, answer.json["error"]["type"]) == (404, pod.url, "Not Found")


async def test_a_wrong_method_is_refused_in_the_same_shape_and_told_the_right_one() -> None:
    async with fleet() as (front, _):
        answer = await front.get("/v1/completions", **{"x-request-id": "it"})
        assert_error(answer, 405, "invalid_request")
        assert answer.headers["allow"] == "POST"
        assert await front.metric("requests_total", status="405", endpoint="/v1/completions", pod="") == 1


async def test_explain_refuses_what_serving_refuses_and_counts_nothing() -> None:
    async with fleet(limits={"max_body": LIMIT}) as (front, (pod,)):
        assert_error(await post(front, b"{", "/explain"), 400, "invalid_json")
        assert_error(await post(front, {"model": "nobody"}, "/explain"), 404, "model_not_found", param="model")
        assert_error(await post(front, text_body("x" * LIMIT), "/explain"), 413, "body_too_large")
        assert (await post(front, text_body([1]), "/explain")).status == 200
        assert await front.metric("requests_total") == 0
    assert not pod.requests


async def test_a_fault_of_our_own_is_answered_and_logged(
    log: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet() as (front, _):
        monkeypatch.setattr(front.parts.pods, "candidates", lambda *_: 1 / 0)
        answer = await post(front, text_body([1]))
        assert_error(answer, 500, "internal_error", kind="server_error")
        assert "ZeroDivision" not in answer.body.decode()
        await counted_fault(front)
        await front.idle()
    (fault,) = [entry for entry in log if entry["log_level"] == "error"]
    assert (fault["event"], fault["request_id"]) == ("unexpected error", "it")
    log.remove(fault)


async def counted_fault(front: Front) -> None:
    assert await front.metric("requests_total", status="500") == 1


async def test_the_openai_client_reads_the_errors_as_its_own() -> None:
    async with (
        fleet() as (front, _),
        openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as api,
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            await api.completions.create(model="nobody", prompt="x")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError):
            await api.completions.create(model=MODEL, prompt="x", n=1.5)  # type: ignore[call-overload]


async def test_a_pod_that_answers_nonsense_to_polls_is_not_served_from() -> None:
    async with scripted(models=says({"data": "none"})) as odd, fleet() as (front, _):
        del front
        async with serving([odd], ready=0) as alone:
            answer = await post(alone, text_body([1]))
            assert_error(answer, 503, "no_pod_ready", kind="service_unavailable_error")
