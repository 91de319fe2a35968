"""How waiting ends where it is not for a pod that takes more: turned away, left, shut down, configured anew."""

import asyncio
from pathlib import Path

import pytest

from tests.gateway.fleet import MODEL, Answer, Front, connection, posted, text_body, until
from tests.gateway.keyring import bearer
from tests.gateway.reloading import reloadable
from tests.gateway.test_lifecycle import stoppable
from tests.gateway.till import (
    ONE,
    Till,
    asked,
    assert_rejected,
    held,
    one_at_a_time,
    placed,
    rejections,
    till,
    urgent,
    with_keys,
    write_keys,
)

# --- turned away


async def test_where_as_many_wait_as_may_a_request_is_told_when_to_come_back() -> None:
    async with one_at_a_time(queue=1, timeout=20.0) as (front, pod):
        tasks = [await placed(front, pod, "first"), await held(front, "second")]
        told = await front.post("/v1/completions", text_body([1]))
        assert assert_rejected(told, "queue_full") == 20  # nothing has gone yet, and nobody waits any longer
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        anthropics = await front.post("/v1/messages", body)
        assert (anthropics.status, anthropics.headers["x-gateway-rejected"]) == (429, "queue_full")
        assert anthropics.json["error"]["type"] == "rate_limit_error"
        assert anthropics.headers["retry-after"] == "20"
        await pod.serve_all(2)
        assert [(await task).status for task in tasks] == [200, 200]
        assert await rejections(front) == {"queue_full": 2}
        assert await front.metric("refused_total") == 0


async def test_when_to_come_back_follows_from_how_many_have_gone() -> None:
    async with one_at_a_time(queue=3, timeout=500.0) as (front, pod):
        tasks = [await placed(front, pod, "first"), *[await held(front, str(n)) for n in range(3)]]
        for n in range(3, 23):
            pod.serve()
            await until(lambda: front.parts.admission.waiting() == 2)
            tasks.append(await held(front, str(n)))
        told = await front.post("/v1/completions", text_body([1]))
        assert assert_rejected(told, "queue_full") < 10
        await pod.serve_all(24)
        assert {(await task).status for task in tasks} == {200}


async def test_who_waits_too_long_is_turned_away() -> None:
    async with one_at_a_time(timeout=0.2) as (front, pod):
        first = await placed(front, pod, "first")
        clock = asyncio.get_running_loop().time
        began = clock()
        told = await front.post("/v1/completions", text_body([1]))
        assert 0.19 < clock() - began < 10
        assert assert_rejected(told, "timeout") == 1
        assert await rejections(front) == {"timeout": 1}
        assert await front.metric("admission_queue") == 0
        pod.serve()
        assert (await first).status == 200
        assert pod.came == ["first"]


async def test_a_more_urgent_request_takes_the_place_of_the_newest_of_the_least_urgent() -> None:
    async with one_at_a_time(queue=2) as (front, pod):
        first = await placed(front, pod, "first")
        older, newer = await held(front, "older"), await held(front, "newer")
        more_urgent = asked(front, "urgent", urgent(1))
        assert_rejected(await newer, "displaced")
        await pod.serve_all(3)
        assert pod.came == ["first", "urgent", "older"]
        assert {(await task).status for task in (first, older, more_urgent)} == {200}
        assert await rejections(front) == {"displaced": 1}


async def test_a_key_cannot_fill_the_queue_against_the_others(tmp_path: Path) -> None:
    async with with_keys(write_keys(tmp_path), queue=2) as (front, pod):
        tasks = [await placed(front, pod, "first", headers=bearer("sk-small"))]
        many = [await held(front, f"many-{n}", bearer("sk-small")) for n in range(2)]
        other = asked(front, "other", bearer("sk-root"))
        assert_rejected(await many[1], "displaced")
        await pod.serve_all(3)
        assert {(await task).status for task in (*tasks, many[0], other)} == {200}


# --- its client leaves


@pytest.mark.parametrize("chunked", [False, True], ids=["plain", "by way of aiohttp"])
async def test_a_client_that_leaves_frees_its_place_at_once(chunked: bool) -> None:
    sent = posted(text_body([1]))
    if chunked:
        sent = _chunked(sent)
    async with one_at_a_time(queue=1) as (front, pod):
        first = await placed(front, pod, "first")
        async with connection(front) as (_, writer):
            writer.write(sent)
            await until(lambda: front.parts.admission.waiting() == 1)
        await until(lambda: front.parts.admission.waiting() == 0)
        second = await held(front, "second")
        await pod.serve_all(2)
        assert [(await task).status for task in (first, second)] == [200, 200]
        assert pod.came == ["first", "second"]
        assert await front.metric("requests_total", status="499") == 1
        assert await front.metric("admission_waited_seconds_count") == 1


def _chunked(request: bytes) -> bytes:
    """The same request with a body in chunks, which is not a plain one."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    return b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b"%x" % len(body), body, b"0", b"", b""])


# --- a shutdown


async def test_at_a_shutdown_who_waits_is_told_at_once_and_what_is_under_way_ends() -> None:
    async with till() as pod, stoppable(pod.pod, admission=ONE) as gateway:
        front = gateway.front
        first, second = await placed(front, pod, "first"), await held(front, "second")
        stopping = await gateway.stop()
        told = await second
        assert (told.status, told.json["error"]["code"]) == (503, "draining")
        assert told.headers["retry-after"] == "1"
        pod.serve()
        assert (await first).status == 200
        await stopping
        assert pod.came == ["first"]


async def test_a_request_that_would_wait_during_a_shutdown_is_told_so() -> None:
    """One whose body was on its way when the shutdown began."""
    sent = posted(text_body([1]))
    async with (
        till() as pod,
        stoppable(pod.pod, admission=ONE) as gateway,
        connection(gateway.front) as (reader, writer),
    ):
        first = await placed(gateway.front, pod, "first")
        writer.write(sent[:-5])
        await gateway.front.get("/health")  # by now it has arrived
        stopping = await gateway.stop()
        writer.write(sent[-5:])
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        pod.serve()
        assert (await first).status == 200
        await stopping


# --- a changed configuration


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


async def waiting_behind_one(front: Front, pod: Till, count: int) -> list[asyncio.Task[Answer]]:
    return [await placed(front, pod, "first"), *[await held(front, str(n)) for n in range(count)]]


async def test_higher_bounds_let_those_go_who_wait(file: Path) -> None:
    async with till() as pod, reloadable([pod.pod], file, admission=ONE) as gateway:
        tasks = await waiting_behind_one(gateway.front, pod, 3)
        assert await gateway.reload([pod.pod], admission={**ONE, "max_in_flight": 3}) == "ok"
        await until(lambda: pod.under_way == 3)
        assert gateway.front.parts.admission.waiting() == 1
        assert await gateway.reload([pod.pod], admission={"enabled": False}) == "ok"
        await until(lambda: pod.under_way == 4)
        await pod.serve_all(4)
        assert {(await task).status for task in tasks} == {200}


async def test_fewer_places_and_less_patience_hold_for_those_who_wait(file: Path) -> None:
    async with till() as pod, reloadable([pod.pod], file, admission=ONE) as gateway:
        tasks = await waiting_behind_one(gateway.front, pod, 3)
        assert await gateway.reload([pod.pod], admission={**ONE, "queue": 2}) == "ok"
        assert_rejected(await tasks[3], "displaced")
        assert await gateway.reload([pod.pod], admission={**ONE, "timeout": 0.01}) == "ok"
        for task in tasks[1:3]:
            assert_rejected(await task, "timeout")
        pod.serve()
        assert (await tasks[0]).status == 200


async def test_it_can_be_switched_on_while_requests_are_under_way(file: Path) -> None:
    async with till() as pod, reloadable([pod.pod], file) as gateway:
        tasks = [await placed(gateway.front, pod, "first"), await placed(gateway.front, pod, "second")]
        assert await gateway.reload([pod.pod], admission=ONE) == "ok"
        tasks.append(await held(gateway.front, "third"))
        pod.serve()
        pod.serve()
        await until(lambda: "third" in pod.came)
        pod.serve()
        assert {(await task).status for task in tasks} == {200}
