"""What of a request reaches the pod, and what never does."""

import gzip
import json
import re
from typing import Any

import pytest
from aiohttp import web

from tests.gateway.fleet import (
    MODEL,
    QUEUE_ONLY,
    completions,
    connection,
    fleet,
    ids,
    serving,
    spec,
    text_body,
    warm,
)
from tests.gateway.scripted import says, scripted

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
STOLEN = {"remote_kv_source": {"kv_request_id": "x", "remote_host": "evil", "remote_port": 1}}
# A client's params in every spelling: plain, escaped, twice, beside other fields, nested where they are harmless.
STEERED = [
    b'{"prompt":[1,2],"kv_transfer_params":%b}',
    b'{"kv_transfer_params" : %b , "prompt":[1,2]}',
    b'{"prompt":[1,2],"\\u006bv_transfer_params":%b}',
    b'{"kv_transfer_params":null,"prompt":[1,2],"kv\\u005Ftransfer_params":%b}',
    b'{"kv_transfer_params":{},"prompt":[1,2],"kv_transfer_params":%b}',
]
UNUSUAL = [
    b'{"prompt" :\t[1, 2],\r\n "max_tokens":1e0 , "temperature":0.10000000000000000555, "seed":-0}',
    b'{"prompt":[1,2],"max_tokens":3,"max_tokens":1,"user":"\\u0041\\ud83d\\ude00\\/"}',
    b'{"prompt":[1,2],"max_tokens":1,"logit_bias":{"5":1E+2},"x":123456789012345678901234567890}',
    '{"prompt":"caf\u00e9 \u732b","max_tokens":1,"metadata":{"a":[[],{}]}}'.encode(),
    b' {"prompt":[1,2],"max_tokens":1}\n',
]
OK = says({"ok": True})


@pytest.mark.parametrize("body", UNUSUAL)
async def test_a_body_reaches_the_pod_byte_for_byte(body: bytes) -> None:
    async with scripted(completions=OK, tokenize=says({"tokens": [1]})) as pod, serving([pod]) as front:
        assert (await front.post("/v1/completions", body)).status == 200
    assert pod.requests[-1].body == body
    assert pod.requests[-1].headers["content-length"] == str(len(body))


async def test_a_body_of_megabytes_reaches_the_pod_byte_for_byte() -> None:
    body = json.dumps({"prompt": [1], "padding": "x" * (3 << 20)}).encode()
    async with scripted(completions=OK) as pod, serving([pod]) as front:
        assert (await front.post("/v1/completions", body)).status == 200
    assert pod.requests[-1].body == body


@pytest.mark.parametrize("body", STEERED)
async def test_a_clients_kv_transfer_params_never_reach_a_pod(body: bytes) -> None:
    async with scripted(completions=OK) as pod, serving([pod]) as front:
        assert (await front.post("/v1/completions", body % json.dumps(STOLEN).encode())).status == 200
    assert json.loads(pod.requests[-1].body) == {"prompt": [1, 2]}
    assert b"evil" not in pod.requests[-1].body


@pytest.mark.parametrize("body", STEERED)
@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_a_clients_kv_transfer_params_give_way_to_the_gateways_own(body: bytes) -> None:
    prompt = json.dumps(ids(200)).encode()
    async with fleet(2, placement=QUEUE_ONLY) as (front, (consumer, holder)):
        await warm(holder, ids(200))
        await front.settled(holder)
        sent = (body % json.dumps(STOLEN).encode()).replace(b"[1,2]", prompt)
        answer = await front.post("/v1/completions", sent)
        assert (answer.status, answer.source) == (200, holder.url)
    arrived = completions(consumer)[-1]
    source = arrived.json["kv_transfer_params"]["remote_kv_source"]
    assert (source["remote_host"], source["remote_port"]) == (holder.p2p_host, holder.p2p_port)
    assert UUID.fullmatch(source["kv_request_id"])
    assert b"evil" not in arrived.body


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_apart_from_the_params_a_body_with_a_source_is_what_the_client_sent() -> None:
    body = b'{ "prompt":%b, "max_tokens":1,"max_tokens":1 ,"user":"\\u00e9" }' % json.dumps(ids(200)).encode()
    async with fleet(2, placement=QUEUE_ONLY) as (front, (consumer, holder)):
        await warm(holder, ids(200))
        await front.settled(holder)
        assert (await front.post("/v1/completions", body)).source == holder.url
    arrived = completions(consumer)[-1].body
    start, end = arrived.index(b'"kv_transfer_params"'), arrived.index(b"}},") + 3
    assert arrived[:start] + arrived[end:] == body


async def test_nested_fields_of_that_name_are_the_clients_own() -> None:
    body = b'{"prompt":[1],"metadata":{"kv_transfer_params":{"a":1}}}'
    async with scripted(completions=OK) as pod, serving([pod]) as front:
        assert (await front.post("/v1/completions", body)).status == 200
    assert pod.requests[-1].body == body


async def test_steering_and_hop_by_hop_headers_stop_here() -> None:
    stopped = {
        "x-data-parallel-rank": "1",
        "x-gateway-pod": "http://evil",
        "x-kv-source": "evil:1",
        "x-prefiller-host-port": "evil:1",
        "x-p2p-source": "evil:1",
        "X-Gateway-KV-Source": "evil",
        "keep-alive": "timeout=5",
        "proxy-authorization": "secret",
        "te": "trailers",
        "x-named": "by connection",
    }
    kept = {
        "authorization": "Bearer k",
        "traceparent": "00-1-2-01",
        "x-session-id": "s",
        "accept": "text/event-stream",
        "user-agent": "ours/1",
        "accept-encoding": "br",
    }
    async with scripted(completions=OK) as pod, serving([pod]) as front:
        answer = await front.post(
            "/v1/completions", text_body([1]), {**stopped, **kept, "connection": "keep-alive, X-Named"}
        )
        assert answer.status == 200
    arrived = pod.requests[-1].headers
    assert not {name.lower() for name in stopped} & arrived.keys()
    assert {name: arrived.get(name) for name in kept} == kept
    assert arrived["host"] == pod.url.removeprefix("http://")


async def test_only_configured_pods_are_contacted_whatever_the_request_line_and_host_say() -> None:
    body = json.dumps(text_body([1])).encode()
    async with (
        scripted(completions=OK) as pod,
        scripted(completions=OK) as stranger,
        serving([pod]) as front,
    ):
        host = stranger.url.removeprefix("http://").encode()
        for line in (
            b"POST %b/v1/completions HTTP/1.1" % stranger.url.encode(),
            b"POST //%b/v1/completions HTTP/1.1" % host,
            b"POST /v1/completions?url=%b HTTP/1.1" % stranger.url.encode(),
            b"POST @%b/v1/completions HTTP/1.1" % host,
            b"POST /v1/completions#@%b HTTP/1.1" % host,
            b"CONNECT %b HTTP/1.1" % host,
        ):
            async with connection(front) as (reader, writer):
                headers = b"Host: %b\r\nForwarded: host=%b\r\nX-Forwarded-Host: %b\r\nConnection: close\r\n" % (
                    (host,) * 3
                )
                writer.write(b"%b\r\n%bContent-Length: %d\r\n\r\n%b" % (line, headers, len(body), body))
                assert (await reader.readline()).startswith(b"HTTP/1.")
        for arrived in pod.requests:
            assert arrived.headers["host"] == pod.url.removeprefix("http://")
    assert (stranger.requests, stranger.asked) == ([], [])


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_no_field_of_a_body_chooses_a_pod_a_rank_or_a_source() -> None:
    async with fleet(2, pod={"ranks": 2}, placement=QUEUE_ONLY) as (front, (first, second)):
        steered: dict[str, Any] = {
            "data_parallel_rank": 1,
            "kv_transfer_params": STOLEN,
            "remote_kv_source": STOLEN["remote_kv_source"],
            "pod": second.url,
            "x-gateway-pod": second.url,
            "metadata": {"x-data-parallel-rank": "1"},
        }
        plain, sent = await front.complete(ids(64)), await front.complete(ids(64), **steered)
        assert plain.pod == sent.pod == first.url
        assert (plain.source, sent.source) == (None, None)
    assert [request.headers["x-data-parallel-rank"] for request in completions(first)] == ["0", "0"]
    assert b"kv_transfer_params" not in completions(first)[-1].body


async def test_headers_that_any_connection_header_names_stop_here() -> None:
    async with scripted(completions=OK) as pod, serving([pod]) as front:
        sent = [
            ("Connection", "x-one"),
            ("Connection", "close, x-two"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-three", "3"),
        ]
        async with front.http.post(f"{front.url}/v1/completions", json=text_body([1]), headers=sent) as answer:
            assert answer.status == 200
    assert {"x-one", "x-two", "x-three"} & pod.requests[-1].headers.keys() == {"x-three"}


async def test_the_pods_hop_by_hop_and_gateway_headers_stop_here() -> None:
    async def boasting(_: web.Request) -> web.Response:
        headers = {"x-gateway-kv-source": "me", "keep-alive": "timeout=1", "x-request-id": "mine", "x-other": "1"}
        return web.Response(headers=headers)

    async with scripted(completions=boasting) as pod, serving([pod]) as front:
        answer = await front.post("/v1/completions", text_body([1]), {"x-request-id": "theirs"})
    assert answer.source is None
    assert answer.pod == pod.url
    assert (answer.headers["x-request-id"], answer.headers["x-other"]) == ("theirs", "1")
    assert "keep-alive" not in answer.headers


async def test_without_a_source_no_header_names_one() -> None:
    async with fleet() as (front, (pod,)):
        answer = await front.complete([1, 2, 3])
    assert (answer.pod, answer.source) == (pod.url, None)
    assert b"kv_transfer_params" not in completions(pod)[-1].body


async def test_a_request_id_is_echoed_and_told_to_the_pod() -> None:
    async with fleet() as (front, (pod,)):
        answer = await front.complete([1], headers={"x-request-id": "from-the-client"})
    assert answer.headers["x-request-id"] == "from-the-client"
    assert completions(pod)[-1].headers["x-request-id"] == "from-the-client"


@pytest.mark.parametrize("given", [None, "", "x" * 129], ids=["none", "empty", "too long"])
async def test_without_a_usable_request_id_there_is_a_fresh_one(given: str | None) -> None:
    async with fleet() as (front, (pod,)):
        headers = {} if given is None else {"x-request-id": given}
        first = (await front.complete([1], headers=headers)).headers["x-request-id"]
        second = (await front.complete([1], headers=headers)).headers["x-request-id"]
    assert first
    assert first not in (given, second)
    assert [request.headers["x-request-id"] for request in completions(pod)] == [first, second]


async def test_a_query_string_is_kept() -> None:
    query = "api-version=1&b=%2F%20x&c=%C3%A9&d"
    async with scripted(completions=OK) as pod, serving([pod]) as front:
        assert (await front.post(f"/v1/completions?{query}", text_body([1]))).status == 200
    assert pod.requests[-1].path == f"/v1/completions?{query}"


async def test_a_refusal_of_the_pod_passes_as_it_is() -> None:
    async with fleet() as (front, (pod,)):
        answer = await front.post("/v1/completions", text_body([1], max_tokens=0))
        assert answer.status == 400
        assert answer.json["error"]["type"] == "BadRequestError"
        assert answer.json["error"]["param"] == "max_tokens"
        assert answer.pod == pod.url
        assert await front.metric("requests_total", status="400", pod=pod.url.removeprefix("http://")) == 1
        assert (await front.row(pod))["breaker"] == "closed"


async def test_a_redirect_of_the_pod_is_its_clients_to_follow() -> None:
    async def moved(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"location": "/tokenize"})

    async with scripted(completions=moved, tokenize=OK) as pod, serving([pod]) as front:
        where = f"{front.url}/v1/completions"
        async with front.http.post(where, json=text_body([1]), allow_redirects=False) as answer:
            assert (answer.status, answer.headers["location"]) == (307, "/tokenize")
    assert [request.path for request in pod.requests] == ["/v1/completions"]


async def test_a_failure_that_is_the_models_passes_as_it_is() -> None:
    async with fleet(2) as (front, pods):
        for pod in pods:
            pod.fail_next(500)
        answer = await front.post("/v1/completions", text_body([1]))
        assert answer.status == 500
        assert "injected failure" in answer.json["error"]["message"]
        assert await front.metric("retries_total") == 0


async def test_a_compressed_body_arrives_unpacked() -> None:
    body = json.dumps(text_body([1])).encode()
    async with scripted(completions=OK) as pod, serving([pod]) as front:
        answer = await front.post("/v1/completions", gzip.compress(body), {"content-encoding": "gzip"})
        assert answer.status == 200
    assert pod.requests[-1].body == body
    assert "content-encoding" not in pod.requests[-1].headers


async def test_a_pod_named_with_a_trailing_slash_is_reached() -> None:
    async with scripted(completions=OK) as pod, serving([spec(pod) | {"url": pod.url + "/"}]) as front:
        answer = await front.post("/v1/completions", {"model": MODEL, "prompt": [1]})
        assert (answer.status, answer.pod) == (200, pod.url)
    assert pod.requests[-1].path == "/v1/completions"
