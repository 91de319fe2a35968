"""The heads of answers to plain requests."""

import re
from typing import Any, cast

import pytest
from aiohttp import web

from gateway.front.answer import AnswerHead, own, relayed
from gateway.wire import Answer
from gateway.wire.shape import halves_of, shape_of

OURS = {"x-gateway-pod": "http://pod:1", "x-request-id": "mine"}
JSON = (b"Content-Type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


def head(*headers: tuple[bytes, bytes], status: int = 200, last: bool = False) -> AnswerHead:
    answer = Answer(cast("Any", None), 0)
    answer.status = status
    answer.headers = [(b"date", b"now"), *headers]
    return relayed(answer, OURS, last=last)


def test_headers_pass_in_the_pods_order_and_spelling() -> None:
    made = head((b"X-One", b"1"), JSON, (b"Content-Length", b"5"), (b"x-one", b" \xe9 "))
    assert made.block == (
        b"HTTP/1.1 200 OK\r\nx-gateway-pod: http://pod:1\r\nx-request-id: mine\r\ndate: now\r\nX-One: 1\r\n"
        b"Content-Type: application/json\r\nContent-Length: 5\r\nx-one: \xe9\r\n\r\n"
    )
    assert (made.chunked, made.telling) == (False, False)


@pytest.mark.parametrize(
    "name",
    [b"Connection", b"Keep-Alive", b"Transfer-Encoding", b"Upgrade", b"Trailer", b"X-Gateway-Pod", b"X-Request-Id"],
)
def test_what_is_the_connections_own_or_ours_stops_here(name: bytes) -> None:
    assert b"theirs" not in head(JSON, (name, b"theirs")).block


def test_without_a_length_the_body_is_chunked() -> None:
    made = head(JSON)
    assert made.block.endswith(b"\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert (made.chunked, made.telling) == (True, False)


@pytest.mark.parametrize(
    ("headers", "telling"),
    [
        ([EVENTS], True),
        ([EVENTS, (b"content-encoding", b"gzip")], False),
        ([EVENTS, (b"content-length", b"5")], False),
        ([JSON], False),
        ([], False),
    ],
)
def test_an_error_can_be_told_in_a_stream_of_events_only(headers: list[tuple[bytes, bytes]], telling: bool) -> None:
    assert head(*headers).telling is telling


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_says_nothing_of_one(status: int) -> None:
    made = head((b"Content-Length", b"5"), status=status)
    assert not made.chunked
    for name in (b"content-length", b"transfer-encoding", b"content-type"):
        assert name not in made.block.lower()


def test_a_type_and_a_date_are_added_where_there_are_none() -> None:
    answer = Answer(cast("Any", None), 0)
    answer.status = 599
    made = relayed(answer, {}, last=True).block
    assert made.startswith(b"HTTP/1.1 599 \r\nContent-Type: application/octet-stream\r\n")
    assert b"\r\nDate: " in made
    assert made.endswith(b" GMT\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize("bad", [b"a\r\nX-Injected: b", b"a\nb", b"a\rb"])
def test_line_breaks_are_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match="CR or LF"):
        head((b"x", bad))


def whole(*headers: bytes, ours: dict[str, str] = OURS, last: bool = False, shaped: bool = True) -> AnswerHead:
    """The head of an answer that came whole; as one of its shape, or line by line."""
    data = b"\r\n".join((b"HTTP/1.1 200 OK", *headers, b"", b"hello"))
    halves = halves_of(data)
    assert halves is not None
    shape = shape_of(*halves)
    assert shape is not None
    found = shape.cut(data)
    assert found is not None
    answer = Answer(cast("Any", None), 0)
    answer.began(shape, found[0], data[found[1] :], whole=True)
    if not shaped:
        answer.shape = None
    return relayed(answer, ours, last=last)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(
    "headers",
    [
        (b"Content-Type: application/json", b"Content-Length: 5"),
        (b"date: now", b"CONTENT-LENGTH: 05", b"server: uvicorn"),
        (
            b"X-Request-Id: theirs",
            b"content-length: 5",
            b"X-Gateway-Pod: theirs",
            b"Server: \xe9",
            b"content-type: a/b",
        ),
        (b"TE: theirs", b"a: b", b"a: c", b"content-length: 5", b"content-encoding: gzip"),
        (b"content-length: 5",),
    ],
)
def test_of_an_answer_that_came_whole_the_head_is_the_same(headers: tuple[bytes, ...], last: bool) -> None:
    made, expected = whole(*headers, last=last), whole(*headers, last=last, shaped=False)
    if b"date: now" not in headers:  # the second may have changed in between
        assert re.sub(rb"Date: [^\r]*", b"", made.block) == re.sub(rb"Date: [^\r]*", b"", expected.block)
        assert made.block.count(b"\r\nDate: ") == 1
    else:
        assert made == expected
    assert b"theirs" not in made.block
    assert (made.chunked, made.telling) == (expected.chunked, expected.telling) == (False, False)


def test_what_differs_between_two_pods_heads_is_not_mixed_up() -> None:
    for server in (b"one", b"two", b"one"):
        made = whole(b"date: now", b"Server: " + server, b"Content-Length: 5", ours={"x-request-id": server.decode()})
        assert made.block == (
            b"HTTP/1.1 200 OK\r\nx-request-id: %b\r\ndate: now\r\nServer: %b\r\nContent-Length: 5\r\n"
            b"Content-Type: application/octet-stream\r\n\r\n" % (server, server)
        )


def test_nor_may_ours_have_line_breaks() -> None:
    with pytest.raises(ValueError, match="CR or LF"):
        whole(b"Content-Length: 5", ours={"x-request-id": "a\r\nb: c"})


def test_what_the_gateway_says_itself_has_a_length() -> None:
    answer = web.Response(status=503, body=b"no", headers={"Retry-After": "1"}, content_type="application/json")
    made = own(answer, 2, last=False)
    assert made.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    for line in (b"Retry-After: 1", b"Content-Type: application/json", b"Content-Length: 2"):
        assert b"\r\n" + line + b"\r\n" in made
