import asyncio
import socket

import aiohttp
import pytest

from loadgen.pod import SimulatedPod
from tests.loadgen.clients import attached, cached, complete, next_batch, subscribed, until

PROMPT = list(range(1000, 1100))


async def test_a_client_that_leaves_a_stream_aborts_its_request(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod() as pod:
        body = {"prompt": PROMPT, "max_tokens": 30_000, "ignore_eos": True, "stream": True}
        async with http.post(f"{pod.url}/v1/completions", json=body) as response:
            await response.content.readline()
            assert pod.engines[0].running == 1
            response.close()
        await until(lambda: pod.engines[0].running == 0)
        assert pod.requests[-1].outcome == "aborted"
        assert pod.engines[0].scheduler.gpu.usage == 0


async def test_a_client_that_leaves_before_the_answer_aborts_its_request(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod() as pod:
        pod.stall()
        request = asyncio.create_task(complete(http, pod, PROMPT))
        await until(lambda: pod.engines[0].waiting == 1)
        request.cancel()
        await until(lambda: pod.engines[0].waiting == 0)
        assert pod.requests[-1].outcome == "aborted"


async def test_requests_are_remembered_as_they_came(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(speed=1000) as pod:
        await http.post(
            f"{pod.url}/v1/completions", data=b'{"prompt" : [7]}', headers={"Content-Type": "application/json"}
        )
        (received,) = pod.requests
    assert (received.path, received.body, received.outcome, received.status) == (
        "/v1/completions",
        b'{"prompt" : [7]}',
        "finished",
        200,
    )
    assert received.headers["content-type"] == "application/json"
    assert received.json == {"prompt": [7]}


async def test_a_stalled_pod_answers_only_what_needs_no_engine(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(speed=1000) as pod:
        pod.stall()
        request = asyncio.create_task(complete(http, pod, PROMPT))
        await until(lambda: pod.engines[0].waiting == 1)
        async with http.get(f"{pod.url}/health") as response:
            assert response.status == 200
        assert not request.done()
        pod.resume()
        assert cached(await request) == 0


async def test_injected_failures_are_counted_down(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(speed=1000) as pod:
        pod.fail_next(503, 2)
        statuses = []
        for _ in range(3):
            async with http.post(f"{pod.url}/v1/completions", json={"prompt": [7]}) as response:
                statuses.append(response.status)
    assert statuses == [503, 503, 200]


async def test_a_killed_pod_resets_its_connections_and_is_gone(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod() as pod:
        reader, writer = await asyncio.open_connection(pod.options.host, int(pod.url.rpartition(":")[2]))
        writer.write(b"GET /health HTTP/1.1\r\nhost: pod\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        pod.stall()
        request = asyncio.create_task(complete(http, pod, PROMPT))
        await until(lambda: pod.engines[0].waiting == 1)
        await pod.kill()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await request
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(f"{pod.url}/health")
        assert not pod.alive
        assert pod.requests[-1].outcome == "aborted"


async def test_a_restarted_pod_keeps_its_ports_and_nothing_else(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(speed=1000, ranks=2) as pod:
        await complete(http, pod, PROMPT)
        before = (pod.url, pod.events, pod.replays, pod.p2p_port)
        await pod.kill()
        await pod.restart()
        assert (pod.url, pod.events, pod.replays, pod.p2p_port) == before
        assert [pod.next_seq(rank) for rank in range(2)] == [0, 0]
        async with aiohttp.ClientSession() as fresh:
            assert cached(await complete(fresh, pod, PROMPT)) == 0
        assert len(pod.requests) == 2


async def test_a_subscriber_outlives_a_restart(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(speed=1000) as pod, subscribed(pod) as sub:
        await pod.restart()
        await attached(sub, pod)
        first = pod.next_seq()
        async with aiohttp.ClientSession() as fresh:
            await complete(fresh, pod, PROMPT)
        assert (await next_batch(sub))[0] == first


async def test_two_pods_answer_alike(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(speed=1000) as one, SimulatedPod(speed=1000, profile="tiny-cpu") as other:
        answers = [await complete(http, pod, PROMPT, max_tokens=40) for pod in (one, other)]
    assert answers[0]["choices"] == answers[1]["choices"]


async def test_a_taken_port_fails_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for option in ("port", "events_port", "p2p_port"):
            with pytest.raises(OSError, match="in use"):
                await SimulatedPod(**{option: port}).restart()


async def test_a_failure_inside_is_raised_on_leaving(http: aiohttp.ClientSession) -> None:
    pod = SimulatedPod(speed=1000)
    await pod.restart()
    del pod.engines[0].scheduler.gpu
    with pytest.raises(aiohttp.ClientError):
        await complete(http, pod, PROMPT)
    with pytest.raises(ExceptionGroup) as failure:
        await pod.stop()
    assert failure.group_contains(AttributeError)


async def test_a_busy_gpu_tier_is_not_cleared(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod() as pod:
        request = asyncio.create_task(complete(http, pod, PROMPT, max_tokens=100))
        await until(lambda: pod.engines[0].running == 1)
        assert not pod.clear_gpu()
        request.cancel()


async def test_a_stopped_pod_has_no_engines() -> None:
    async with SimulatedPod() as pod:
        await pod.stop()
        with pytest.raises(RuntimeError, match="not running"):
            pod.stall()
