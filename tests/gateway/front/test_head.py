"""What counts as plain, and that every other parser reads it in the same way."""

import asyncio
from unittest.mock import Mock

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy
from httptools import HttpRequestParser as Llhttp
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway.front.head import cut, digits_at, plain

GOOD = b"\r\nHost: gateway:8000\r\nContent-Length: 12\r\nContent-Type: application/json"
TO_OPENAI = (
    b"\r\nHost: 127.0.0.1:8000\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nAccept: application/json"
    b"\r\nContent-Type: application/json\r\nUser-Agent: AsyncOpenAI/Python 2.41.1\r\nX-Stainless-Lang: python"
    b"\r\nAuthorization: Bearer sk-something\r\nx-stainless-read-timeout: 600\r\nContent-Length: 230"
)
TO_CURL = (
    b"\r\nHost: localhost:8000\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\nContent-Type: application/json"
    b"\r\nContent-Length: 5"
)
TO_NODE = (
    b"\r\naccept: application/json\r\ncontent-type: application/json\r\nuser-agent: OpenAI/JS 6.1.0"
    b"\r\nHost: [::1]:8000\r\nconnection: keep-alive\r\naccept-language: *\r\ncontent-length: 99"
)


@pytest.mark.parametrize(
    ("block", "length"), [(GOOD, 12), (TO_OPENAI, 230), (TO_CURL, 5), (TO_NODE, 99), (b"\r\nHost: gateway", None)]
)
def test_what_peoples_clients_send_is_plain(block: bytes, length: int | None) -> None:
    rest, told = cut(block)
    head = plain(rest)
    assert told == length
    assert head is not None
    lines = [b"%b: %b" % header for header in head.headers]
    assert lines == [line for line in block.split(b"\r\n")[1:] if not line.lower().startswith(b"content-length")]
    assert head.passed_on == [header for header in head.headers if header[0].lower() not in (b"host", b"connection")]


@pytest.mark.parametrize("block", [GOOD, TO_OPENAI, TO_CURL, TO_NODE])
def test_a_length_is_found_where_it_is_cut_out(block: bytes) -> None:
    begin, end = digits_at(block)
    assert int(block[begin:end]) == cut(block)[1]


def is_plain(block: bytes) -> bool:
    return plain(cut(block)[0]) is not None


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length: 12",
        b"Content-Length: 13",
        b"content-length:12",
        b"Content-Length: +12",
        b"Content-Length: 1_2",
        b"Content-Length: 12, 12",
        b"Content-Length: 1234567890123456",
        b"Transfer-Encoding: chunked",
        b"transfer-encoding: identity",
        b"Content-Encoding: gzip",
        b"Trailer: x",
        b"Expect: 100-continue",
        b"Upgrade: websocket",
        b"Connection: close",
        b"Connection: keep-alive, x-secret",
        b"Connection: upgrade",
        b"Connection: keep-alive\r\nConnection: keep-alive",
        b"Host: another",
        b"x-no-colon",
        b"x : blank before the colon",
        b" x: folded",
        b"\tx: folded",
        b"x:no blank",
        b"x:  two blanks",
        b"x:\ttab",
        b"x: blank behind ",
        b"x: tab behind\t",
        b"x: ",
        b"x:",
        b": no name",
        b"x\x00: nul",
        b"x: nu\x00l",
        b"x: bare\rCR",
        b"x: bare\nLF",
        b"x: bare\n\rLFCR",
        b"x: end\r",
        b"x: end\n",
        b"\rx: y",
        b"",
        b"x\xe9: not a token",
        b"x: \x7f",
        b"(x): y",
    ],
)
def test_what_could_be_read_in_two_ways_is_not(line: bytes) -> None:
    assert is_plain(GOOD)
    assert not is_plain(GOOD + b"\r\n" + line)
    assert not is_plain(b"\r\n" + line + GOOD)


@pytest.mark.parametrize("host", [b"a b", b"a,b", b"a@b", b"a/b", b"\xe9", b"a\tb"])
def test_a_host_has_to_look_like_one(host: bytes) -> None:
    assert not is_plain(b"\r\nHost: " + host)


def test_without_a_host_nothing_is_plain() -> None:
    assert not is_plain(b"\r\nContent-Length: 12")
    assert not is_plain(b"")


def test_the_first_line_of_a_length_is_cut_out_and_no_part_of_another() -> None:
    assert cut(b"\r\nX-Content-Length: 5\r\nHost: a") == (b"\r\nX-Content-Length: 5\r\nHost: a", None)
    assert cut(b"\r\nHost: a\r\nContent-Length: 5x") == (b"\r\nHost: a\r\nContent-Length: 5x", None)
    assert cut(b"\r\nA: b\r\ncontent-LENGTH: 007\r\nHost: a") == (b"\r\nA: b\r\nHost: a", 7)


TOKEN = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~", min_size=1, max_size=9)
CRUMBS = st.sampled_from(
    [
        *(b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b": ", b"\x00", b"\x0b", b"\x7f", b"\x85", b"\xa0", b"\xff", b","),
        *(b"12", b"chunked", b"Content-Length: 3", b"\r\nContent-Length: 3", b"\r\nTransfer-Encoding: chunked"),
        *(b"\r\nConnection: close", b"\r\n x: y", b"\r\nx : y", b"\r\nUpgrade: h2c", b"\r\nHost: b"),
        b"\r\nExpect: 100-continue",
    ]
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A head that is plain but for what was put into it, or taken from it."""
    block = bytearray(draw(st.sampled_from([GOOD, TO_OPENAI, TO_CURL, TO_NODE])))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(block)))
        block[at : at + draw(st.integers(0, 3))] = draw(st.one_of(CRUMBS, st.binary(max_size=3)))
    return bytes(block)


@given(block=damaged())
@example(block=GOOD)
@example(block=TO_NODE)
def test_what_is_plain_is_read_alike_by_every_other_parser(block: bytes) -> None:
    rest, length = cut(block)
    head = plain(rest)
    assume(head is not None)
    assert head is not None
    ours = sorted((name.decode().lower(), value) for name, value in head.headers)
    request = b"POST /v1/completions HTTP/1.1" + block + b"\r\n\r\n"
    body = b"b" * (length or 0) if length is None or length < 10_000 else b""
    assert llhttps(request + body) == (ours, length, body)
    for parser in (HttpRequestParser, HttpRequestParserPy):
        assert aiohttps(parser, request) == (ours, length)


def llhttps(request: bytes) -> tuple[list[tuple[str, bytes]], int | None, bytes]:
    """Headers without the length, the length, the body, as httptools sees them."""
    seen: list[tuple[str, bytes]] = []
    body: list[bytes] = []
    callbacks = Mock(spec=["on_header", "on_body"])
    callbacks.on_header = lambda name, value: seen.append((name.decode("latin-1").lower(), value))
    callbacks.on_body = body.append
    Llhttp(callbacks).feed_data(request)
    return *_split(seen), b"".join(body)


def aiohttps(parser: type, request: bytes) -> tuple[list[tuple[str, bytes]], int | None]:
    """Headers without the length, and the length, as aiohttp sees them."""
    loop = asyncio.new_event_loop()
    try:
        made = parser(BaseProtocol(loop), loop, 2**16, max_line_size=8190, max_field_size=8190)
        (message, _), *more = made.feed_data(request)[0]
        assert not more
        return _split([(name.decode("latin-1").lower(), value) for name, value in message.raw_headers])
    except HttpProcessingError as error:
        raise AssertionError(f"refused by {parser}: {error}") from error
    finally:
        loop.close()


def _split(seen: list[tuple[str, bytes]]) -> tuple[list[tuple[str, bytes]], int | None]:
    lengths = [int(value) for name, value in seen if name == "content-length"]
    assert len(lengths) <= 1
    rest = sorted((name, value) for name, value in seen if name != "content-length")
    return rest, lengths[0] if lengths else None


@given(headers=st.lists(st.tuples(TOKEN, st.text(min_size=1, max_size=20)), max_size=6))
def test_a_line_that_is_none_never_hides_in_a_value(headers: list[tuple[str, str]]) -> None:
    block = b"\r\nHost: a" + b"".join(f"\r\n{name}: {value}".encode() for name, value in headers)
    head = plain(cut(block)[0])
    if head is not None:
        assert all(b"\r" not in value and b"\n" not in value for _, value in head.headers)
