"""Faults of pods, one by one: what the pod does, what its client gets, and the counter that moves."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import aiohttp

from tests.gateway.fleet import Front, text_body
from tests.gateway.raw import (
    ABORTED,
    CHUNKED,
    DONE,
    EVENT,
    FAILED,
    GOOD,
    JSON,
    OK,
    ROLE,
    SSE,
    Act,
    RawPod,
    answered,
    chunk,
    sends,
    stream,
    then_resets,
    then_stalls,
)

BAD = b'{"error":{"message":"no","type":"X","param":null,"code":1}}'
BROKEN = 'p2p_gateway_broken_answers_total{reason="pod_disconnected"}'
REFUSED = 'p2p_gateway_retries_refused_total{reason="no_pod"}'


class Seen(NamedTuple):
    """An answer as its client saw it; `whole`: it ended as it should."""

    status: int
    headers: Any
    body: bytes
    whole: bool


Ask = Callable[[Front], Awaitable[Seen]]
Check = Callable[[Seen], object]


async def ask(front: Front, method: str, path: str, data: Any = None, **headers: str) -> Seen:
    async with front.http.request(method, front.url + path, data=data, headers=headers) as answer:
        body, whole = bytearray(), True
        try:
            async for piece in answer.content.iter_any():
                body += piece
        except aiohttp.ClientPayloadError:
            whole = False
        return Seen(answer.status, answer.headers, bytes(body), whole)


async def completion(front: Front) -> Seen:
    body = json.dumps(text_body([1, 2, 3], stream=True)).encode()
    return await ask(front, "POST", "/v1/completions", body, **{"content-type": "application/json"})


async def a_second_completion(front: Front) -> Seen:
    assert (await completion(front)).status == 200
    return await completion(front)


def bodiless(method: str, path: str) -> Ask:
    async def asks(front: Front) -> Seen:
        return await ask(front, method, path)

    return asks


async def an_upload(front: Front) -> Seen:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"x" * 1000
            await asyncio.sleep(0.01)

    return await ask(front, "POST", "/v1/files", pieces(), **{"content-type": "application/octet-stream"})


def error(code: str) -> Check:
    """The gateway's own, in OpenAI's shape."""
    return lambda seen: seen.whole and json.loads(seen.body)["error"]["code"] == code


def pods(body: bytes, **headers: str) -> Check:
    """The pod's own, byte for byte."""
    return lambda seen: seen.whole and seen.body == body and headers.items() <= dict(seen.headers).items()


def cut(beginning: bytes, code: str = "") -> Check:
    """Broken off, after an error event where there is a code."""

    def check(seen: Seen) -> bool:
        last = seen.body.removeprefix(beginning)
        told = json.loads(last.strip().removeprefix(b"data: "))["error"]["code"] if code else last.decode()
        return not seen.whole and seen.body.startswith(beginning) and told == code

    return check


class Fault(NamedTuple):
    """`act`: what the pod does. None: it refuses connections. `retried`: the reason under which another pod is asked.

    The counter moves by one with a single pod; `limits` of the gateway are those with which that is so.
    """

    name: str
    act: Act | None
    status: int
    check: Check
    counter: str
    retried: str = ""
    ask: Ask = completion
    limits: Mapping[str, Any] = MappingProxyType({})
    early: bool = False


BUSY = b"Retry-After: 7\r\n" + JSON
ALL = {"retry_statuses": [429, 500, 502, 503, 504]}


async def closes_on_reuse(pod: RawPod, writer: asyncio.StreamWriter) -> bool:
    """Answer the first request of a connection, and hang up at its second."""
    if pod.heard == 2:
        return False
    return await sends(answered(GOOD), goes_on=True)(pod, writer)


def requests(status: int) -> str:
    return f'p2p_gateway_requests_total{{status="{status}"}}'


def engine(reason: str) -> str:
    return f'p2p_gateway_engine_errors_total{{reason="{reason}"}}'


FAULTS = [
    Fault("refuses connections", None, 502, error("pod_unreachable"), REFUSED, "pod_unreachable"),
    Fault("resets before its headers", then_resets(), 502, error("pod_disconnected"), REFUSED, "pod_disconnected"),
    Fault(
        "resets after its headers",
        then_resets(OK + SSE + CHUNKED + b"\r\n"),
        502,
        error("pod_disconnected"),
        REFUSED,
        "pod_disconnected",
    ),
    Fault(
        "resets in the middle of a stream",
        then_resets(OK + SSE + CHUNKED + b"\r\n", chunk(EVENT)),
        200,
        cut(EVENT, "pod_disconnected"),
        BROKEN,
    ),
    Fault(
        "resets in the middle of JSON",
        then_resets(OK + JSON + CHUNKED + b"\r\n", chunk(b'{"a')),
        200,
        cut(b'{"a'),
        BROKEN,
    ),
    Fault(
        "stalls before its first byte",
        then_stalls(OK + SSE + CHUNKED + b"\r\n"),
        504,
        error("pod_timeout"),
        requests(504),
        limits={"first_byte_timeout": 0.2},
    ),
    Fault(
        "stalls in the middle of a stream",
        then_stalls(OK + SSE + CHUNKED + b"\r\n", chunk(EVENT)),
        200,
        cut(EVENT, "pod_timeout"),
        'p2p_gateway_broken_answers_total{reason="pod_timeout"}',
        limits={"idle_timeout": 0.2},
    ),
    Fault(
        "sends a garbled status line",
        sends(b"garbage\r\n\r\n"),
        502,
        error("pod_disconnected"),
        REFUSED,
        "pod_disconnected",
    ),
    Fault(
        "sends headers without end",
        sends(OK + b"X-A: %b\r\n" % (b"a" * 100_000)),
        502,
        error("pod_disconnected"),
        REFUSED,
        "pod_disconnected",
    ),
    Fault("closes within a chunk", sends(OK + JSON + CHUNKED + b"\r\n64\r\n{"), 200, cut(b"{"), BROKEN),
    Fault(
        "closes short of its Content-Length", sends(OK + JSON + b"Content-Length: 9\r\n\r\n{"), 200, cut(b"{"), BROKEN
    ),
    Fault(
        "closes an idle connection just as a request goes out",
        closes_on_reuse,
        200,
        pods(GOOD),
        "p2p_gateway_resent_requests_total",
        ask=a_second_completion,
    ),
    Fault("answers 500", sends(answered(BAD, b"HTTP/1.1 500 No\r\n" + JSON)), 500, pods(BAD), requests(500)),
    Fault(
        "answers 500, which is in `limits.retry_statuses`",
        sends(answered(BAD, b"HTTP/1.1 500 No\r\n" + JSON)),
        500,
        pods(BAD),
        REFUSED,
        "pod_answered_500",
        limits=ALL,
    ),
    Fault(
        "answers 429 with Retry-After",
        sends(answered(BAD, b"HTTP/1.1 429 No\r\n" + BUSY)),
        429,
        pods(BAD, **{"Retry-After": "7"}),
        requests(429),
    ),
    Fault(
        "answers 429 with Retry-After, which is in `limits.retry_statuses`",
        sends(answered(BAD, b"HTTP/1.1 429 No\r\n" + BUSY)),
        429,
        pods(BAD, **{"Retry-After": "7"}),
        REFUSED,
        "pod_answered_429",
        limits=ALL,
    ),
    Fault(
        "answers 503 with Retry-After",
        sends(answered(BAD, b"HTTP/1.1 503 No\r\n" + BUSY)),
        503,
        pods(BAD, **{"Retry-After": "7"}),
        REFUSED,
        "pod_unavailable",
    ),
    Fault("streams an error first", stream(FAILED, DONE), 200, pods(FAILED + DONE), engine("error"), "engine_error"),
    Fault(
        "streams an error after a role",
        stream(ROLE, FAILED, DONE),
        200,
        pods(ROLE + FAILED + DONE),
        engine("error"),
        "engine_error",
    ),
    Fault(
        "aborts a request before any content",
        stream(ABORTED, DONE),
        200,
        pods(ABORTED + DONE),
        engine("finish_abort"),
        "engine_finish_abort",
    ),
    Fault("answers 200 with an error object", sends(answered(BAD)), 200, pods(BAD), engine("error"), "engine_error"),
    Fault("answers 200 with nothing", sends(answered(b"")), 200, pods(b""), engine("empty"), "engine_empty"),
    Fault(
        "answers with gzip",
        sends(answered(gzip.compress(GOOD, mtime=0), OK + JSON + b"Content-Encoding: gzip\r\n")),
        200,
        pods(gzip.compress(GOOD, mtime=0), **{"Content-Encoding": "gzip"}),
        requests(200),
    ),
    Fault("answers 204", sends(b"HTTP/1.1 204 No Content\r\n\r\n", goes_on=True), 204, pods(b""), requests(204)),
    Fault(
        "answers HEAD",
        sends(OK + JSON + b"Content-Length: 9\r\n\r\n", goes_on=True),
        200,
        pods(b"", **{"Content-Length": "9"}),
        requests(200),
        ask=bodiless("HEAD", "/v1/other"),
    ),
    Fault(
        "answers OPTIONS",
        sends(b"HTTP/1.1 204 No Content\r\nAllow: POST\r\n\r\n", goes_on=True),
        204,
        pods(b"", Allow="POST"),
        requests(204),
        ask=bodiless("OPTIONS", "/v1/completions"),
    ),
    Fault(
        "sends interim answers first",
        sends(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", answered(GOOD)),
        200,
        pods(GOOD),
        requests(200),
    ),
    Fault(
        "answers before the end of an upload",
        sends(answered(BAD, b"HTTP/1.1 413 No\r\nConnection: close\r\n" + JSON)),
        413,
        pods(BAD),
        requests(413),
        ask=an_upload,
        early=True,
    ),
    Fault(
        "sends trailers",
        sends(OK + JSON + CHUNKED + b"Trailer: X-T\r\n\r\n", chunk(GOOD), b"0\r\nX-T: 1\r\n\r\n", goes_on=True),
        200,
        pods(GOOD),
        requests(200),
    ),
]
