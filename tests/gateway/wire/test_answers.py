import asyncio

import pytest

from gateway.wire import Answer, Disconnected, ProtocolError
from tests.gateway.fleet import until
from tests.gateway.wire.peer import CHUNKED, OK, Wire, answers, get, peer, pool, rest


async def test_an_answer_comes_as_it_was_sent() -> None:
    raw = b"HTTP/1.1 404 No Such\r\nX-B: 2\r\nx-a:  1 \r\nX-B: 3\r\nContent-Length: 4\r\n\r\nbody"
    async with peer(answers(raw)) as there, pool() as ours, await get(ours, there.origin()) as answer:
        assert (answer.status, answer.reason) == (404, b"No Such")
        assert [name for name, _ in answer.headers] == [b"X-B", b"x-a", b"X-B", b"Content-Length"]
        assert (answer.header(b"x-b"), answer.header(b"x-a"), answer.header(b"x-c")) == (b"2", b"1", None)
        assert await rest(answer) == b"body"
        assert await answer.read() == b""


async def test_a_small_answer_is_there_whole_with_its_head() -> None:
    async with peer(answers(OK)) as there, pool() as ours, await get(ours, there.origin()) as answer:
        assert answer.complete
        assert answer.buffered == 2
        assert answer.take() == b"ok"
        assert answer.take() == await answer.read() == b""


async def test_pieces_are_those_that_were_sent() -> None:
    gate = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        for part in (CHUNKED + b"3\r\none\r\n", b"3\r\ntwo\r\n2\r\n, \r\n", b"5\r\nthree\r\n0\r\nX-Trailer: t\r\n\r\n"):
            await wire.send(part)
            await gate.wait()
            gate.clear()

    async with peer(script) as there, pool() as ours, await get(ours, there.origin()) as answer:
        assert await answer.read() == b"one"
        gate.set()
        assert await answer.read() == b"two, "  # what came together stays together
        gate.set()
        assert await answer.read() == b"three"
        assert answer.complete
        assert answer.header(b"x-trailer") is None
        assert ours.idle == 1


async def test_a_compressed_body_is_left_alone() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x00\xff"
    async with peer(answers(raw)) as there, pool() as ours, await get(ours, there.origin()) as answer:
        assert await rest(answer) == b"\x1f\x8b\x00\xff"


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"]
)
@pytest.mark.parametrize("together", [True, False])
async def test_interim_answers_are_skipped(interim: bytes, together: bool) -> None:
    parts = (interim * 2 + OK,) if together else (interim, interim, OK)
    async with peer(answers(*parts)) as there, pool() as ours:
        for _ in range(2):
            async with await get(ours, there.origin()) as answer:
                assert (answer.status, answer.reason, answer.headers) == (200, b"OK", [(b"Content-Length", b"2")])
                assert await rest(answer) == b"ok"
        assert there.connections == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_answers_without_a_body_end_at_their_head(raw: bytes) -> None:
    async with peer(answers(raw)) as there, pool() as ours:
        for _ in range(2):
            async with await get(ours, there.origin()) as answer:
                assert answer.complete
                assert await answer.read() == b""
        assert there.connections == 1


@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
async def test_an_answer_to_head_ends_at_its_head(framing: bytes) -> None:
    async with peer(answers(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n")) as there, pool() as ours:
        for _ in range(2):
            async with await ours.request(there.origin(), b"HEAD", b"/", ()) as answer:
                assert answer.complete
                assert await answer.read() == b""
        assert there.connections == 1


async def test_a_body_in_the_answer_to_head_is_dropped_with_the_connection() -> None:
    async with peer(answers(OK)) as there, pool() as ours:
        async with await ours.request(there.origin(), b"HEAD", b"/", ()) as answer:
            assert await answer.read() == b""
        assert ours.idle == 0


async def test_without_length_or_chunks_the_end_of_the_stream_ends_the_body() -> None:
    async with peer(answers(b"HTTP/1.1 200 OK\r\n\r\n", b"to the ", b"end", close=True)) as there, pool() as ours:
        async with await get(ours, there.origin()) as answer:
            assert await rest(answer) == b"to the end"
        await until(lambda: ours.open == 0)


async def test_a_reset_is_no_end_of_a_body() -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\n\r\nnot the end")
        await asyncio.sleep(0.02)
        wire.reset()

    async with peer(script) as there, pool() as ours, await get(ours, there.origin()) as answer:
        assert await answer.read() == b"not the end"
        with pytest.raises(Disconnected, match=r"(?i)reset"):
            await answer.read()


@pytest.mark.parametrize(
    "raw", [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", OK.replace(b"1.1", b"1.0")]
)
async def test_a_connection_that_is_to_close_is_not_kept(raw: bytes) -> None:
    async with peer(answers(raw)) as there, pool() as ours:
        for _ in range(2):
            async with await get(ours, there.origin()) as answer:
                assert await rest(answer) == b"ok"
        assert there.connections == 2


@pytest.mark.parametrize("extra", [b"!", b"H", b"HTTP/1.1 200 OK\r\n", OK])
async def test_more_than_one_answer_is_not_taken_for_the_next_one(extra: bytes) -> None:
    async with peer(answers(OK + extra), answers(OK)) as there, pool() as ours:
        for _ in range(2):
            async with await get(ours, there.origin()) as answer:
                assert await rest(answer) == b"ok"
        assert there.connections == 2


@pytest.mark.parametrize(
    ("raw", "before"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", b"short"),
        (CHUNKED + b"5\r\nwhole\r\n9\r\ncut", b"wholecut"),
        (CHUNKED + b"5\r\nwhole\r\n", b"whole"),
        (CHUNKED + b"5\r\nwhole\r\n0\r\n", b"whole"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\nshort", b"short"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n", b"whole"),
    ],
)
async def test_a_truncated_body_is_an_error_behind_what_had_come(raw: bytes, before: bytes) -> None:
    async with peer(answers(raw, close=True)) as there, pool() as ours, await get(ours, there.origin()) as answer:
        got = await answer.read()
        while len(got) < len(before):
            got += await answer.read()
        assert got == before
        with pytest.raises(Disconnected, match="in the middle"):
            await answer.read()


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"])
async def test_an_end_before_the_head_is_complete_is_an_error(raw: bytes) -> None:
    async with peer(answers(raw, close=True)) as there, pool() as ours:
        with pytest.raises(Disconnected, match="before its answer"):
            await get(ours, there.origin())


async def test_a_reset_is_an_error_and_says_so() -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        wire.reset()

    async with peer(script) as there, pool() as ours:
        with pytest.raises(Disconnected, match=r"(?i)reset.* before its answer"):
            await get(ours, there.origin())
        await until(lambda: ours.open == 0)


@pytest.mark.parametrize(
    "raw",
    [
        b"220 smtp.example ESMTP\r\n",
        b"HTTP/1.1 20x OK\r\n\r\n",
        b"HTTP/1.1 099 Low\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_an_error(raw: bytes) -> None:
    async with peer(answers(raw)) as there, pool() as ours:
        with pytest.raises(ProtocolError):
            await get(ours, there.origin())
        await until(lambda: ours.open == 0)


async def test_a_broken_chunk_is_an_error_behind_what_had_come() -> None:
    raw = CHUNKED + b"2\r\nok\r\nzz\r\n"
    async with peer(answers(raw)) as there, pool() as ours, await get(ours, there.origin()) as answer:
        assert await answer.read() == b"ok"
        with pytest.raises(ProtocolError):
            await answer.read()


LONG = b"HTTP/1.1 200 OK\r\nX: " + b"x" * 3000 + b"\r\nContent-Length: 2\r\n\r\nok"
FLOOD = b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000_000
TRAILERS = CHUNKED + b"2\r\nok\r\n0\r\nX: " + b"x" * 20_000_000


async def test_a_head_within_its_bound_is_taken_and_one_over_it_is_an_error() -> None:
    async with peer(answers(LONG)) as there:
        async with pool(head=4000) as ours, await get(ours, there.origin()) as answer:
            assert await rest(answer) == b"ok"
        async with pool(head=2000) as ours:
            with pytest.raises(ProtocolError, match="more than 2000 bytes"):
                await get(ours, there.origin())


async def test_a_head_without_end_is_an_error() -> None:
    async with peer(answers(FLOOD)) as there, pool() as ours:
        with pytest.raises(ProtocolError, match="more than 65536 bytes"):
            await get(ours, there.origin())


async def test_interim_answers_without_end_are_an_error() -> None:
    async with peer(answers(b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000)) as there, pool() as ours:
        with pytest.raises(ProtocolError, match="more than 65536 bytes"):
            await get(ours, there.origin())


async def test_trailers_without_end_are_an_error() -> None:
    async with peer(answers(TRAILERS)) as there, pool() as ours, await get(ours, there.origin()) as answer:
        with pytest.raises(ProtocolError, match="more than 65536 bytes"):
            await rest(answer)


async def test_leaving_an_answer_ends_its_connection() -> None:
    left = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(CHUNKED + b"2\r\nok\r\n")
        await wire.left()
        left.set()

    async with peer(script) as there, pool() as ours:
        async with await get(ours, there.origin()) as answer:
            assert await answer.read() == b"ok"
        await until(left.is_set)
        assert ours.open == 0
        with pytest.raises(Disconnected, match="given up"):
            await answer.read()


async def test_cancelling_the_wait_for_a_head_ends_the_connection() -> None:
    left = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.left()
        left.set()

    async with peer(script) as there, pool() as ours:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await get(ours, there.origin())
        await until(left.is_set)
        assert ours.open == 0


async def test_a_read_that_was_cancelled_loses_nothing() -> None:
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(CHUNKED)
        await go.wait()
        await wire.send(b"2\r\nok\r\n0\r\n\r\n")

    async with peer(script) as there, pool() as ours, await get(ours, there.origin()) as answer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await answer.read()
        go.set()
        assert await rest(answer) == b"ok"


async def test_a_complete_answer_outlives_its_connection() -> None:
    async with peer(answers(OK)) as there:
        async with pool() as ours:
            kept: list[Answer] = [await get(ours, there.origin()) for _ in range(2)]
            assert there.connections == 1  # the second went out while the first was still unread
        assert [await rest(answer) for answer in kept] == [b"ok", b"ok"]
