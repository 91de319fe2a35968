"""The heads of answers to plain requests."""

from typing import Any, cast

import pytest
from aiohttp import web

from gateway.front.answer import AnswerHead, own, relayed
from gateway.wire import Answer

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


def test_what_the_gateway_says_itself_has_a_length() -> None:
    answer = web.Response(status=503, body=b"no", headers={"Retry-After": "1"}, content_type="application/json")
    made = own(answer, 2, last=False)
    assert made.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    for line in (b"Retry-After: 1", b"Content-Type: application/json", b"Content-Length: 2"):
        assert b"\r\n" + line + b"\r\n" in made
