"""Pieces that are handed over as they arrive, without a reader that waits for each."""

import asyncio

import pytest

from gateway.wire import Answer, Disconnected
from tests.gateway.fleet import until
from tests.gateway.wire.peer import CHUNKED, Wire, answers, get, once, peer, pool

KIB = 1024
BROKEN = CHUNKED + b"3\r\none\r\n"


class Sink:
    """What was handed over."""

    def __init__(self, answer: Answer) -> None:
        self.got = b""
        self.ended = False
        answer.divert(self.take, self.end)

    def take(self, piece: bytes) -> None:
        assert not self.ended
        self.got += piece

    def end(self) -> None:
        self.ended = True


async def test_pieces_come_in_order_those_that_are_here_at_once() -> None:
    parts = (CHUNKED, b"3\r\none\r\n", b"3\r\ntwo\r\n", b"5\r\nthree\r\n0\r\n\r\n")
    async with peer(answers(*parts)) as there, pool() as ours:
        for _ in range(2):
            async with await get(ours, there.origin()) as answer:
                await until(lambda answer=answer: answer.buffered > 0)  # type: ignore[misc]
                sink = Sink(answer)
                assert sink.got.startswith(b"one")
                await answer.ended()
                assert (sink.got, sink.ended) == (b"onetwothree", True)
        assert (there.connections, ours.idle) == (1, 1)


async def test_of_an_answer_that_is_here_as_a_whole_the_end_is_told_at_once() -> None:
    raw = CHUNKED + b"3\r\none\r\n0\r\n\r\n"
    async with peer(answers(raw)) as there, pool() as ours, await get(ours, there.origin()) as answer:
        await until(lambda: answer.complete)
        sink = Sink(answer)
        assert (sink.got, sink.ended) == (b"one", True)
        await answer.ended()


async def test_an_answer_that_breaks_off_has_no_good_end() -> None:
    async with peer(answers(BROKEN, close=True)) as there, pool() as ours:
        async with await get(ours, there.origin()) as answer:
            sink = Sink(answer)
            with pytest.raises(Disconnected):
                await answer.ended()
            assert (sink.got, sink.ended) == (b"one", False)
        await until(lambda: ours.open == 0)


async def test_whoever_holds_holds_up_the_peer() -> None:
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
            sink = Sink(answer)
            answer.hold()
            answer.hold()
            held = len(sink.got)
            await asyncio.sleep(0.2)  # as long as it may like to go on
            assert len(sink.got) == held
            assert sent < 900
            answer.go_on()
            answer.go_on()
            await answer.ended()
            assert len(sink.got) == 1000 * 64 * KIB
        assert ours.idle == 1


async def test_a_connection_that_was_held_serves_the_next_request() -> None:
    async with peer(answers(CHUNKED + b"3\r\none\r\n", b"0\r\n\r\n")) as there, pool() as ours:
        async with await get(ours, there.origin()) as answer:
            await until(lambda: answer.buffered > 0)
            Sink(answer)
            answer.hold()
            answer.go_on()
            await answer.ended()
            answer.hold()  # too late: the connection may be somebody else's
        assert await once(ours, there.origin()) == b"one"
        assert there.connections == 1
