"""How many requests at once, how large and how slow their headers: bounds, and what is over them."""

import asyncio
import json
import socket
from contextlib import ExitStack

import pytest

from tests.gateway.fleet import SLOW, Front, completions, connection, fleet, posted, text_body, until

STREAM = text_body([1], stream=True, max_tokens=500)
HEAD = b"GET /health HTTP/1.1\r\nHost: gateway\r\n"


async def test_over_the_global_limit_requests_are_told_to_come_back() -> None:
    async with fleet(limits={"max_concurrent": 2}, pod={"profile": SLOW}) as (front, (pod,)):
        async with (
            front.http.post(f"{front.url}/v1/completions", json=STREAM) as one,
            front.http.post(f"{front.url}/v1/completions", json=STREAM) as two,
        ):
            await asyncio.gather(one.content.readany(), two.content.readany())
            answer = await front.post("/v1/completions", text_body([1]))
            assert (answer.status, answer.json["error"]["code"]) == (503, "overloaded")
            assert answer.headers["retry-after"] == "1"
            assert await front.metric("refused_total", reason="global_limit") == 1
            # Nothing that operators and probes ask is refused.
            for path in ("/v1/models", "/health", "/ready", "/pods"):
                assert (await front.get(path)).status == 200
        await until(lambda: {request.outcome for request in completions(pod)} == {"aborted"})
        await front.complete([1])


async def test_requests_that_failed_are_no_longer_under_way() -> None:
    async with fleet(limits={"max_concurrent": 1}) as (front, (pod,)):
        for body in (b"{", b"[]", b'{"model": "nobody"}'):
            assert (await front.post("/v1/completions", body)).status in (400, 404)
        pod.fail_next(500)
        assert (await front.post("/v1/completions", text_body([1]))).status == 500
        assert (await front.get("/nowhere")).status == 404
        await front.complete([1])


async def test_a_pod_at_its_limit_is_no_candidate() -> None:
    async with fleet(3, limits={"max_concurrent_per_pod": 1}, pod={"profile": SLOW}) as (front, pods):
        streams = [await front.http.post(f"{front.url}/v1/completions", json=STREAM) for _ in pods]
        assert {stream.headers["x-gateway-pod"] for stream in streams} == {pod.url for pod in pods}
        answer = await front.post("/v1/completions", text_body([1]))
        assert (answer.status, answer.json["error"]["code"]) == (503, "overloaded")
        assert answer.headers["retry-after"] == "1"
        assert await front.metric("refused_total", reason="pod_limit") == 1
        streams[1].close()

        async def free() -> bool:
            return [row["in_flight_requests"] for row in (await front.pods()).values()].count(0) == 1

        await until(free)
        assert (await front.complete([1])).pod == streams[1].headers["x-gateway-pod"]
        for stream in streams:
            stream.close()
        await front.idle()


async def test_a_client_that_never_ends_its_headers_is_closed_in_time() -> None:
    async with (
        fleet(limits={"header_timeout": 0.2}) as (front, _),
        connection(front) as (reader, writer),
        connection(front) as (idle, _unused),
    ):
        writer.write(HEAD)
        clock = asyncio.get_running_loop().time
        began = clock()
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert 0.1 < clock() - began < 5
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body)["error"]["code"] == "header_timeout"
        assert await idle.read() == b""  # one that has sent nothing gets nothing
        assert await front.metric("refused_total", reason="header_timeout") == 2


async def test_dripping_headers_do_not_prolong_the_deadline() -> None:
    async with fleet(limits={"header_timeout": 0.3}) as (front, _), connection(front) as (reader, writer):
        writer.write(HEAD)

        async def drip() -> None:
            while not writer.is_closing():
                writer.write(b"x: y\r\n")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        try:
            async with asyncio.timeout(5):
                assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        except ConnectionError:
            pass  # what dripped on after the end reset the connection
        dripping.cancel()
        await asyncio.wait([dripping])
        assert await front.metric("refused_total", reason="header_timeout") == 1


async def test_each_request_of_a_connection_has_a_deadline_of_its_own() -> None:
    async with fleet(limits={"header_timeout": 0.3}) as (front, _), connection(front) as (reader, writer):
        for _ in range(2):
            writer.write(HEAD[:10])
            await asyncio.sleep(0.05)
            writer.write(HEAD[10:] + b"\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            await reader.readuntil(b'{"status":"ok"}')
            await asyncio.sleep(0.4)  # longer than the deadline: a connection may wait between requests
        writer.write(HEAD)
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")


async def test_bodies_and_answers_may_take_longer_than_headers() -> None:
    async with (
        fleet(limits={"header_timeout": 0.2}, pod={"profile": SLOW}) as (front, _),
        connection(front) as (reader, writer),
    ):
        request = posted(text_body([1], stream=True, max_tokens=30))
        writer.write(request[:-5])
        await asyncio.sleep(0.4)
        writer.write(request[-5:])
        assert b"[DONE]" in await reader.readuntil(b"[DONE]")
        assert await front.metric("refused_total") == 0


async def test_headers_that_come_with_the_connection_are_in_time() -> None:
    """They may be there before anybody has begun to wait for them."""
    request = posted(text_body([1], stream=True, max_tokens=2))
    async with fleet(limits={"header_timeout": 0.2}, pod={"profile": SLOW}) as (front, _):
        host, _, port = front.url.removeprefix("http://").rpartition(":")
        with ExitStack() as stack:
            clients = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(20)]
            for each in clients:
                each.sendall(request)
            for each in clients:
                reader, writer = await asyncio.open_connection(sock=each.dup())
                stack.callback(writer.close)
                assert (await reader.read(12)).startswith(b"HTTP/1.1 200")
                await reader.readuntil(b"[DONE]")
        assert await front.metric("refused_total") == 0


async def test_an_idle_connection_is_closed_in_the_end() -> None:
    async with fleet(limits={"keep_alive": 0.2}) as (front, _), connection(front) as (reader, writer):
        writer.write(HEAD + b"\r\n")
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        assert await front.metric("refused_total") == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health?" + b"q" * 1100 + b" HTTP/1.1\r\nHost: gateway\r\n\r\n",
        HEAD + b"x-long: " + b"v" * 1100 + b"\r\n\r\n",
        HEAD + b"x" * 1100 + b": v\r\n\r\n",
        HEAD + b"".join(b"x-%d: v\r\n" % n for n in range(20)) + b"\r\n",
    ],
    ids=["line", "value", "name", "many"],
)
async def test_headers_over_their_limits_get_431(sent: bytes) -> None:
    limits = {"max_request_line": 1000, "max_header": 1000, "max_headers": 10}
    async with fleet(limits=limits) as (front, _):
        await assert_refused(front, sent, b"431", "header_too_large")
        assert await front.metric("refused_total", reason="header_too_large") == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"NONSENSE\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        HEAD + b"Authorization Bearer sk-leaked\r\n\r\n",
        HEAD + b"Authorization: Bearer sk-\x00leaked\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
async def test_what_is_no_http_gets_400_and_no_traceback(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with fleet() as (front, _):
        await assert_refused(front, sent, b"400", "invalid_http")
        assert await front.metric("refused_total", reason="bad_head") == 1
    assert "sk-" not in caplog.text
    assert "Traceback" not in caplog.text


async def assert_refused(front: Front, sent: bytes, status: bytes, code: str) -> None:
    async with connection(front) as (reader, writer):
        writer.write(sent)
        async with asyncio.timeout(5):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.split()[1] == status
    assert b"content-type: application/json" in head.lower()
    assert json.loads(body)["error"]["code"] == code
    assert b"sk-" not in body
