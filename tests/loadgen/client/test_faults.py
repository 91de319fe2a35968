"""What endpoints do wrong, one by one, and what a record says of it."""

import asyncio
import socket

import pytest

from loadgen.client.failures import Refused
from loadgen.client.load import Load
from loadgen.client.pool import Endpoint, Pool
from loadgen.client.runner import Limits
from loadgen.report.record import Record
from tests.gateway.raw import (
    CHUNKED,
    DONE,
    EVENT,
    FAILED,
    GOOD,
    OK,
    SSE,
    Act,
    answered,
    chunk,
    raw,
    sends,
    then_resets,
    then_stalls,
)
from tests.loadgen.client.loads import SMALL, records

STREAM = OK + SSE + CHUNKED + b"\r\n"
END = b"0\r\n\r\n"
ONE = Load(requests=1, parameters=SMALL)
REFUSAL = b'{"error":{"message":"too busy","type":"X","param":null,"code":503}}'


async def one(act: Act, *, timeout_s: float = 20.0) -> Record:
    async with raw(act) as pod:
        (record,) = await records(pod.url, ONE, limits=Limits(timeout_s=timeout_s))
        return record


async def test_a_whole_stream_is_completed() -> None:
    record = await one(sends(STREAM, chunk(EVENT), chunk(EVENT), chunk(DONE) + END))
    assert (record.status, record.error, record.output_tokens, len(record.itl_ms)) == (200, None, 2, 1)
    assert record.ttft_ms is not None
    assert record.first_byte_ms is not None
    assert 0 < record.itl_ms[0] < record.e2el_ms
    assert record.cached_tokens is None


async def test_a_stream_that_ends_with_its_connection_is_completed_too() -> None:
    assert (await one(sends(OK + SSE + b"Connection: close\r\n\r\n", EVENT, DONE))).error is None


@pytest.mark.parametrize(
    ("act", "status", "error"),
    [
        (then_resets(), 0, "disconnected"),
        (then_resets(STREAM, chunk(EVENT)), 200, "disconnected"),
        (sends(STREAM, chunk(EVENT)), 200, "disconnected"),
        (sends(STREAM, chunk(EVENT) + END), 200, "disconnected"),  # HTTP's end without the stream's
        (sends(STREAM, chunk(EVENT), chunk(FAILED), chunk(DONE) + END), 200, "error_event"),
        (sends(answered(REFUSAL, b"HTTP/1.1 503 Busy\r\n")), 503, "status_503"),
        (sends(answered(GOOD)), 200, "no_stream"),
        (sends(b"SSH-2.0-OpenSSH\r\n"), 0, "unreadable"),
        (sends(STREAM, chunk(b"data: {nonsense\n\n") + END), 200, "unreadable"),
        (sends(OK + b"X: " + b"x" * 200_000), 0, "unreadable"),
    ],
)
async def test_what_is_no_whole_answer_fails_by_its_kind(act: Act, status: int, error: str) -> None:
    record = await one(act)
    assert (record.status, record.error) == (status, error)
    assert record.failed
    assert record.detail


async def test_a_refusal_is_quoted() -> None:
    assert (await one(sends(answered(REFUSAL, b"HTTP/1.1 503 Busy\r\n")))).detail == "too busy"


async def test_a_stalled_stream_times_out_with_what_it_had() -> None:
    record = await one(then_stalls(STREAM, chunk(EVENT)), timeout_s=0.2)
    assert (record.error, record.output_tokens) == ("timeout", 1)
    assert record.ttft_ms is not None
    assert 200 <= record.e2el_sent_ms < 5000


async def test_nobody_listens() -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        (record,) = await records(f"http://127.0.0.1:{taken.getsockname()[1]}", ONE)
    assert (record.status, record.error, record.ttft_ms) == (0, "refused", None)


async def test_a_connection_closed_while_nobody_used_it_costs_no_request() -> None:
    whole = STREAM + chunk(EVENT) + chunk(DONE) + END
    async with raw(sends(whole)) as pod:  # says keep-alive, and closes after each
        found = await records(pod.url, Load(arrival="closed", concurrency=1, requests=20, parameters=SMALL))
    assert [record.error for record in found] == [None] * 20


async def test_a_connection_is_used_again() -> None:
    whole = STREAM + chunk(EVENT) + chunk(DONE) + END
    async with raw(sends(whole, goes_on=True)) as pod:
        found = await records(pod.url, Load(arrival="closed", concurrency=1, requests=5, parameters=SMALL))
    assert [record.connect_ms > 0 for record in found] == [True, False, False, False, False]


async def test_what_nobody_asked_for_is_not_taken_for_the_next_answer() -> None:
    whole = STREAM + chunk(EVENT) + chunk(DONE) + END
    async with raw(sends(whole + whole, goes_on=True)) as pod:
        found = await records(pod.url, Load(arrival="closed", concurrency=1, requests=3, parameters=SMALL))
    assert len(found) == 3
    assert {record.output_tokens for record in found} == {1}


async def test_a_host_that_nobody_tells_the_address_of_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", silent)
    monkeypatch.setattr("loadgen.client.pool._LOOKUP_S", 0.01)
    with pytest.raises(Refused, match="not found within"):
        async with Pool(Endpoint.parse("http://nowhere.invalid")):
            pass
