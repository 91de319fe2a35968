"""Any bytes, cut anywhere, straight into a connection: an answer or one of the errors, at once."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire import Answer, Disconnected, ProtocolError
from gateway.wire.connection import Bounds, Connection
from tests.gateway.wire.peer import OK, rest


class Line(asyncio.Transport):
    """A transport that takes everything and has nothing behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = self.held_up = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.aborted, data

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.held_up = True

    def resume_reading(self) -> None:
        self.held_up = False

    def get_write_buffer_size(self) -> int:
        return 0


class Outcome(NamedTuple):
    """What became of one exchange."""

    answer: Answer | None
    body: bytes
    fault: Exception | None
    kept: bool


def connected(parked: list[Connection], **bounds: int) -> tuple[Connection, Line]:
    connection, line = Connection(Bounds(**bounds), parked.append, lambda _: None), Line()
    connection.connection_made(line)
    return connection, line


async def played(parts: Sequence[bytes], *, to_head: bool = False) -> Outcome:
    """The answer that these parts and then the end of the stream are."""
    parked: list[Connection] = []
    connection, line = connected(parked, head=1000, behind=1000)
    asking = asyncio.ensure_future(connection.exchange(b"", b"", length=None, to_head=to_head))
    await asyncio.sleep(0)
    for part in parts:
        if not line.aborted and not parked:
            connection.data_received(part)
    if not line.aborted:
        connection.eof_received()
    answer, body, fault = None, b"", None
    try:
        async with asyncio.timeout(5):
            answer = await asking
            while piece := await answer.read():
                body += piece
    except (Disconnected, ProtocolError) as error:
        fault = error
    connection.connection_lost(None)
    assert answer is None or all(not set(name + value) & set(b"\r\n\0") for name, value in answer.headers)
    return Outcome(answer, body, fault, bool(parked))


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({place % len(data) for place in places} - {0}), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


HEADER = st.tuples(
    st.from_regex(rb"[A-Za-z][A-Za-z-]{0,12}", fullmatch=True).filter(
        lambda name: name.lower() not in (b"connection", b"upgrade") and b"-" not in name[:1]
    ),
    st.from_regex(rb"[!-~]([ -~]{0,20}[!-~])?", fullmatch=True),
)


@st.composite
def valid(draw: st.DrawFn) -> tuple[bytes, list[tuple[bytes, bytes]], list[bytes]]:
    """The bytes of an answer, its headers, its body in the pieces of its chunks."""
    headers = draw(st.lists(HEADER, max_size=5))
    body = draw(st.lists(st.binary(min_size=1, max_size=50), max_size=6))
    if draw(st.booleans()):
        headers.append((b"Transfer-Encoding", b"chunked"))
        framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in body) + b"0\r\n\r\n"
    else:
        headers.append((b"Content-Length", b"%d" % sum(map(len, body))))
        framed = b"".join(body)
    head = b"".join(b"%b: %b\r\n" % header for header in headers)
    interim = b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\n" * draw(st.integers(0, 2))
    return interim + b"HTTP/1.1 200 All Right\r\n" + head + b"\r\n" + framed, headers, body


@given(valid(), st.lists(st.integers(0, 2000), max_size=12))
def test_an_answer_is_the_same_however_it_is_cut(
    sent: tuple[bytes, list[tuple[bytes, bytes]], list[bytes]], places: list[int]
) -> None:
    raw, headers, body = sent
    outcome = asyncio.run(played(cut(raw, places)))
    assert outcome.answer is not None
    assert (outcome.answer.status, outcome.answer.headers) == (200, headers)
    assert outcome.body == b"".join(body)
    assert outcome.kept


PIECES = st.sampled_from(
    [
        *(b"HTTP/1.1 ", b"200 OK", b"204 x", b"100 Continue", b"101 x", b"\r\n", b"\r\n\r\n", b"\n", b"\0", b":", b"0"),
        *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Upgrade: x\r\n"),
        *(b"Connection: upgrade\r\n", b"hello", b"5\r\nhello\r\n", b"0\r\n\r\n", b"0\r\nT: t\r\n\r\n", b"x" * 1100, OK),
    ]
)


@given(st.lists(st.one_of(PIECES, st.binary(max_size=30)), max_size=12), st.lists(st.integers(0, 3000)), st.booleans())
@example([b"HTTP/1.1 200 OK\r\n\r\n", b"hello"], [], False)
@example([OK, OK], [], False)
def test_any_bytes_are_an_answer_or_an_error(sent: list[bytes], places: list[int], to_head: bool) -> None:
    raw = b"".join(sent)
    outcome = asyncio.run(played(cut(raw, places) if raw else [], to_head=to_head))
    assert outcome.fault is not None or (outcome.answer is not None and outcome.answer.complete)


@pytest.mark.parametrize(
    ("sent", "body", "kept", "broken"),
    [
        (OK, b"ok", True, False),
        (OK[:-1], b"o", False, True),
        (OK + b"!", b"ok", False, False),
        (OK + OK, b"ok", False, False),
    ],
)
async def test_an_answer_that_looks_like_the_last_one_is_as_long_as_it_says(
    sent: bytes, body: bytes, kept: bool, broken: bool
) -> None:
    parked: list[Connection] = []
    connection, line = connected(parked)
    for _ in range(3):
        asking = asyncio.ensure_future(connection.exchange(b"", b"", length=None, to_head=False))
        await asyncio.sleep(0)
        connection.data_received(OK)
        assert await rest(await asking) == b"ok"
    parked.clear()
    asking = asyncio.ensure_future(connection.exchange(b"", b"", length=None, to_head=False))
    await asyncio.sleep(0)
    connection.data_received(sent)
    answer = await asking
    assert await answer.read() == body
    assert (parked == [connection], line.aborted) == (kept, not (kept or broken))
    if broken:
        connection.eof_received()
        with pytest.raises(Disconnected):
            await answer.read()


async def again(raw: bytes, cuts: Sequence[Sequence[int]]) -> list[tuple[int, list[tuple[bytes, bytes]], bytes]]:
    """What one connection makes of the same bytes, sent as often as there are ways to cut them."""
    parked: list[Connection] = []
    connection, line = connected(parked)
    found = []
    for places in cuts:
        asking = asyncio.ensure_future(connection.exchange(b"", b"", length=None, to_head=False))
        await asyncio.sleep(0)
        for part in cut(raw, places):
            connection.data_received(part)
            await asyncio.sleep(0)
        answer = await asking
        found.append((answer.status, answer.headers, await rest(answer)))
        assert parked.pop() is connection
    assert not line.aborted
    return found


@given(valid(), st.lists(st.lists(st.integers(0, 2000), max_size=3), min_size=1, max_size=8))
def test_an_answer_that_comes_again_is_the_same_however_each_is_cut(
    sent: tuple[bytes, list[tuple[bytes, bytes]], list[bytes]], cuts: list[list[int]]
) -> None:
    raw, headers, body = sent
    assert asyncio.run(again(raw, cuts)) == [(200, headers, b"".join(body))] * len(cuts)


@pytest.mark.parametrize("behind", [b"", b"!", OK])
async def test_a_body_that_comes_behind_its_plain_head_ends_where_that_says(behind: bytes) -> None:
    parked: list[Connection] = []
    connection, line = connected(parked)
    head, answers = OK[:-2], []
    for parts in ([OK], [OK], [head, b"o", b"k" + behind]):
        asking = asyncio.ensure_future(connection.exchange(b"", b"", length=None, to_head=False))
        await asyncio.sleep(0)
        parked.clear()
        for part in parts:
            connection.data_received(part)
        answers.append(await asking)
    assert [await rest(answer) for answer in answers] == [b"ok"] * 3
    assert (answers[2].shape is not None, parked == [connection], line.aborted) == (True, not behind, bool(behind))


async def test_who_does_not_take_a_body_behind_a_plain_head_holds_up_the_peer() -> None:
    parked: list[Connection] = []
    connection, line = connected(parked, head=1000, behind=1000)
    sent = OK.replace(b": 2", b": 3000")
    for _ in range(3):
        asking = asyncio.ensure_future(connection.exchange(b"", b"", length=None, to_head=False))
        await asyncio.sleep(0)
        connection.data_received(sent)
        answer = await asking
        connection.data_received(b"x" * 1500)
        assert line.held_up
        assert await answer.read() == b"ok"
        assert await answer.read() == b"x" * 1500
        assert not line.held_up
        connection.data_received(b"x" * 1498)
        assert len(await rest(answer)) == 1498
    assert answer.shape is not None


async def test_the_bound_of_a_head_does_not_count_what_comes_after_it() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: "
    outcome = await played([head + b"x" * (996 - len(head)) + b"\r\n\r\n", b"5", b"\r\n", b"hello\r\n0\r\n\r\n"])
    assert (outcome.body, outcome.fault) == (b"hello", None)


async def test_a_cancelled_request_does_not_end_a_connection_that_has_gone_on_to_the_next() -> None:
    parked: list[Connection] = []
    connection, line = connected(parked)
    first = asyncio.ensure_future(connection.exchange(b"", b"", length=None, to_head=False))
    await asyncio.sleep(0)
    connection.data_received(OK)
    assert parked == [connection]
    first.cancel()  # its answer has come, but it has not run since
    second = asyncio.ensure_future(connection.exchange(b"", b"", length=None, to_head=False))
    with pytest.raises(asyncio.CancelledError):
        await first
    connection.data_received(OK)
    async with await second as answer:
        assert await rest(answer) == b"ok"
    assert not line.aborted


@pytest.mark.parametrize("more", [True, False])
async def test_what_an_upload_has_ready_when_the_connection_breaks_is_not_written(*, more: bool) -> None:
    connection, line = connected([])
    ready = asyncio.get_running_loop().create_future()

    async def upload() -> AsyncGenerator[bytes]:
        await ready
        if more:
            yield b"more"

    body = upload()
    asking = asyncio.ensure_future(connection.exchange(b"", body, length=5, to_head=False))
    await asyncio.sleep(0)
    ready.set_result(None)
    connection.eof_received()
    with pytest.raises(Disconnected):
        await asking
    await body.aclose()
    assert line.aborted


async def test_reading_stops_above_the_mark_and_goes_on_at_half_of_it() -> None:
    connection, line = connected([], behind=1000)
    asking = asyncio.ensure_future(connection.exchange(b"", b"", length=None, to_head=False))
    await asyncio.sleep(0)
    held = []
    for data in (b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n" + b"x" * 500, b"x" * 500):
        connection.data_received(data)
        held.append(line.held_up)
    assert held == [False, True]
    async with await asking as answer:
        for _ in range(2):
            await answer.read()
            held.append(line.held_up)
    assert held[2:] == [True, False]  # one piece and what Python adds to it are more than half
    assert line.aborted


async def test_taking_all_lets_reading_go_on_from_nothing() -> None:
    connection, line = connected([], behind=1000)
    asking = asyncio.ensure_future(connection.exchange(b"", b"", length=None, to_head=False))
    await asyncio.sleep(0)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n" + b"x" * 1000)
    held = [line.held_up]
    async with await asking as answer:
        assert len(answer.take()) == 1000
        held.append(line.held_up)
        connection.data_received(b"x" * 900)
        held.append(line.held_up)
    assert held == [True, False, False]


async def test_an_answer_that_ends_above_the_mark_does_not_hold_up_the_next() -> None:
    parked: list[Connection] = []
    connection, line = connected(parked, behind=1000)
    asking = asyncio.ensure_future(connection.exchange(b"", b"", length=None, to_head=False))
    await asyncio.sleep(0)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n" + b"x" * 3000)
    assert not line.held_up
    assert parked == [connection]
    assert len(await rest(await asking)) == 3000
