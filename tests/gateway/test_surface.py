"""Every path that clients ask: where it goes, what of it is counted, and in which shape it fails."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from yarl import URL

from gateway.surface import ENDPOINTS, OTHER
from tests.gateway.fleet import MODEL, SLOW, Answer, Front, fleet, serving, simulated, text_body
from tests.gateway.keyring import ALICE, BOB, ROOT, bearer, write
from tests.gateway.scripted import Script, ScriptedPod, breaks_off, models, page, says, scripted

OK = says({"ok": True})
POSTED = sorted(e.path for e in ENDPOINTS if e.methods == ("POST",) and e.reads == "json" and not e.operators)
MESSAGES = ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches")


async def send(front: Front, method: str, path: str, data: bytes = b"", **headers: str) -> Answer:
    where = URL(front.url + path, encoded=True)
    async with front.http.request(method, where, data=data or None, headers=headers, allow_redirects=False) as answer:
        return Answer(answer.status, answer.headers, await answer.read())


def answering(pod: ScriptedPod, *paths: str, script: Script = OK) -> None:
    pod.scripts |= dict.fromkeys(paths, script)


def assert_anthropic(answer: Answer, status: int, kind: str) -> None:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {"type": "error", "error": {"type": kind, "message": answer.json["error"]["message"]}}
    assert answer.headers["x-request-id"]


# Which pods


@pytest.mark.parametrize("path", POSTED)
async def test_a_request_goes_to_a_pod_that_serves_its_model(path: str) -> None:
    async with scripted(models=says(models({"id": "other"}))) as other, scripted() as pod:
        answering(pod, path)
        answering(other, path)
        async with serving([other, pod]) as front:
            body = msgspec.json.encode({"model": MODEL, "prompt": [1], "messages": []}) + b" "
            for _ in range(4):
                answer = await front.post(path, body)
                assert (answer.status, answer.pod, answer.json) == (200, pod.url, {"ok": True})
            assert [arrived.body for arrived in pod.requests if arrived.path == path] == [body] * 4
            assert (await front.post(path, {"model": "nobody"})).status == 404
            assert (await front.post(path, {"prompt": [1]})).status == 400  # which of the two?
            assert (await front.post(path, b"{")).status == 400
            assert (await front.post(path, {"model": 1})).status == 400
            assert (await front.get(path)).status == 405
            assert await front.metric("requests_total", endpoint=path, status="200", model=MODEL) == 4
            assert await front.metric("requests_total", endpoint=path) == 9
            await front.idle()
        assert [arrived for arrived in other.requests if arrived.path == path] == []


async def test_without_a_prompt_that_is_tokenized_placement_is_by_load_and_counted_so() -> None:
    async with fleet(2, placement={"scorers": [{"type": "prefix"}]}) as (front, _):
        for path in ("/tokenize", "/v1/rerank"):
            body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "prompt": "x"}
            assert (await front.post(path, body)).status == 200, path
        assert await front.metric("prompts_total", tokens_from="none", reason="endpoint") == 2
        await front.idle()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
async def test_any_other_path_below_v1_is_passed_to_a_pod(method: str) -> None:
    async def echoes(request: web.Request) -> web.Response:
        return web.Response(status=202, text=f"{request.method} {request.path_qs}", headers={"x-own": "1"})

    async with scripted() as pod, serving([pod]) as front:
        answering(pod, "/v1/files/1/content", script=echoes)
        answer = await send(front, method, "/v1/files/1/content?a=%2F&b", b"" if method == "GET" else b"\0\xff")
        assert (answer.status, answer.body) == (202, f"{method} /v1/files/1/content?a=%2F&b".encode())
        assert (answer.pod, answer.headers["x-own"]) == (pod.url, "1")
        assert await front.metric("requests_total", endpoint="other", status="202") == 1


async def test_json_on_an_unknown_path_is_looked_at_all_the_same() -> None:
    async with scripted(models=says(models({"id": "other"}))) as other, scripted() as pod:
        for each in (pod, other):
            answering(each, "/v1/images/generations")
        async with serving([other, pod]) as front:
            for _ in range(4):
                sent = b'{"model":"%b","kv_transfer_params":{"a":1}, "n": 1.0}' % MODEL.encode()
                assert (await front.post("/v1/images/generations", sent)).pod == pod.url
                assert pod.requests[-1].body == b'{"model":"%b", "n": 1.0}' % MODEL.encode()
            assert (await front.post("/v1/images/generations", {"model": "nobody"})).status == 404
            assert (await front.post("/v1/images/generations", b"{")).status == 400
            assert (await front.post("/v1/images/generations", {})).status == 200  # any pod will do


async def test_no_spelling_of_a_path_is_another_path_for_the_pod() -> None:
    async with scripted() as pod, serving([pod]) as front:
        answer = await send(front, "POST", "/v1/chat%2Fcompletions", b'{"model":"nobody"}')
        assert answer.json["error"]["code"] == "model_not_found"
        assert await front.metric("requests_total", endpoint="/v1/chat/completions", status="404") == 1
        for path in ("/v1/../metrics", "/v1/%2e%2e/metrics", "/v1/x/..%2f..%2fmetrics", "/v1/./models"):
            answer = await send(front, "GET", path)
            assert (answer.status, answer.json["error"]["code"]) == (404, "invalid_request"), path
    assert not {"..", "."} & {part for arrived in pod.asked for part in arrived.path.split("/")}


# Methods


async def test_head_is_answered_where_get_is() -> None:
    async with scripted() as pod, serving([pod]) as front:
        answering(pod, "/v1/files", "/v1/responses/r", script=page(b"12345"))
        for path, length in (("/v1/models", None), ("/health", None), ("/v1/files", "5"), ("/v1/responses/r", "5")):
            answer = await send(front, "HEAD", path)
            assert (answer.status, answer.body) == (200, b"")
            assert length is None or answer.headers["content-length"] == length
        assert (await send(front, "HEAD", "/v1/embeddings")).status == 405
        assert (await send(front, "GET", "/v1/files")).body == b"12345"  # the connection is in order


async def test_what_a_page_of_another_origin_may_ask_the_pod_says() -> None:
    async def allows(_: web.Request) -> web.Response:
        return web.Response(status=204, headers={"access-control-allow-origin": "*"})

    paths = ("/v1/chat/completions", "/v1/models", "/v1/anything", "/tokenize", "/v1/responses/r")
    async with scripted() as pod, serving([pod]) as front:
        answering(pod, *paths, script=allows)
        for path in paths:
            answer = await send(front, "OPTIONS", path, origin="http://page")
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, "*"), path
        for path, allowed in (("/health", "GET, HEAD"), ("/explain", "POST"), ("/metrics", "GET, HEAD")):
            answer = await send(front, "OPTIONS", path)
            assert (answer.status, answer.headers["allow"]) == (204, allowed)
        assert (await send(front, "OPTIONS", "/nothing")).status == 404


async def test_a_wrong_method_is_told_the_right_ones() -> None:
    async with fleet() as (front, (pod,)):
        for method, path, allowed in (
            ("DELETE", "/v1/completions", "POST"),
            ("PUT", "/v1/models", "GET, HEAD"),
            ("DELETE", f"/v1/models/{MODEL}", "GET, HEAD"),
            ("POST", "/v1/responses/r", "DELETE, GET, HEAD"),
            ("POST", "/health", "GET, HEAD"),
            ("TRACE", "/v1/files", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"),
        ):
            answer = await send(front, method, path)
            assert (answer.status, answer.headers["allow"]) == (405, allowed), path
            assert answer.json["error"]["code"] == "invalid_request"
        assert await front.metric("requests_total", status="405", pod="") == 6
        assert await front.metric("requests_total", status="405", endpoint="/v1/models/{model}") == 1
    assert not pod.requests


# Models


async def test_models_are_those_of_the_whole_fleet_with_adapters() -> None:
    async with (
        simulated(model="one", loras={"tuned": "/tuned"}) as (a,),
        simulated(model="two") as (b,),
        serving([a, b]) as front,
    ):
        cards = {card["id"]: card for card in (await front.get("/v1/models")).json["data"]}
        assert set(cards) == {"one", "tuned", "two"}
        assert cards["tuned"]["parent"] == "one"
        assert (await front.get("/v1/models/tuned")).json == cards["tuned"]
        answer = await front.post("/v1/embeddings", {"model": "tuned", "input": "x"})
        assert (answer.status, answer.pod) == (200, a.url)
        assert await front.metric("requests_total", endpoint="/v1/models", status="200") == 1
        assert await front.metric("requests_total", endpoint="/v1/models/{model}", status="200") == 1


async def test_an_entry_promises_no_more_than_every_pod_keeps() -> None:
    def card(longest: int | None) -> Script:
        return says(models({"id": MODEL, "max_model_len": longest, "root": "/m"}))

    async with (
        scripted(models=card(4096)) as long,
        scripted(models=card(2048)) as short,
        scripted(models=card(None)) as silent,
        serving([silent, long, short]) as front,
    ):
        assert (await front.get(f"/v1/models/{MODEL}")).json["max_model_len"] == 2048


# Errors


@pytest.mark.parametrize("path", MESSAGES)
async def test_errors_of_messages_have_anthropics_shape(path: str, tmp_path: Path) -> None:
    write(
        keys := tmp_path / "keys.yaml",
        [{"id": "a", "key": ALICE, "models": ["x"]}, {"id": "r", "key": ROOT, "admin": True}],
    )
    section: dict[str, Any] = {"auth": {"keys": str(keys)}, "session": {"headers": bearer(ROOT)}}
    async with fleet(limits={"max_body": 100}, **section) as (front, _):

        async def post(body: bytes, **headers: str) -> Answer:
            return await send(front, "POST", path, body, **{"content-type": "application/json", **headers})

        named = msgspec.json.encode({"model": MODEL})
        assert_anthropic(await post(named, authorization=""), 401, "authentication_error")
        assert_anthropic(await post(named, **bearer(ALICE)), 403, "permission_error")
        assert_anthropic(await post(b"{"), 400, "invalid_request_error")
        assert_anthropic(await post(b'{"model":"nobody"}'), 404, "not_found_error")
        assert_anthropic(await post(b" " * 101), 413, "request_too_large")
        if path in POSTED:
            assert_anthropic(await send(front, "GET", path), 405, "invalid_request_error")


async def test_limits_and_faults_of_messages_have_anthropics_shape(
    log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(limits={"max_concurrent": 1}, pod={"profile": SLOW}) as (front, (pod,)):
        stream = text_body([1], stream=True, max_tokens=5000)
        async with front.http.post(f"{front.url}/v1/completions", json=stream) as held:
            await held.content.readany()
            answer = await front.post("/v1/messages", {"model": MODEL})
            assert_anthropic(answer, 503, "overloaded_error")
            assert answer.headers["retry-after"] == "1"
        await front.idle()
        monkeypatch.setattr(front.parts.pods, "candidates", lambda *_: 1 / 0)
        assert_anthropic(await front.post("/v1/messages", {"model": MODEL}), 500, "api_error")
        monkeypatch.undo()
        log.remove(next(entry for entry in log if entry["event"] == "unexpected error"))
        await pod.stop()
        assert_anthropic(await front.post("/v1/messages", {"model": MODEL}), 502, "api_error")


async def test_a_stream_of_messages_that_breaks_ends_with_anthropics_error_event() -> None:
    async with scripted() as pod, serving([pod]) as front:
        pod.scripts["/v1/messages"] = breaks_off(b"event: ping\ndata: {}\n\n", **{"content-type": "text/event-stream"})
        async with front.http.post(f"{front.url}/v1/messages", json={"model": MODEL, "stream": True}) as answer:
            told = b""
            with suppress(aiohttp.ClientPayloadError):
                async for chunk in answer.content.iter_any():
                    told += chunk
        event = told.partition(b"event: error\ndata: ")[2]
        assert msgspec.json.decode(event)["error"]["type"] == "api_error"


# Keys


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    entries = [
        {"id": "alice", "key": ALICE, "models": [MODEL]},
        {"id": "bob", "key": BOB, "models": ["other"]},
        {"id": "root", "key": ROOT, "admin": True},
    ]
    write(tmp_path / "keys.yaml", entries)
    return tmp_path / "keys.yaml"


async def test_no_path_is_served_without_a_key_nor_a_model_that_it_may_not_use(keys: Path) -> None:
    async with fleet(auth={"keys": str(keys)}, session={"headers": bearer(ROOT)}) as (front, (pod,)):
        sent = {"content-type": "application/json"}
        for path in [*POSTED, "/v1/anything"]:
            body = msgspec.json.encode({"model": MODEL})
            async with front.http.post(front.url + path, data=body, headers={"authorization": ""}) as answer:
                assert answer.status == 401, path
            assert (await send(front, "POST", path, body, **sent, **bearer(BOB))).status == 403, path
            # Where there is one model only, it is that one.
            assert (await send(front, "POST", path, b"{}", **sent, **bearer(BOB))).status == 403, path
        for path in ("/v1/anything", "/v1/responses/r"):
            assert (await send(front, "GET", path, b"", **bearer(BOB))).status == 403
            assert (await send(front, "GET", path, b"", **bearer(ALICE))).status == 404
        assert {request.path for request in pod.requests} <= {"/v1/anything", "/v1/responses/r"}


async def test_what_names_no_model_goes_only_where_a_key_may_use_all(keys: Path) -> None:
    async with (
        simulated(model=MODEL) as (mine,),
        simulated(model="other", loras={MODEL: "/m"}) as (mixed,),
        serving([mine, mixed], auth={"keys": str(keys)}, session={"headers": bearer(ROOT)}) as front,
    ):
        for _ in range(8):
            assert (await send(front, "GET", "/v1/anything", b"", **bearer(ALICE))).pod == mine.url
        refused = await send(front, "GET", "/v1/anything", b"", **bearer(BOB))
        assert (refused.status, refused.json["error"]["code"]) == (403, "model_not_allowed")
        assert await front.metric("refused_total", reason="model") == 1


async def test_a_browsers_preflight_needs_no_key_and_brings_no_body(keys: Path) -> None:
    async with scripted() as pod:
        pod.scripts["/v1/chat/completions"] = page(b"")
        async with serving([pod], auth={"keys": str(keys)}, session={"headers": bearer(ROOT)}) as front:
            preflight = {"origin": "http://page", "access-control-request-method": "POST", "authorization": ""}
            path = "/v1/chat/completions"
            assert (await send(front, "OPTIONS", path, b"", **preflight)).status == 200
            assert (await send(front, "OPTIONS", path, b"x", **preflight)).status == 401
            assert (await send(front, "OPTIONS", path, origin="http://page", authorization="")).status == 401
            assert (await send(front, "GET", path, b"", **preflight)).status == 401
            assert (await send(front, "OPTIONS", "/pods", b"", **preflight)).status == 204
            assert (await send(front, "GET", "/pods", b"", **preflight)).status == 401


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/load%5flora_adapter"])
async def test_what_a_pod_serves_is_changed_by_operators_only(keys: Path, path: str) -> None:
    async with scripted() as pod:
        answering(pod, "/v1/load_lora_adapter", "/v1/unload_lora_adapter")
        async with serving([pod], auth={"keys": str(keys)}, session={"headers": bearer(ROOT)}) as front:
            sent = {"content-type": "application/json"}
            refused = await send(front, "POST", path, b"{}", **sent, **bearer(ALICE))
            assert (refused.status, refused.json["error"]["code"]) == (403, "admin_key_required")
            assert (await send(front, "POST", path, b"{}", **sent)).status == 200


async def test_an_adapter_is_loaded_by_a_fleet_of_several_models() -> None:
    async with simulated(model="one") as (a,), simulated(model="two") as (b,), serving([a, b]) as front:
        answer = await front.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "/x"})
        assert (answer.status, answer.json["error"]["type"]) == (404, "Not Found")  # a pod's word


def test_every_endpoint_has_a_label_of_its_own() -> None:
    labels = [endpoint.label for endpoint in (*ENDPOINTS, OTHER)]
    assert len(set(labels)) == len(labels)
    assert labels[-1] == "other"


async def test_paths_of_clients_make_no_labels() -> None:
    async with fleet() as (front, _):
        for number in range(20):
            await front.get(f"/v1/files/{number}")
            await front.get(f"/v1/responses/{number}")
            await front.get(f"/{number}")
        assert await front.metric("requests_total", endpoint="other") == 40
        assert await front.metric("requests_total", endpoint="/v1/responses/{id}") == 20
        assert await front.metric("requests_total") == 60
