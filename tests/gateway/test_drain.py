"""SIGTERM: not ready, nothing new, what is under way to its end, and what outlasts that is told so."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from config.schema import Limits
from tests.gateway.fleet import (
    MODEL,
    SLOW,
    client,
    completions,
    connection,
    posted,
    simulated,
    spec,
    text_body,
    until,
)
from tests.gateway.scripted import never, scripted
from tests.gateway.test_command import ended, ready, started
from tests.gateway.test_lifecycle import is_listening, stoppable

LONG = {"stream": True, "max_tokens": 5000}


async def broken(answer: aiohttp.ClientResponse) -> bytes:
    """What still comes of an answer that does not get to its end."""
    told = b""
    with suppress(aiohttp.ClientPayloadError):
        while chunk := await answer.content.readany():
            told += chunk
        raise AssertionError("it is whole")
    return told


async def test_a_stream_that_outlasts_the_drain_ends_with_an_error_event() -> None:
    drain = 1.0
    async with (
        simulated(profile=SLOW) as (pod,),
        stoppable(pod, limits={"drain_timeout": drain}) as gateway,
        connection(gateway.front) as (reader, writer),
    ):
        writer.write(posted(text_body([1, 2, 3], **LONG)))
        await reader.readuntil(b"data: ")
        clock = asyncio.get_running_loop().time
        began = clock()
        await (await gateway.stop())
        assert 0.9 * drain < clock() - began < 1.8 * drain
        told = await reader.read()
        assert b"[DONE]" not in told
        assert b'"code":"draining"' in told.rpartition(b"data: ")[2]
        assert b"0\r\n\r\n" not in told[-5:]
        await until(lambda: completions(pod)[0].outcome == "aborted")


async def begins_and_hangs(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    await answer.write(b"event: message_start\ndata: {}\n\n")
    return await never(request)


async def test_a_stream_of_messages_ends_with_an_error_in_its_own_shape() -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "stream": True}
    async with scripted() as pod, stoppable(pod, limits={"drain_timeout": 0.2}) as gateway:
        pod.scripts["/v1/messages"] = begins_and_hangs
        async with gateway.front.http.post(f"{gateway.front.url}/v1/messages", json=body) as answer:
            await answer.content.readany()
            stopping = await gateway.stop()
            told = await broken(answer)
            await stopping
    assert told.startswith(b'\n\nevent: error\ndata: {"type":"error","error":{"type":"overloaded_error"')


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_has_not_begun_becomes_a_503(stream: bool) -> None:
    async with (
        simulated() as (pod,),
        stoppable(pod, limits={"drain_timeout": 0.2}) as gateway,
        connection(gateway.front) as (reader, writer),
    ):
        pod.stall()
        writer.write(posted(text_body([1, 2, 3], stream=stream)))
        await until(lambda: bool(completions(pod)))
        await (await gateway.stop())
        told = await reader.read()
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in told
        assert b"Connection: close" in told
        assert b'"code":"draining"' in told
        await until(lambda: completions(pod)[0].outcome == "aborted")


async def test_a_body_that_is_still_on_its_way_becomes_a_503() -> None:
    async with (
        simulated() as (pod,),
        stoppable(pod, limits={"drain_timeout": 0.2}) as gateway,
        connection(gateway.front) as (reader, writer),
    ):
        writer.write(posted(text_body([1]))[:-5])
        await gateway.front.get("/health")  # by now it has arrived
        await (await gateway.stop())
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
    assert not completions(pod)


async def test_a_client_that_does_not_read_does_not_hold_up_the_end() -> None:
    async with (
        simulated(profile=SLOW) as (pod,),
        stoppable(pod, limits={"drain_timeout": 0.2}) as gateway,
        connection(gateway.front) as (_, writer),
    ):
        writer.write(posted(text_body([1, 2, 3], **LONG)))
        await until(lambda: bool(completions(pod)))
        clock = asyncio.get_running_loop().time
        began = clock()
        await (await gateway.stop())
        assert clock() - began < 5


async def test_during_the_delay_it_is_not_ready_and_serves_all_the_same() -> None:
    async with simulated() as (pod,), stoppable(pod, limits={"drain_delay": 600.0}) as gateway:
        front = gateway.front
        before = await front.complete([1])
        assert "connection" not in before.headers
        stopping = asyncio.create_task(gateway.close())
        await until(lambda: gateway.server.gateway.drain.leaving)
        told = await front.get("/ready")
        assert (told.status, told.json["ready"], told.json["draining"]) == (503, False, True)
        answer = await front.complete([1])
        assert answer.headers["connection"] == "close"
        stream = await front.complete([1], stream=True)
        assert stream.headers["connection"] == "close"
        assert is_listening(front.url)
        gateway.server.hurry.set()
        await stopping
        assert not is_listening(front.url)


async def test_what_a_connection_sends_behind_its_last_request_is_not_served() -> None:
    async with (
        simulated(profile=SLOW) as (pod,),
        stoppable(pod) as gateway,
        connection(gateway.front) as (reader, writer),
    ):
        writer.write(posted(text_body([1], stream=True, max_tokens=20)))
        await reader.readuntil(b"data: ")
        stopping = await gateway.stop()
        writer.write(posted(text_body([2])))
        told = await reader.read()
        assert told.count(b"HTTP/1.1 200") == 0
        assert b"[DONE]" in told
        await stopping
    assert len(completions(pod)) == 1


async def test_the_operators_listener_is_served_until_the_end() -> None:
    async with (
        simulated(profile=SLOW) as (pod,),
        stoppable(pod, admin={"port": 0}) as gateway,
        connection(gateway.front) as (reader, writer),
    ):
        writer.write(posted(text_body([1], stream=True, max_tokens=20)))
        await reader.readuntil(b"data: ")
        stopping = await gateway.stop()
        async with gateway.front.http.get(f"{gateway.front.operators_url}/ready") as answer:
            assert (answer.status, (await answer.json())["draining"]) == (503, True)
        assert await gateway.front.metric("pod_ready") == 1
        assert b"[DONE]" in await reader.read()
        await stopping


def test_what_a_drain_takes_is_bounded() -> None:
    assert (Limits().drain_delay, Limits().drain_timeout) == (0.0, 30.0)


# --- a process


@asynccontextmanager
async def a_process(pod: Any, folder: Path, **limits: float) -> AsyncIterator[tuple[Any, str, aiohttp.ClientSession]]:
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump({"listen": {"host": "127.0.0.1", "port": 0}, "pods": [spec(pod)], "limits": limits}))
    async with client() as http, started("--config", str(file)) as (process, url):
        await ready(http, url)
        yield process, url, http


async def test_a_process_cuts_off_at_the_deadline_and_ends_with_0(tmp_path: Path) -> None:
    async with (
        simulated(profile=SLOW) as (pod,),
        a_process(pod, tmp_path, drain_timeout=0.3) as (process, url, http),
        http.post(f"{url}/v1/completions", json=text_body([1], **LONG)) as answer,
    ):
        await answer.content.readany()
        process.send_signal(signal.SIGTERM)
        assert b'"code":"draining"' in await broken(answer)
        assert await ended(process) == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_a_process_at_once(tmp_path: Path, second: signal.Signals) -> None:
    async with (
        simulated(profile=SLOW) as (pod,),
        a_process(pod, tmp_path, drain_timeout=600.0, drain_delay=600.0) as (process, url, http),
        http.post(f"{url}/v1/completions", json=text_body([1], **LONG)) as answer,
    ):
        await answer.content.readany()
        process.send_signal(signal.SIGTERM)

        async def leaving() -> bool:
            async with http.get(f"{url}/ready") as told:
                return told.status == 503

        await until(leaving)
        process.send_signal(second)
        assert await ended(process) == 1
