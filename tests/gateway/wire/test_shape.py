"""Answers that come whole: what is taken for one is what the parser makes of the same bytes."""

import pytest
from httptools import HttpParserError, HttpResponseParser
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.shape import Seen, Shape, halves_of, shape_of

ANSWER = b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: 5\r\nServer: x y\r\n\r\nhello"


class Parsed:
    """What httptools makes of bytes that should be one answer."""

    def __init__(self, data: bytes) -> None:
        self.reason = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.ends = 0
        self._parser = HttpResponseParser(self)
        self._parser.feed_data(data)
        self.status = self._parser.get_status_code()

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.keeps = self._parser.should_keep_alive()

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.ends += 1


def shaped(data: bytes) -> Shape | None:
    halves = halves_of(data)
    return None if halves is None else shape_of(*halves)


def taken(data: bytes) -> tuple[int, bytes, list[tuple[bytes, bytes]], bytes] | None:
    shape = shaped(data)
    found = None if shape is None else shape.cut(data)
    if shape is None or found is None or len(data) - found[1] != int(found[0]):
        return None
    return shape.status, shape.reason, shape.headers(found[0]), data[found[1] :]


def test_an_answer_is_taken_apart() -> None:
    headers = [(b"Date", b"now"), (b"Content-Length", b"5"), (b"Server", b"x y")]
    assert taken(ANSWER) == (200, b"OK", headers, b"hello")


def test_a_shape_is_that_of_all_answers_which_differ_in_their_length_only() -> None:
    shape = shaped(ANSWER)
    assert shape is not None
    longer = ANSWER.replace(b": 5", b": 12") + b", hello"
    assert shaped(longer) is shape
    assert shape.cut(longer) == (b"12", len(longer) - 12)
    for other in (ANSWER.replace(b"now", b"new"), ANSWER.replace(b"x y", b"y x")):
        assert shaped(other) not in (None, shape)
        assert shape.cut(other) is None


@pytest.mark.parametrize(
    "data", [ANSWER.replace(b": 5", new) for new in (b": 5x", b": -5", b": ", b": 5 ", b": 1" + b"0" * 15)]
)
def test_what_has_something_else_than_digits_is_not_cut(data: bytes) -> None:
    shape = shaped(ANSWER)
    assert shape is not None
    assert shape.cut(data) is None


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length: 5",
        b"Transfer-Encoding: chunked",
        b"Connection: close",
        b"Proxy-Connection: close",
        b"Upgrade: x",
        b"X:y",
        b"X: y ",
        b" folded",
        b"X : y",
        b"X: a\nY: b",
        b"X: a\0b",
    ],
)
def test_what_is_not_plain_has_no_shape(line: bytes) -> None:
    assert shaped(ANSWER.replace(b"Server: x y", line)) is None
    assert shaped(ANSWER.replace(b"Date: now", line)) is None


@pytest.mark.parametrize(
    "data",
    [
        ANSWER[:40],
        ANSWER.replace(b"200 OK", b"204 No Content"),
        ANSWER.replace(b"200 OK", b"304 Not Modified"),
        ANSWER.replace(b"200 OK", b"101 Switching Protocols"),
        ANSWER.replace(b"HTTP/1.1", b"HTTP/1.0"),
        ANSWER.replace(b"Content-Length: 5\r\n", b""),
        ANSWER.replace(b"x y", b"x" * 5000),
    ],
)
def test_nor_has_what_has_no_length_or_no_body_or_is_too_long(data: bytes) -> None:
    assert shaped(data) is None


PIECES = st.sampled_from(
    [
        *(
            b"HTTP/1.1 ",
            b"HTTP/1.0 ",
            b"200 OK",
            b"404 Not Found",
            b"205 x",
            b"204 x",
            b"100 Continue",
            b"500 ",
            b"599",
        ),
        *(
            b"\r\n",
            b"\r\n\r\n",
            b"\n",
            b"\r",
            b"\0",
            b":",
            b": ",
            b" ",
            b"\t",
            b"0",
            b"\xe9",
            b"A",
            b"a: b",
            b"X-Y: z z",
        ),
        *(b"Content-Length: ", b"content-length: 5\r\n", b"\r\nContent-Length: 5\r\n", b"5", b"05", b"+5", b"hello"),
        *(b"Transfer-Encoding: chunked", b"Connection: keep-alive", b"Proxy-Connection: close", b"Trailer: t", ANSWER),
    ]
)
LINES = st.lists(st.one_of(PIECES, st.binary(max_size=10)), max_size=4).map(b"".join)


@given(
    status=st.one_of(st.integers(100, 999).map(lambda code: b"HTTP/1.1 %d x" % code), LINES),
    lines=st.lists(st.one_of(st.just(b"Content-Length: 5"), LINES), max_size=5),
    body=st.one_of(st.just(b"hello"), st.binary(max_size=8)),
)
@example(b"HTTP/1.1 200 OK", [b"Content-Length: 5", b"Content-Length: 6"], b"hello")
@example(b"HTTP/1.1 200 OK", [b"a: b\r\n\r\nContent-Length: 5"], b"hello")
@example(b"HTTP/1.1 205 Reset", [b"Content-Length: 5"], b"hello")
@example(b"HTTP/1.1 200 \xe9\t", [b"a: \xe9\tb", b"Content-Length: 000000000000005"], b"hello")
@example(b"HTTP/1.1 200 OK", [b"a: b", b"Content-Length: 0", b"c: d"], b"")
def test_what_is_taken_for_an_answer_the_parser_takes_for_the_same(
    status: bytes, lines: list[bytes], body: bytes
) -> None:
    data = b"\r\n".join((status, *lines, b"", body))
    found = taken(data)
    if found is None:
        return
    try:
        parsed = Parsed(data)
    except HttpParserError as error:
        pytest.fail(f"the parser refuses {data!r}: {error}")
    assert (parsed.status, parsed.reason, parsed.headers, parsed.body) == found
    assert (parsed.ends, parsed.keeps) == (1, True)


def looked_at(seen: Seen, answers: list[bytes]) -> list[int]:
    """The numbers of those in which a shape is seen."""
    return [number for number, data in enumerate(answers) if seen.shape_of(data) is not None]


def test_a_shape_is_seen_when_it_comes_again() -> None:
    assert looked_at(Seen(), [ANSWER] * 4) == [1, 2, 3]


def test_heads_that_are_always_others_are_soon_hardly_looked_at() -> None:
    def others(count: int) -> list[bytes]:
        return [ANSWER.replace(b"now", b"%d" % number) for number in range(count)]

    seen = Seen()
    assert looked_at(seen, others(1000)) == []
    first, *_ = looked_at(seen, [ANSWER] * 200)
    assert 2 < first < 130
    seen.found()
    assert looked_at(seen, [*others(1), *[ANSWER] * 3]) == [3]
    seen.found()
    assert looked_at(seen, [ANSWER.replace(b"now", b"new")] * 3) == [1, 2]


def test_an_answer_without_a_length_in_between_makes_no_head_another() -> None:
    stream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    seen = Seen()
    assert looked_at(seen, [ANSWER, stream, ANSWER]) == []  # the third is passed over
    assert looked_at(seen, [ANSWER]) == [0]


def test_a_shape_that_is_of_no_use_is_looked_for_less_and_less() -> None:
    seen = Seen()
    found = []
    for number in range(300):
        if seen.shape_of(ANSWER) is not None:
            found.append(number)
            seen.missed()
    assert len(found) < 12
