"""A client that goes away in any phase of its request: the pod's work ends at once, and nothing stays counted."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from loadgen.ports import reset
from tests.gateway.fleet import MODEL, SLOW, Front, completions, connection, fleet, posted, serving, text_body, until
from tests.gateway.scripted import never, scripted

LONG = {"max_tokens": 5000}


def leave(writer: asyncio.StreamWriter, *, rudely: bool) -> None:
    if rudely:
        reset(writer.get_extra_info("socket"))
        writer.transport.abort()
    else:
        writer.close()


@pytest.mark.parametrize("rudely", [False, True], ids=["close", "reset"])
async def test_leaving_before_the_first_byte_aborts_the_pods_request(rudely: bool) -> None:
    async with fleet() as (front, (pod,)), connection(front) as (_, writer):
        pod.stall()
        writer.write(posted(text_body([1, 2, 3], stream=True)))
        await until(lambda: bool(completions(pod)))
        assert (await front.row(pod))["in_flight_requests"] == 1
        assert (await front.row(pod))["in_flight_tokens"] == 3
        leave(writer, rudely=rudely)
        await until(lambda: completions(pod)[0].outcome == "aborted")
        await front.idle()
        assert await front.metric("requests_total", status="499") == 1


@pytest.mark.parametrize("rudely", [False, True], ids=["close", "reset"])
async def test_leaving_in_the_middle_of_a_stream_aborts_the_pods_request(rudely: bool) -> None:
    async with fleet(pod={"profile": SLOW}) as (front, (pod,)), connection(front) as (reader, writer):
        writer.write(posted(text_body([1, 2, 3], stream=True, **LONG)))
        await reader.readuntil(b"data: ")
        row = await front.row(pod)
        assert (row["in_flight_requests"], row["in_flight_tokens"]) == (1, 0)
        leave(writer, rudely=rudely)
        await until(lambda: completions(pod)[0].outcome == "aborted")
        await until(lambda: pod.engines[0].running == 0)
        await front.idle()
        assert await front.metric("requests_total", status="499") == 1
        row = await front.row(pod)
        assert (row["suspect"], row["breaker"]) == (False, "closed")


async def test_leaving_while_a_whole_answer_is_made_aborts_the_pods_request() -> None:
    async with fleet(pod={"profile": SLOW}) as (front, (pod,)), connection(front) as (_, writer):
        writer.write(posted(text_body([1, 2, 3], **LONG)))
        await until(lambda: pod.engines[0].running == 1)
        leave(writer, rudely=False)
        await until(lambda: completions(pod)[0].outcome == "aborted")
        await front.idle()


async def test_leaving_while_the_prompt_is_tokenized_asks_no_pod_for_an_answer() -> None:
    async with scripted(tokenize=never) as pod, serving([pod], tokens={"timeout": 60}) as front:
        async with connection(front) as (_, writer):
            writer.write(posted(text_body("some text")))
            await until(lambda: bool(pod.requests))
            leave(writer, rudely=False)

            async def counted() -> bool:
                return await front.metric("requests_total", status="499") == 1

            await until(counted)
        assert [request.path for request in pod.requests] == ["/tokenize"]
        await front.idle()


async def test_leaving_in_the_middle_of_the_body_asks_no_pod_at_all() -> None:
    async with fleet() as (front, (pod,)), connection(front) as (_, writer):
        writer.write(posted(text_body("some text"))[:-5])
        await writer.drain()
        leave(writer, rudely=False)
        await front.complete([1])
        await front.idle()
        assert len(pod.requests) == 1


async def test_a_pod_that_has_left_with_its_client_is_retried_by_nobody() -> None:
    async with fleet(2) as (front, pods), connection(front) as (_, writer):
        for pod in pods:
            pod.stall()
        writer.write(posted(text_body([1, 2, 3])))
        await until(lambda: any(map(completions, pods)))
        leave(writer, rudely=True)
        await until(lambda: any(request.outcome == "aborted" for pod in pods for request in completions(pod)))
        await front.idle()
        assert sum(len(completions(pod)) for pod in pods) == 1


async def flood(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    with suppress(ConnectionError):  # its client has left
        while True:
            await answer.write(bytes(1 << 20))
    return answer


@asynccontextmanager
async def lazy_client(front: Front) -> AsyncIterator[socket.socket]:
    """A client that has asked for a stream and does not read it."""
    host, _, port = front.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as lazy:
        lazy.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(lazy, posted(text_body([1], stream=True)))
        yield lazy


async def test_leaving_without_having_read_is_not_the_pods_fault() -> None:
    async with scripted(completions=flood) as pod, serving([pod], breaker={"failures": 1}) as front:
        async with lazy_client(front) as lazy:
            await until(lambda: bool(pod.requests))
            handed_on = front.parts.pods[pod.url.removeprefix("http://")].in_flight[0]
            await until(lambda: handed_on.tokens == 0)  # the first byte has come
            reset(lazy)

        async def counted() -> bool:
            return await front.metric("requests_total", status="499") == 1

        await until(counted)
        await front.idle()
        assert await front.metric("broken_answers_total") == 0
        assert (await front.row(pod))["breaker"] == "closed"


async def read_to_a_reset(client: socket.socket) -> bytes:
    got = b""
    with suppress(ConnectionResetError):
        while data := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
            got = data
        pytest.fail("ended in order")
    return got


async def test_a_client_that_does_not_read_is_left_and_its_pod_not_blamed() -> None:
    async with (
        scripted(completions=flood) as pod,
        serving([pod], limits={"idle_timeout": 0.2}, breaker={"failures": 1}) as front,
        lazy_client(front) as lazy,
    ):

        async def counted() -> bool:
            return await front.metric("requests_total", status="499") == 1

        await until(counted)
        await front.idle()
        # What has arrived can still be read; what is on its way is dropped, and the answer has not ended.
        assert (await read_to_a_reset(lazy))[-5:] in (b"", bytes(5))
        assert await front.metric("broken_answers_total") == 0
        assert (await front.row(pod))["breaker"] == "closed"


async def test_leaving_ends_a_chat_as_well() -> None:
    async with fleet(pod={"profile": SLOW}) as (front, (pod,)):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True}
        async with front.http.post(f"{front.url}/v1/chat/completions", json=body) as answer:
            await answer.content.readany()
        await until(lambda: completions(pod)[0].outcome == "aborted")
        await front.idle()
