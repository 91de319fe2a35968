"""Bodies both ways, and what happens when one side is slower than the other."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from gateway.wire import Disconnected, Pool
from tests.gateway.fleet import until
from tests.gateway.wire.peer import CHUNKED, OK, Peer, Wire, answers, get, peer, pool, rest

KIB = 1024


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece


async def post(ours: Pool, there: Peer, body: bytes | AsyncIterator[bytes], length: int | None = None) -> bytes:
    async with await ours.request(there.origin(), b"POST", b"/", (), body, length=length) as answer:
        return await rest(answer)


@pytest.mark.parametrize("size", [0, 1, 16 * KIB, 16 * KIB + 1, 8 * KIB * KIB])
async def test_a_body_of_any_size_arrives_as_it_is(size: int) -> None:
    body, got = bytes(range(256)) * (size // 256) + b"x" * (size % 256), []

    async def script(wire: Wire) -> None:
        got.append((await wire.request()).partition(b"\r\n\r\n")[2])
        await wire.send(OK)

    async with peer(script) as there, pool() as ours:
        assert await post(ours, there, body) == b"ok"
    assert got == [body]


async def test_a_streamed_body_is_chunked_and_its_connection_kept() -> None:
    got = []

    async def script(wire: Wire) -> None:
        got.append(await wire.reader.readuntil(b"\r\n\r\n"))
        got.append(await wire.reader.readuntil(b"\r\n0\r\n\r\n"))
        await wire.send(OK)
        await wire.request()
        await wire.send(OK)

    async with peer(script) as there, pool() as ours:
        assert await post(ours, there, pieces(b"one", b"", b"two" * 10)) == b"ok"
        assert await post(ours, there, b"") == b"ok"
        assert there.connections == 1
    assert b"Transfer-Encoding: chunked" in got[0]
    assert got[1] == b"3\r\none\r\n1e\r\n" + b"two" * 10 + b"\r\n0\r\n\r\n"


async def test_a_streamed_body_of_known_length_goes_as_it_is() -> None:
    got = []

    async def script(wire: Wire) -> None:
        got.append(await wire.request())
        await wire.send(OK)

    async with peer(script) as there, pool() as ours:
        assert await post(ours, there, pieces(b"one", b"", b"two"), length=6) == b"ok"
    assert got[0].endswith(b"\r\nContent-Length: 6\r\n\r\nonetwo")


@pytest.mark.parametrize(("length", "what"), [(5, "longer"), (7, "1 bytes short")])
async def test_a_streamed_body_of_another_length_than_said_is_refused(length: int, what: str) -> None:
    async with peer(answers(OK)) as there, pool() as ours:
        with pytest.raises(ValueError, match=what):
            await post(ours, there, pieces(b"one", b"two"), length=length)
        await until(lambda: ours.open == 0)


async def test_a_streamed_body_that_fails_ends_the_request() -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"one"
        raise TimeoutError("the client is slow")

    left = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.left()
        left.set()

    async with peer(script) as there, pool() as ours:
        with pytest.raises(TimeoutError, match="the client is slow"):
            await post(ours, there, breaks())
        await until(left.is_set)


async def test_a_streamed_body_is_never_sent_over_a_connection_that_may_be_stale() -> None:
    async with peer(answers(OK), answers(OK)) as there, pool() as ours:
        await post(ours, there, b"")
        await post(ours, there, pieces(b"one"), length=3)
        assert there.connections == 2


async def test_a_peer_that_does_not_read_holds_up_the_body() -> None:
    go, taken = asyncio.Event(), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield b"x" * 64 * KIB

    async def script(wire: Wire) -> None:
        wire.stop_reading()
        await go.wait()
        wire.read_on()
        while b"\r\n0\r\n\r\n" not in await wire.reader.read(1 << 20):
            pass
        await wire.send(OK)

    async with peer(script) as there, pool() as ours:
        sending = asyncio.create_task(post(ours, there, endless()))
        await until(lambda: any(connection._drained is not None for connection in ours._open))
        assert 0 < taken < 200  # what the kernel's buffers take, and no more
        go.set()
        assert await sending == b"ok"
        assert taken == 1000


@pytest.mark.parametrize("waits_in", ["the body", "the peer"])
async def test_an_answer_before_the_end_of_the_upload_is_delivered_and_the_upload_stopped(waits_in: str) -> None:
    stopped = False

    async def upload() -> AsyncGenerator[bytes]:
        nonlocal stopped
        try:
            yield b"first"
            if waits_in == "the body":
                await asyncio.get_running_loop().create_future()
            while True:
                yield b"x" * 64 * KIB
        finally:
            stopped = True

    async def script(wire: Wire) -> None:
        await wire.reader.readuntil(b"first")
        wire.stop_reading()
        await asyncio.sleep(0.05)
        await wire.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        wire.read_on()
        await wire.left()

    async with peer(script) as there, pool() as ours:
        body = upload()
        async with await ours.request(there.origin(), b"POST", b"/", (), body) as answer:
            assert answer.status == 413
            assert await rest(answer) == b"big"
        await body.aclose()
        assert stopped
        await until(lambda: ours.open == 0)  # half a request cannot be followed by another
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_an_answer_that_begins_before_the_end_of_the_upload_is_read_to_its_end() -> None:
    go = asyncio.Event()

    async def upload() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.get_running_loop().create_future()

    async def script(wire: Wire) -> None:
        await wire.reader.readuntil(b"first")
        await wire.send(CHUNKED + b"3\r\none\r\n")
        await go.wait()
        await wire.send(b"3\r\ntwo\r\n0\r\n\r\n")
        await wire.left()

    async with peer(script) as there, pool() as ours:
        async with await ours.request(there.origin(), b"POST", b"/", (), upload()) as answer:
            assert await answer.read() == b"one"
            go.set()
            assert await rest(answer) == b"two"
        await until(lambda: ours.open == 0)


async def test_a_connection_on_which_a_body_is_still_under_way_is_not_kept() -> None:
    async def script(wire: Wire) -> None:
        await wire.reader.readuntil(b"\r\n\r\n")
        wire.stop_reading()
        await wire.send(OK)
        await asyncio.get_running_loop().create_future()

    async with peer(script) as there, pool() as ours:
        assert await post(ours, there, b"x" * 32 * KIB * KIB) == b"ok"
        assert ours.idle == 0


async def test_a_connection_that_breaks_during_the_upload_ends_it() -> None:
    async def upload() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.get_running_loop().create_future()

    async def script(wire: Wire) -> None:
        await wire.reader.readuntil(b"first")

    async with peer(script) as there, pool() as ours:
        with pytest.raises(Disconnected):
            await post(ours, there, upload())


async def test_a_slow_reader_holds_up_the_peer_and_memory_stays_bounded() -> None:
    chunk, sent = b"10000\r\n" + b"x" * 64 * KIB + b"\r\n", 0

    async def script(wire: Wire) -> None:
        nonlocal sent
        await wire.request()
        await wire.send(CHUNKED)
        for _ in range(1000):
            await wire.send(chunk)
            sent += 1
        await wire.send(b"0\r\n\r\n")

    async with peer(script) as there, pool() as ours:
        async with await get(ours, there.origin()) as answer:
            await until(lambda: answer._paused)
            assert sent < 900
            assert 256 * KIB <= answer.buffered <= 768 * KIB  # the mark, and one read beyond it
            got = most = 0
            while piece := await answer.read():
                got += len(piece)
                most = max(most, answer.buffered)
            assert got == 1000 * 64 * KIB
            assert most <= 768 * KIB
        assert ours.idle == 1


async def test_a_flood_of_tiny_pieces_counts_as_what_it_costs() -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(CHUNKED)
        for _ in range(2000):
            await wire.send(b"1\r\nx\r\n")
            await asyncio.sleep(0)
        await wire.left()

    async with peer(script) as there, pool(behind=4096) as ours, await get(ours, there.origin()) as answer:
        await until(lambda: answer._paused)
        assert answer.buffered < 4096


async def test_a_connection_that_was_held_up_is_read_again_for_the_next_request() -> None:
    big = b"x" * 400 * KIB
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(big), big)
    async with peer(answers(raw)) as there, pool(behind=64 * KIB) as ours:
        for _ in range(3):
            answer = await get(ours, there.origin())
            while not answer.complete:
                await asyncio.sleep(0.001)
                answer.take()
        assert there.connections == 1
