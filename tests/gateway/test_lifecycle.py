import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from gateway.fleet import Fleet
from gateway.server import Running, StartError, running, serve
from loadgen.pod import SimulatedPod
from tests.gateway.fleet import (
    SLOW,
    Front,
    client,
    completions,
    configuration,
    connection,
    fleet,
    simulated,
    text_body,
    until,
)


class Stoppable:
    """A gateway that can be told to stop while its clients still look at it."""

    def __init__(self, front: Front, server: Running, stack: AsyncExitStack) -> None:
        self.front = front
        self.server = server
        self._stack = stack

    async def close(self) -> None:
        """Drain."""
        await self._stack.aclose()

    async def stop(self) -> asyncio.Task[None]:
        """Begin to drain, as far as nothing new is taken; the task ends when the gateway has."""
        stopping = asyncio.create_task(self.close())
        await until(lambda: self.server.gateway.drain.refusing)
        return stopping


@asynccontextmanager
async def stoppable(pod: Any, **sections: Any) -> AsyncIterator[Stoppable]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(configuration([pod], **sections)))
        async with client() as http:
            front = Front(server, http)
            await front.until_ready(1)
            yield Stoppable(front, server, stack)


def is_listening(url: str) -> bool:
    host, _, port = url.removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_what_is_under_way_is_finished_and_nothing_new_is_taken() -> None:
    async with simulated(profile=SLOW) as (pod,), stoppable(pod) as gateway:
        front = gateway.front
        async with connection(front) as (idle, _):
            whole = asyncio.create_task(front.complete([1, 2], max_tokens=20))
            sent = text_body([1, 2, 3], stream=True, max_tokens=20)
            async with front.http.post(f"{front.url}/v1/completions", json=sent) as stream:
                await stream.content.readany()
                await until(lambda: len(completions(pod)) == 2)
                stopping = await gateway.stop()
                await until(lambda: not is_listening(front.url))
                assert await idle.read() == b""
                assert (await stream.read()).endswith(b"data: [DONE]\n\n")
            assert (await whole).json["usage"]["completion_tokens"] == 20
            await stopping
        assert gateway.server.fleet_task.cancelled()
    assert [request.outcome for request in completions(pod)] == ["finished", "finished"]


async def test_a_draining_gateway_says_so_and_refuses() -> None:
    async with fleet() as (front, (pod,)):
        front.parts.drain.leaving = front.parts.drain.refusing = True
        ready = await front.get("/ready")
        assert (ready.status, ready.json["ready"], ready.json["draining"]) == (503, False, True)
        answer = await front.post("/v1/completions", text_body([1]))
        assert (answer.status, answer.json["error"]["code"]) == (503, "draining")
        assert answer.headers["retry-after"] == "1"
        assert await front.metric("requests_total", status="503") == 1
        assert (await front.get("/health")).status == 200
    assert not pod.requests


async def test_a_taken_port_is_a_start_error_and_leaves_nothing_behind() -> None:
    async with simulated() as (pod,):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            config = configuration([pod], listen={"port": taken.getsockname()[1]})
            tasks = asyncio.all_tasks()
            with pytest.raises(StartError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*in use"):
                await asyncio.create_task(_enter(config))
        assert asyncio.all_tasks() == tasks


async def _enter(config: Any) -> None:
    async with running(config):
        raise AssertionError("it listens")


async def test_a_fault_of_the_tasks_about_pods_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fault(_: Fleet) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("a bug")

    monkeypatch.setattr(Fleet, "run", fault)
    async with simulated() as (pod,):
        with pytest.raises(RuntimeError, match="a bug"):
            await serve(configuration([pod]))


async def test_an_ipv6_gateway_names_its_address_in_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    async with simulated() as (pod,):
        try:
            async with running(configuration([pod], listen={"host": "::1"})) as server:
                assert server.url.startswith("http://[::1]:")
                async with aiohttp.ClientSession() as http, http.get(f"{server.url}/health") as answer:
                    assert answer.status == 200
        except StartError as error:
            pytest.skip(str(error))


async def test_a_gateway_starts_before_its_pods_and_serves_when_they_come() -> None:
    async with simulated() as (pod,):
        await pod.stop()
        async with stoppable_unready(pod) as front:
            assert (await front.get("/ready")).status == 503
            assert (await front.row(pod))["state"] in ("starting", "down")
            await pod.restart()
            await front.until_ready(1)
            assert (await front.complete([1])).pod == pod.url


@asynccontextmanager
async def stoppable_unready(pod: SimulatedPod) -> AsyncIterator[Front]:
    async with running(configuration([pod])) as server, client() as http:
        yield Front(server, http)
