"""Answers to plain requests over real sockets: readers slow and impatient, and how long a connection is kept."""

import asyncio
from hashlib import sha256

import pytest

from tests.gateway.fleet import SLOW, Front, connection, fleet, posted, serving, text_body, until
from tests.gateway.raw import CHUNKED, JSON, OK, RawPod, chunk, raw

STREAM = posted(text_body([1], stream=True, max_tokens=30))
PIECES = [bytes([number % 251]) * 60_000 for number in range(1000)]  # more than sockets hold


def a_flood(*, chunked: bool) -> list[bytes]:
    if chunked:
        return [OK + JSON + CHUNKED + b"\r\n", *map(chunk, PIECES), b"0\r\n\r\n"]
    return [OK + JSON + b"Content-Length: %d\r\n\r\n" % sum(map(len, PIECES)), *PIECES]


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_client_that_reads_late_gets_every_byte_and_holds_up_the_pod(chunked: bool) -> None:
    handed_on = 0

    async def floods(_: RawPod, writer: asyncio.StreamWriter) -> bool:
        nonlocal handed_on
        for piece in a_flood(chunked=chunked):
            writer.write(piece)
            await writer.drain()
            handed_on += 1
        return True

    async with raw(floods) as pod, serving([pod]) as front:
        async with front.http.post(f"{front.url}/v1/completions", json=text_body([1])) as answer:
            await until(lambda: handed_on > 0)
            await asyncio.sleep(0.3)  # as long as it may like to go on
            assert handed_on < 900
            digest = sha256()
            async for piece in answer.content.iter_any():
                digest.update(piece)
                await asyncio.sleep(0)
        assert digest.digest() == sha256(b"".join(PIECES)).digest()
        assert await metric_of(front, "200") == 1


async def metric_of(front: Front, status: str) -> float:
    return await front.metric("requests_total", status=status)


async def test_a_request_may_take_longer_than_a_connection_is_kept() -> None:
    async with (
        fleet(limits={"keep_alive": 0.2}, pod={"profile": SLOW}) as (front, _),
        connection(front) as (reader, writer),
    ):
        for _ in range(2):
            writer.write(STREAM)
            assert b"[DONE]" in await reader.readuntil(b"\r\n0\r\n\r\n")


async def test_a_connection_is_closed_when_nothing_is_asked_on_it_any_more() -> None:
    async with fleet(limits={"keep_alive": 0.2}) as (front, _), connection(front) as (reader, writer):
        writer.write(posted(text_body([1])))
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_does_not_come_is_given_up() -> None:
    async with fleet(limits={"idle_timeout": 0.2}) as (front, _), connection(front) as (reader, writer):
        request = posted(text_body([1]))
        writer.write(request[:-5])
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        assert b'"code":"body_timeout"' in await reader.readuntil(b"}}")
        writer.write(request[-5:] + request)  # late, and the next in order
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_a_refusal_and_a_success_on_one_connection() -> None:
    async with fleet() as (front, _), connection(front) as (reader, writer):
        for body, status in (([1], b"400"), (text_body([1], model="nobody"), b"404"), (text_body([1]), b"200")):
            writer.write(posted(body))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.split()[1] == status
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
