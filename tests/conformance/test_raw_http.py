"""HTTP/1.1 as it may be written, byte by byte."""

import asyncio
import re

from tests.gateway.fleet import Front, connection, fleet, posted, text_body

GET = b"GET /v1/models HTTP/1.1\r\nHost: gateway\r\n\r\n"
CLOSE = b"GET /health HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n"


async def said(front: Front, *pieces: bytes) -> bytes:
    """All that comes back on one connection until the gateway closes it."""
    async with asyncio.timeout(20), connection(front) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()


def statuses(answers: bytes) -> list[str]:
    return re.findall(r"HTTP/1\.[01] (\d{3}) ", answers.decode())


async def test_pipelined_requests_are_answered_in_their_order(front: Front) -> None:
    streamed = posted(text_body("a b c", stream=True, max_tokens=3))
    answer = await said(front, GET + streamed + posted(text_body("x")) + b"\r\n" + GET + CLOSE)
    kinds = [b'"object":"list"', b"data: [DONE]", b'"object":"text_completion"', b'"object":"list"', b'"status":"ok"']
    at = -1
    for kind in kinds:
        assert (at := answer.find(kind, at + 1)) > 0, kind
    assert statuses(answer) == ["200"] * len(kinds)


async def test_a_request_may_come_in_any_pieces(front: Front) -> None:
    whole = posted(text_body("x")) + CLOSE
    answer = await said(front, *(whole[at : at + 1] for at in range(len(whole))))
    assert statuses(answer) == ["200", "200"]


async def test_a_request_after_one_that_was_refused_is_answered_on_the_same_connection(front: Front) -> None:
    answer = await said(front, posted([]) + posted(text_body("x", model="nobody")) + posted(text_body("x")) + CLOSE)
    assert statuses(answer) == ["400", "404", "200", "200"]


async def test_a_body_that_says_two_lengths_is_refused_and_reaches_no_pod() -> None:
    async with fleet() as (front, (pod,)):
        for framing in (
            b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            b"Content-Length: 5\r\nContent-Length: 6\r\n",
            b"Content-Length: +5\r\n",
            b"Content-Length: 5_0\r\n",
            b"Transfer-Encoding: chunked, identity\r\n",
            b"Transfer-Encoding: xchunked\r\n",
        ):
            head = b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\n" + framing + b"\r\n"
            answer = await said(front, head + b"0\r\n\r\n" + CLOSE)
            assert statuses(answer) == ["400"], framing  # what follows is not taken for a request
        assert not [request for request in pod.requests if request.path.startswith("/v1/completions")]
