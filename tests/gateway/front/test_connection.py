"""Plain requests and others on one connection: who serves what, and where each begins."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.gateway.fleet import until
from tests.gateway.front.echoing import LIMITS, Echo, Said, answers, connected, fed, turns

HOST = b"Host: gateway\r\n"
GET = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"


def post(body: bytes = b"{}", path: bytes = b"/v1/completions", more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n%b\r\n%b" % (path, HOST, len(body), more, body)


def bodies(said: list[Said]) -> list[bytes]:
    assert {each.status for each in said} == {200}
    return [bytes.fromhex(each.body[3]) for each in said]


async def test_a_plain_request_is_served_without_aiohttp() -> None:
    echo = Echo()
    async with connected(echo) as (connection, line):
        await fed(connection, line, post(b'{"a":1}', b"/v1/chat/completions", b"X-Y: z\r\n"))
        assert answers(line.sent) == [
            Said(
                200,
                [
                    "POST",
                    "/v1/chat/completions",
                    [["'host'", "'gateway'"], ["'x-y'", "'z'"]],
                    b'{"a":1}'.hex(),
                ],
            )
        ]
        assert echo.plain == 1


@pytest.mark.parametrize(
    "other",
    [
        GET,
        CHUNKED,
        post(path=b"/v1/audio/transcriptions"),
        post(path=b"/v1/load_lora_adapter"),
        post(path=b"/v1/models"),
        post(path=b"/explain"),
        post(path=b"/v1/completions?x=y"),
        post(more=b"Expect: 100-continue\r\n"),
        post(more=b"Connection: close\r\n"),
        post(more=b"Content-Encoding: identity\r\n"),
        post(more=b"X-Empty:\r\n"),
        post().replace(b"HTTP/1.1", b"HTTP/1.0"),
        post().replace(b"POST", b"PUT"),
        post(bytes(LIMITS.max_body + 1)),
        post(more=b"X-Long: " + b"v" * 990 + b"\r\n"),
        b"HEAD /v1/models HTTP/1.1\r\n" + HOST + b"\r\n",
    ],
)
async def test_what_is_not_plain_is_aiohttps(other: bytes) -> None:
    echo = Echo()
    async with connected(echo) as (connection, line):
        await fed(connection, line, other)
        assert line.sent
        assert echo.plain == 0


async def test_a_head_that_comes_again_is_taken_for_another_as_soon_as_it_is_one() -> None:
    """From the third time on it is only compared, but for the digits of the length."""
    usual, other = {"more": b"X-Y: z\r\n"}, {"more": b"X-Y: y\r\n"}
    sent = [
        *(post(body, **usual) for body in (b"1", b"22", b"3" * 100, b"", b"5" * 10)),
        post(b"6", b"/v1/chat/completions", **usual),
        post(b"7", **other),
        post(b"8", **usual),
    ]
    echo = Echo()
    async with connected(echo) as (connection, line):
        await fed(connection, line, *sent)
        said = answers(line.sent)
        assert bodies(said) == [b"1", b"22", b"3" * 100, b"", b"5" * 10, b"6", b"7", b"8"]
        assert [each.body[1] for each in said] == [
            *["/v1/completions"] * 5,
            "/v1/chat/completions",
            *["/v1/completions"] * 2,
        ]
        assert [dict(each.body[2])["'x-y'"] for each in said] == ["'z'"] * 6 + ["'y'", "'z'"]
        assert echo.plain == len(sent)


@pytest.mark.parametrize(
    "other",
    [
        post().replace(b": 2", b": +2"),
        post().replace(b": 2", b": 2 "),
        post().replace(b": 2", b":  2"),
        post().replace(b": 2\r\n", b": 2\r\nContent-Length: 2\r\n"),
        post().replace(b": 2\r\n", b": 2\n"),
        post().replace(b": 2", b": 0000000000000002"),
        post(bytes(LIMITS.max_body + 1)),
    ],
)
async def test_nor_does_a_head_that_came_before_make_another_one_plain(other: bytes) -> None:
    echo = Echo()
    async with connected(echo) as (connection, line):
        await fed(connection, line, *[post()] * 3)
        assert echo.plain == 3
        await fed(connection, line, other)
        assert echo.plain == 3


async def test_after_a_get_that_came_alone_a_request_can_be_plain_again() -> None:
    echo = Echo()
    async with connected(echo) as (connection, line):
        await fed(connection, line, GET, post(b"1"), GET, GET, post(b"2"), post(b"3"))
        assert bodies(answers(line.sent)) == [b"", b"1", b"", b"", b"2", b"3"]
        assert echo.plain == 3


@pytest.mark.parametrize("other", [CHUNKED, post(more=b"X-Empty:\r\n"), GET[:-2] + b"Content-Length: 0\r\n\r\n"])
async def test_after_anything_else_the_connection_stays_aiohttps(other: bytes) -> None:
    echo = Echo()
    async with connected(echo) as (connection, line):
        await fed(connection, line, post(b"1"), other, post(b"2"), GET, post(b"3"))
        assert len(answers(line.sent)) == 5
        assert echo.plain == 1


async def test_pipelined_requests_of_all_kinds_are_answered_in_their_order() -> None:
    echo = Echo()
    async with connected(echo) as (connection, line):
        await fed(connection, line, post(b"1") + post(b"2") + GET + post(b"3") + CHUNKED + post(b"4"))
        assert bodies(answers(line.sent)) == [b"1", b"2", b"", b"3", b"ab", b"4"]


async def test_a_body_may_come_later_and_in_pieces() -> None:
    echo = Echo()
    async with connected(echo) as (connection, line):
        request = post(b"0123456789")
        await fed(connection, line, request[:-10], *(request[at : at + 1] for at in range(-10, -1)), b"9" + post(b"x"))
        assert bodies(answers(line.sent)) == [b"0123456789", b"x"]
        assert echo.plain == 2


async def test_what_comes_behind_a_request_under_way_waits_and_holds_up_the_client() -> None:
    echo = Echo()
    echo.gate.clear()
    async with connected(echo) as (connection, line):
        behind = post(b"y" * 4000) * 40
        await fed(connection, line, post(b"x"), *(behind[at : at + 16_384] for at in range(0, len(behind), 16_384)))
        assert line.paused
        assert not line.sent
        echo.gate.set()
        await turns(40 * 20)
        assert not line.paused
        assert bodies(answers(line.sent)) == [b"x", *[b"y" * 4000] * 40]


async def test_the_rest_of_a_body_that_nobody_waits_for_is_no_request() -> None:
    echo = Echo()
    echo.early = True
    async with connected(echo) as (connection, line):
        hidden = post(b"hidden")
        request = post(hidden)
        await fed(connection, line, request[: -len(hidden)])
        assert len(answers(line.sent)) == 1
        await fed(connection, line, hidden[:20], hidden[20:], post(b"next"))
        assert len(answers(line.sent)) == 2
        assert echo.plain == 2


async def test_the_rest_of_a_body_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.front.connection._LINGER_S", 0.01)
    echo = Echo()
    echo.early = True
    async with connected(echo) as (connection, line):
        await fed(connection, line, post(b"0123456789")[:-5])
        assert not line.closed
        await until(lambda: line.closed)


async def test_leaving_does_not_wait_for_the_rest_of_a_body() -> None:
    echo = Echo()
    echo.early = True
    async with connected(echo) as (connection, line):
        await fed(connection, line, post(b"0123456789")[:-5])
        assert not line.closed
        connection.leave()
        assert line.closed


@pytest.mark.parametrize("cut", range(1, 40))
async def test_a_request_that_begins_while_aiohttp_serves_another_is_its(cut: int) -> None:
    """Else the rest of a head could pass for a request of its own."""
    echo = Echo()
    echo.gate.clear()
    begun = b"GET /a HTTP/1.1\r\n" + HOST + b"X-Long-Name: b"
    async with connected(echo) as (connection, line):
        await fed(connection, line, GET, begun[:cut])
        echo.gate.set()
        await turns()
        await fed(connection, line, begun[cut:] + b"\r\n\r\n", post(b"1"))
        assert [each.body[:2] for each in answers(line.sent)] == [
            ["GET", "/v1/models"],
            ["GET", "/a"],
            ["POST", "/v1/completions"],
        ]
        assert echo.plain == 0


async def test_a_head_that_came_in_two_is_not_mistaken_for_its_second_half() -> None:
    """Whoever is in front may have seen one request, with a header of three words."""
    echo = Echo()
    smuggled = post(b"smuggled")
    async with connected(echo) as (connection, line):
        await fed(connection, line, b"GET /a HTTP/1.1\r\nX: ", smuggled)
        assert echo.plain == 0
        assert [each.body[:2] for each in answers(line.sent)] == [["GET", "/a"]]


@pytest.mark.parametrize("rude", [False, True])
async def test_a_client_that_leaves_cancels_its_request(rude: bool) -> None:
    echo = Echo()
    echo.gate.clear()
    async with connected(echo) as (connection, line):
        await fed(connection, line, post(b"1")[: None if rude else -1])
        assert len(asyncio.all_tasks()) == 3  # this one, aiohttp's, the request's
        line.close()
        await turns()
        assert len(asyncio.all_tasks()) == 1
        assert not line.sent


async def test_leaving_takes_nothing_further_and_ends_after_the_request_under_way() -> None:
    echo = Echo()
    echo.gate.clear()
    async with connected(echo) as (connection, line):
        await fed(connection, line, post(b"1") + post(b"2"))
        connection.leave()
        await fed(connection, line, post(b"3"))
        connection.leave()
        assert not line.closed
        echo.gate.set()
        await turns()
        assert bodies(answers(line.sent)) == [b"1"]
        assert line.closed


async def test_being_shut_down_ends_a_request_at_once() -> None:
    echo = Echo()
    echo.gate.clear()
    async with connected(echo) as (connection, line):
        await fed(connection, line, post(b"1"))
        await connection.shutdown(1.0)
        assert line.closed
        assert not line.sent


async def test_limits_are_those_of_aiohttp() -> None:
    """A plain head is at most as long as one of its headers may be; of what is longer aiohttp decides."""
    echo = Echo()
    many = b"".join(b"x-%d: y\r\n" % number for number in range(LIMITS.max_headers))
    async with connected(echo) as (connection, line):
        await fed(connection, line, post(more=many))
        assert echo.plain == 0
        assert (answers(line.sent)[0].status, echo.refused) == (431, ["header_too_large"])


# --- whatever bytes come


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner.run


KINDS = [
    GET,
    CHUNKED,
    post(b""),
    post(b"1"),
    post(b"{}" * 20),
    post(GET),
    post(post(b"inner")),
    post(b"2", b"/v1/chat/completions", b"Connection: keep-alive\r\nAuthorization: Bearer sk-1\r\n"),
    post(b"3", b"/v1/embeddings", b"x-request-id: a\r\n"),
    post(b"4", b"/nowhere"),
    post(more=b"Transfer-Encoding: chunked\r\n"),
    post(more=b"Content-Length: 2\r\n"),
    post(more=b"X : y\r\n"),
    post(more=b" folded\r\n"),
    post(more=b"X: y\nZ: w\r\n"),
    post(more=b"X:  y \r\n"),
    post().replace(b"\r\n", b"\n"),
    post().replace(b"HTTP/1.1", b"HTTP/1.0"),
    b"\r\n" + post(b"5"),
    b"GET /a HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc",
]
CRUMBS = st.sampled_from(
    [
        *(b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b"\x00", b"0", b"9", b"\r\n\r\n", b"\xff", b"HTTP/1.1"),
        *(b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: b\r\n", b"Upgrade: x\r\n"),
        b"Connection: close\r\n",
    ]
)


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Requests one behind the other, perhaps damaged, in any segments."""
    sent = bytearray(b"".join(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(sent)))
        sent[at : at + draw(st.integers(0, 2))] = draw(st.one_of(CRUMBS, st.binary(max_size=2)))
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=4)))
    pieces = [bytes(sent[a:b]) for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    return [piece for piece in pieces if piece]


async def said_to(pieces: list[bytes], *, plainly: bool) -> tuple[list[Said], list[str], bool]:
    """The answers, what was refused, and whether the connection ended."""
    echo = Echo()
    async with connected(echo, plainly=plainly) as (connection, line):
        await fed(connection, line, *pieces)
        await turns(40)
        return [_without_id(said) for said in answers(line.sent)], echo.refused, line.closed


def _without_id(said: Said) -> Said:
    return said if isinstance(said.body, list) else Said(said.status, said.body and said.body["error"]["code"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=conversations())
@example(pieces=[GET, post(b"1")[:30], post(b"1")[30:]])
@example(pieces=[post(b"1") + b"GET /a HTTP/1.1\r\nHost: a\r\nX: ", post(b"2")])
@example(pieces=[post(post(b"inner"))[:80], post(post(b"inner"))[80:] + GET])
def test_whatever_comes_is_answered_as_aiohttp_alone_does(
    run: Callable[[Coroutine[Any, Any, Any]], Any], pieces: list[bytes]
) -> None:
    """Or with a clear refusal, where a segment is wrong further on: byte by byte that comes too late."""
    singly = [bytes([byte]) for byte in b"".join(pieces)]
    ours, refused, ended = run(said_to(pieces, plainly=True))
    theirs, *rest = run(said_to(singly, plainly=False))
    if ours == theirs:
        assert [refused, ended] == rest
    else:
        *served, last = ours
        assert served == theirs[: len(served)]
        assert (last.status, last.body, refused, ended) == (400, "invalid_http", ["bad_head"], True)
