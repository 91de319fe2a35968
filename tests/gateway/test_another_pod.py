"""When another pod is asked, how often, and what that does to the books of the one that failed."""

import asyncio
import json
from typing import Any

import pytest

from gateway.retries import FLOOR
from tests.gateway.fleet import Answer, Front, connection, fleet, name, posted, serving, text_body, until
from tests.gateway.raw import (
    ABORTED,
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
    raw,
    sends,
    stream,
)

pytestmark = pytest.mark.usefixtures("ties_go_to_the_first")

PATIENT = {"failures": 1000}
STREAM_HEAD = OK + SSE + b"Transfer-Encoding: chunked\r\n\r\n"
CONTENT = (
    b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hi"},"logprobs":null,'
    b'"finish_reason":null}]}\n\n'
)
CREATED = b'event: response.created\ndata: {"response":{"id":"resp_1","error":null},"type":"response.created"}\n\n'


async def post(front: Front, path: str = "/v1/completions") -> Answer:
    return await front.post(path, text_body([1, 2, 3], stream=True))


def in_steps(*pieces: bytes) -> tuple[Act, list[asyncio.Event]]:
    """An answer that sends each piece only when its event is set, but for the first."""
    events = [asyncio.Event() for _ in pieces[1:]]

    async def act(pod: RawPod, writer: asyncio.StreamWriter) -> bool:
        await sends(STREAM_HEAD, chunk(pieces[0]))(pod, writer)
        for event, piece in zip(events, pieces[1:], strict=True):
            await event.wait()
            await sends(chunk(piece))(pod, writer)
        return await sends(b"0\r\n\r\n")(pod, writer)

    return act, events


async def test_retries_are_held_to_the_budget_and_then_the_pods_own_answer_is_told() -> None:
    fails = sends(answered(b"{}", b"HTTP/1.1 503 No\r\n" + JSON), goes_on=True)
    async with fleet(breaker=PATIENT) as (_, (good,)), raw(fails) as bad:
        limits = {"retry_budget": 0.0}
        async with serving([bad, good], limits=limits, breaker=PATIENT, poll={"interval": 60.0}) as front:
            statuses = []
            for _ in range(int(FLOOR) + 3):
                front.parts.pods[name(bad)].suspect = False
                statuses.append((await post(front)).status)
            assert statuses.count(503) in (2, 3)  # one more may be granted, should this take a second
            assert statuses[: int(FLOOR)] == [200] * int(FLOOR)
            assert await front.metric("retries_refused_total", reason="budget") == statuses.count(503)


@pytest.mark.parametrize(
    ("limits", "reason"), [({"attempts": 1}, "attempts"), ({}, "no_pod")], ids=["attempts", "no other pod"]
)
async def test_why_no_other_pod_was_asked_is_counted(limits: dict[str, Any], reason: str) -> None:
    async with fleet(1 if reason == "no_pod" else 2, limits=limits) as (front, pods):
        pods[0].fail_next(503)
        assert (await post(front)).status == 503
        assert await front.metric("retries_refused_total", reason=reason) == 1
        assert await front.metric("retries_refused_total") == 1


@pytest.mark.parametrize(
    ("act", "open_after"),
    [
        (sends(answered(b"{}", b"HTTP/1.1 503 No\r\n"), goes_on=True), "open"),
        (stream(FAILED, DONE), "open"),
        (stream(ABORTED, DONE), "open"),
        (sends(answered(b""), goes_on=True), "open"),
        (sends(answered(b"{}", b"HTTP/1.1 429 No\r\n"), goes_on=True), "closed"),
        (sends(answered(b"{}", b"HTTP/1.1 500 No\r\n"), goes_on=True), "closed"),
    ],
    ids=["503", "an error event", "an abort", "nothing", "429", "500"],
)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with another"])
async def test_what_speaks_against_a_pod_opens_its_breaker_whoever_answers(
    act: Act, open_after: str, alone: bool
) -> None:
    sections = {"breaker": {"failures": 1, "cooldown": 60}, "limits": {"retry_statuses": [429, 500, 502, 503, 504]}}
    async with (
        raw(act) as bad,
        raw(sends(answered(GOOD), goes_on=True)) as good,
        serving([bad] if alone else [bad, good], **sections) as front,
    ):
        await post(front)
        await front.idle()
        assert (await front.row(bad))["breaker"] == open_after


async def test_a_role_is_held_until_its_content_comes() -> None:
    act, (content, end) = in_steps(ROLE, CONTENT, DONE)
    async with raw(act) as pod, serving([pod]) as front, connection(front) as (reader, writer):
        writer.write(posted(text_body([1], stream=True)))
        await until(lambda: pod.heard == 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0.1)
        content.set()
        seen = await reader.readuntil(CONTENT)
        assert ROLE + CONTENT in seen
        end.set()
        assert DONE in await reader.readuntil(b"0\r\n\r\n")


@pytest.mark.parametrize("first", [EVENT, ROLE + CONTENT, CREATED, b": ping\n\n"])
async def test_anything_else_is_passed_on_at_once(first: bytes) -> None:
    act, (end,) = in_steps(first, DONE)
    async with raw(act) as pod, serving([pod]) as front, connection(front) as (reader, writer):
        writer.write(posted(text_body([1], stream=True)))
        assert first in await reader.readuntil(first)
        end.set()
        await reader.readuntil(b"0\r\n\r\n")


async def test_a_pod_that_breaks_off_after_a_role_is_replaced_by_another() -> None:
    async with (
        raw(sends(STREAM_HEAD, chunk(ROLE))) as bad,
        raw(sends(answered(GOOD))) as good,
        serving([bad, good]) as front,
    ):
        answer = await post(front)
        assert (answer.status, answer.pod, answer.body) == (200, good.url, GOOD)
        assert await front.metric("retries_total", reason="pod_disconnected") == 1


@pytest.mark.parametrize(
    ("last", "reason"), [(ABORTED, "finish_abort"), (FAILED, "error")], ids=["aborted", "an error event"]
)
async def test_a_failure_after_content_is_counted_and_passed_on(last: bytes, reason: str) -> None:
    async with raw(stream(EVENT, last, DONE)) as bad, raw(sends(answered(GOOD))) as good, serving([bad, good]) as front:
        answer = await post(front)
        assert (answer.status, answer.body) == (200, EVENT + last + DONE)
        await front.idle()
        assert await front.metric("engine_errors_total", pod=name(bad), reason=reason) == 1
        assert await front.metric("retries_total") == 0


async def test_what_a_path_unknown_to_the_gateway_answers_is_not_judged() -> None:
    async with (
        raw(sends(answered(b'{"error":"mine"}'), goes_on=True)) as pod,
        raw(sends(answered(GOOD))) as good,
        serving([pod, good]) as front,
    ):
        answer = await front.post("/v1/other", b"{}")
        assert json.loads(answer.body) == {"error": "mine"}
        assert await front.metric("retries_total") == 0


async def test_an_answer_with_a_length_is_not_completed_by_an_error_event() -> None:
    head = OK + SSE + b"Content-Length: %d\r\n\r\n" % (len(EVENT) + 30)
    async with raw(sends(head, EVENT)) as pod, serving([pod]) as front, connection(front) as (reader, writer):
        writer.write(posted(text_body([1], stream=True)))
        assert (await reader.read()).partition(b"\r\n\r\n")[2] == EVENT


async def test_an_error_event_is_not_mixed_into_a_packed_stream() -> None:
    head = OK + SSE + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with (
        raw(sends(head, chunk(b"\x1f\x8b"))) as pod,
        serving([pod]) as front,
        connection(front) as (reader, writer),
    ):
        writer.write(posted(text_body([1], stream=True)))
        assert (await reader.read()).partition(b"\r\n\r\n")[2] == chunk(b"\x1f\x8b")
