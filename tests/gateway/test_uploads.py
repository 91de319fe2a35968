"""Forms, files and whatever is no JSON pass through in pieces: as they came, bounded, and never kept."""

import asyncio
import gzip
import hashlib
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.bodies import HEAD_BYTES, form_model
from tests.gateway.fleet import MODEL, Answer, Front, connection, serving, spec, until
from tests.gateway.keyring import ALICE, ROOT, bearer, write
from tests.gateway.scripted import ScriptedPod, models, never, says, scripted

PATH = "/v1/audio/transcriptions"
FORM = {"content-type": "multipart/form-data; boundary=XX"}
MB = 1_000_000
KB = 1000


def form(model: str | None, size: int = 10, *, last: bool = False) -> bytes:
    named = (
        b"" if model is None else b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n' % model.encode()
    )
    file = b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n' % (
        b"\0\xff" * (size // 2)
    )
    return (file + named if last else named + file) + b"--XX--\r\n"


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece
        await asyncio.sleep(0)


async def upload(front: Front, data: Any, path: str = PATH, **headers: str) -> Answer:
    sent = {**FORM, **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with front.http.post(front.url + path, data=data, headers=sent) as answer:
        return Answer(answer.status, answer.headers, await answer.read())


@asynccontextmanager
async def taking(name: str = MODEL) -> AsyncIterator[ScriptedPod]:
    async with scripted(models=says(models({"id": name}))) as pod:
        pod.scripts |= {PATH: says({"ok": True}), "/v1/files": says({"ok": True})}
        yield pod


def taken(pod: ScriptedPod) -> list[bytes]:
    return [arrived.body for arrived in pod.requests if arrived.path in (PATH, "/v1/files")]


# Where they go


@pytest.mark.parametrize("last", [False, True])
async def test_a_form_goes_to_a_pod_that_serves_its_model(last: bool) -> None:
    async with taking("other") as other, taking() as pod, serving([other, pod]) as front:
        for _ in range(4):
            answer = await upload(front, form(MODEL, last=last))
            assert (answer.status, answer.pod) == (200, pod.url)
        assert taken(pod) == [form(MODEL, last=last)] * 4
        assert taken(other) == []
        refused = await upload(front, form("nobody"))
        assert (refused.status, refused.json["error"]["code"]) == (404, "model_not_found")


async def test_without_a_model_that_can_be_seen_any_pod_will_do() -> None:
    hidden = form(MODEL, 2 * HEAD_BYTES, last=True)
    async with taking("other") as other, taking() as pod, serving([other, pod]) as front:
        for body in (form(None), hidden):
            assert (await upload(front, body)).status == 200
        assert sorted(map(len, taken(pod) + taken(other))) == sorted(map(len, (form(None), hidden)))
        assert (await upload(front, b"\0\1\2", "/v1/files", content_type="application/octet-stream")).status == 200
        assert await front.metric("requests_total", model="unknown", status="200") == 3


async def test_a_key_cannot_hide_a_model_in_a_form(tmp_path: Path) -> None:
    write(
        keys := tmp_path / "keys.yaml",
        [{"id": "a", "key": ALICE, "models": [MODEL]}, {"id": "r", "key": ROOT, "admin": True}],
    )
    twice = form(MODEL).removesuffix(b"--XX--\r\n") + form("secret")
    async with (
        scripted(models=says(models({"id": "base"}, {"id": MODEL, "parent": "base"}, {"id": "secret"}))) as mixed,
        taking() as pod,
        serving([spec(mixed), pod], auth={"keys": str(keys)}, session={"headers": bearer(ROOT)}, ready=0) as front,
    ):
        await until(lambda: [pod.state for pod in front.parts.pods].count("ready") == 2)
        for body in (twice, form(None), form(MODEL, 2 * HEAD_BYTES, last=True)) * 3:
            assert (await upload(front, body, **bearer(ALICE))).pod == pod.url
        assert (await upload(front, form("secret"), **bearer(ALICE))).status == 403
    assert [arrived.path for arrived in mixed.requests] == []


# What arrives


@pytest.mark.parametrize("size", [10, HEAD_BYTES, 5 * HEAD_BYTES])
async def test_a_body_arrives_byte_for_byte(size: int) -> None:
    body = form(MODEL, size)
    packed = gzip.compress(body)
    async with taking() as pod, serving([pod]) as front:
        assert (await upload(front, body)).status == 200
        assert (await upload(front, pieces(body[:3], body[3:50], body[50:]))).status == 200
        assert (await upload(front, packed, content_encoding="gzip")).status == 200
        assert (await upload(front, body, "/v1/files", content_type="text/plain")).status == 200
        assert (await upload(front, body, content_type="multipart/form-data")).status == 200  # which names no boundary
        assert (await upload(front, body, content_encoding="their-own")).status == 200
    assert taken(pod) == [body] * 6
    sent = [arrived.headers for arrived in pod.requests]
    assert [headers.get("content-length") for headers in sent[:2]] == [str(len(body)), None]
    assert [headers.get("content-encoding") for headers in sent] == [None, None, "gzip", None, None, "their-own"]
    assert sent[2]["content-length"] == str(len(packed))  # unpacked by the pod, and nowhere before
    assert sent[0]["content-type"] == FORM["content-type"]


async def test_an_upload_of_64_mb_is_not_kept() -> None:
    digest, got = hashlib.sha256(), 0

    async def digests(request: web.Request) -> web.Response:
        nonlocal got
        async for chunk in request.content.iter_any():
            digest.update(chunk)
            got += len(chunk)
        return web.json_response({"ok": True})

    piece = bytes(range(250)) * 256
    sent = hashlib.sha256()

    async def much() -> AsyncIterator[bytes]:
        head = form(MODEL).removesuffix(b"--XX--\r\n")
        sent.update(head)
        yield head
        for _ in range(64 * MB // len(piece)):
            sent.update(piece)
            yield piece

    async with streaming(digests) as pod, serving([pod]) as front:
        assert (await upload(front, form(MODEL))).status == 200  # whatever is made once, is
        digest, got = hashlib.sha256(), 0
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            assert (await upload(front, much())).status == 200
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
    assert got > 63 * MB
    assert digest.digest() == sent.digest()
    assert peak < 4 * MB, peak  # of the client, the gateway and the pod together


@asynccontextmanager
async def streaming(answer: Callable[[web.Request], Any]) -> AsyncIterator[Any]:
    """A pod of which one path is read by `answer`, as it comes."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == PATH:
            response: web.StreamResponse = await answer(request)
            return response
        return await pod.scripts[request.path](request) if request.path in pod.scripts else web.Response(status=404)

    async with scripted() as pod:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.05)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield {"url": f"http://127.0.0.1:{runner.addresses[0][1]}", "p2p": "127.0.0.1:1"}
        finally:
            await runner.cleanup()


# What goes wrong


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_upload_over_the_limit_is_refused_and_no_pods_fault(chunked: bool) -> None:
    body = form(MODEL, 300 * KB)
    async with taking() as pod, serving([pod], limits={"max_body": 200 * KB}, breaker={"failures": 1}) as front:
        answer = await upload(front, pieces(body[: 150 * KB], body[150 * KB :]) if chunked else body)
        assert (answer.status, answer.json["error"]["code"]) == (413, "body_too_large")
        assert await front.metric("requests_total", endpoint=PATH, status="413") == 1
        row = await front.row(pod)
        assert (row["breaker"], row["suspect"]) == ("closed", False)
        assert (await upload(front, form(MODEL, 100 * KB))).status == 200
        await front.idle()


async def test_an_upload_that_stops_coming_is_not_waited_for_for_ever() -> None:
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: %b\r\nContent-Length: 1000000\r\n\r\n"
    head %= (PATH.encode(), FORM["content-type"].encode())
    for limits in ({"idle_timeout": 0.2}, {"first_byte_timeout": 0.2}):
        for size in (10, 2 * HEAD_BYTES):
            async with taking() as pod, serving([pod], limits=limits, breaker={"failures": 1}) as front:
                if size < HEAD_BYTES and "first_byte_timeout" in limits:
                    continue  # nothing has been sent to a pod yet
                async with connection(front) as (reader, writer):
                    writer.write(head + form(MODEL, size)[:-20])
                    assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
                row = await front.row(pod)
                assert (row["breaker"], row["suspect"]) == ("closed", False)
                await front.idle()


async def test_a_client_that_leaves_while_it_sends_is_gone_and_no_pods_fault() -> None:
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: %b\r\nContent-Length: 1000000\r\n\r\n"
    async with taking() as pod, serving([pod], breaker={"failures": 1}) as front:
        async with connection(front) as (_, writer):
            writer.write(head % (PATH.encode(), FORM["content-type"].encode()) + form(MODEL, 2 * HEAD_BYTES))
            await until(lambda: bool(pod_in_flight(front)))

        async def left() -> bool:
            return await front.metric("requests_total", endpoint=PATH, status="499") == 1

        await until(left)
        await front.idle()
        row = await front.row(pod)
        assert (row["breaker"], row["suspect"]) == ("closed", False)


def pod_in_flight(front: Front) -> int:
    return sum(pod.requests for pod in front.parts.pods)


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_an_upload_is_sent_to_another_pod_while_all_of_it_is_still_here() -> None:
    body = form(MODEL, 1000)
    async with taking() as busy, taking() as pod, serving([busy, pod]) as front:
        busy.scripts[PATH] = says({}, 503)
        answer = await upload(front, body)
        assert (answer.status, answer.pod) == (200, pod.url)
        assert taken(pod) == [body]
        assert await front.metric("retries_total") == 1


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_an_upload_goes_to_another_pod_when_the_first_cannot_be_reached() -> None:
    body = form(MODEL, 5 * HEAD_BYTES)
    async with taking() as pod:
        async with taking() as lost:
            gone = spec(lost)
        async with taking() as there, serving([pod, there], poll={"interval": 60}) as front:
            del gone
            table = {each.name: each for each in front.parts.pods}
            table[pod.url.removeprefix("http://")].url = "http://127.0.0.1:1"  # where nobody listens
            answer = await upload(front, body)
            assert (answer.status, answer.pod) == (200, there.url)
            assert taken(there) == [body]


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_an_upload_of_which_a_part_is_gone_is_not_sent_again() -> None:
    async def refuses(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=503)

    async with taking() as busy, taking() as pod, serving([busy, pod]) as front:
        busy.scripts[PATH] = refuses
        answer = await upload(front, form(MODEL, 5 * HEAD_BYTES))
        assert (answer.status, answer.pod) == (503, busy.url)
        assert await front.metric("retries_refused_total", reason="body") == 1
        assert taken(pod) == []
        assert await front.metric("retries_total") == 0


async def test_a_pod_that_refuses_early_is_heard() -> None:
    async def refuses(_: web.Request) -> web.Response:
        answer = web.json_response({"error": "too much"}, status=413)
        answer.force_close()
        return answer

    async with streaming(refuses) as pod, serving([pod]) as front:
        answer = await upload(front, form(MODEL, 5 * HEAD_BYTES))
        assert (answer.status, answer.json) == (413, {"error": "too much"})


async def test_a_pod_that_takes_an_upload_and_does_not_answer_is_late() -> None:
    async with taking() as pod, serving([pod], limits={"first_byte_timeout": 0.3}) as front:
        pod.scripts[PATH] = never
        answer = await upload(front, form(MODEL, 2 * HEAD_BYTES))
        assert (answer.status, answer.json["error"]["code"]) == (504, "pod_timeout")


# The model of a form


@pytest.mark.parametrize(
    ("head", "model"),
    [
        (form("a"), "a"),
        (form("a", last=True), "a"),
        (form(None), None),
        (form("a")[:-40], "a"),
        (b"--XX\r\ncontent-disposition:form-data;name=model\r\ncontent-type: text/plain\r\n\r\nb\r\n--XX--", "b"),
        (b'preamble\r\n--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nc\r\n--XX', "c"),
        (b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\ncut o', None),
        (b'--XX\r\nContent-Disposition: form-data; name="model"; filename="f"\r\n\r\nd\r\n--XX--', None),
        (b'--XX\r\nContent-Disposition: form-data; name="x"\r\n\r\nname="model"\r\n\r\ne\r\n--XX--', None),
        (b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\r\n--XX--', "\ufffd"),
        (b"--XX\r\nbroken\r\n--XX\r\n\r\n--XX--", None),
        (b"", None),
    ],
)
def test_the_model_is_read_where_the_form_names_it(head: bytes, model: str | None) -> None:
    assert form_model(FORM["content-type"], head) == model


@pytest.mark.parametrize("content_type", ["multipart/form-data", "", "multipart/form-data; boundary=", "text/plain"])
def test_a_form_without_its_boundary_names_nothing(content_type: str) -> None:
    assert form_model(content_type, form("a")) is None


@given(st.text(), st.binary(), st.sampled_from([b"", b"--XX\r\n", b"--XX\r\nContent-Disposition: "]))
def test_nothing_that_looks_like_a_form_is_a_fault(kind: str, rest: bytes, start: bytes) -> None:
    for content_type in (kind, f"multipart/form-data; boundary={kind}", FORM["content-type"], "x; boundary=\udcff"):
        form_model(content_type, start + rest + b"\r\n--XX--")


async def test_aiohttps_own_forms_are_read() -> None:
    data = aiohttp.FormData({"model": MODEL})
    data.add_field("file", b"\0" * 100_000, filename='strange "name".wav')
    async with (
        taking("other") as other,
        taking() as pod,
        serving([other, pod]) as front,
        front.http.post(front.url + PATH, data=data) as answer,
    ):
        assert (answer.status, answer.headers["x-gateway-pod"]) == (200, pod.url)
