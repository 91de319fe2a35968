"""Requests that wait while every pod that could serve them has enough to do."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.admission import Admission
from tests.gateway.fleet import MODEL, Answer, Front, client, connection, fleet, posted, serving, text_body, until
from tests.gateway.keyring import bearer, write
from tests.gateway.reloading import reloadable
from tests.gateway.scripted import models, says
from tests.gateway.test_lifecycle import stoppable
from tests.gateway.till import Till, asked, held, placed, till

ONE: dict[str, Any] = {"enabled": True, "max_in_flight": 1}


def urgent(priority: int) -> dict[str, str]:
    return {"x-gateway-priority": str(priority)}


def assert_rejected(answer: Answer, reason: str) -> int:
    """Seconds after which to come back."""
    assert answer.status == 429
    assert answer.headers["x-gateway-rejected"] == reason
    assert answer.headers["x-request-id"]
    assert answer.json["error"]["type"] == "rate_limit_error"
    assert answer.json["error"]["code"] == reason
    return int(answer.headers["retry-after"])


async def rejections(front: Front) -> dict[str, float]:
    reasons = ("queue_full", "timeout", "displaced")
    found = {reason: await front.metric("admission_rejected_total", reason=reason) for reason in reasons}
    return {reason: count for reason, count in found.items() if count}


# --- waiting


async def test_requests_beyond_what_pods_take_wait_and_are_served_in_order() -> None:
    async with till() as pod, serving([pod.pod], admission=ONE) as front:
        tasks = [await placed(front, pod, "first"), *[await held(front, str(n)) for n in range(3)]]
        assert await front.metric("admission_queue") == 3
        assert pod.came == ["first"]
        for served in range(1, 4):
            pod.serve()
            await pod.until_came(served + 1)
            assert pod.under_way == 1
        pod.serve()
        assert [(await task).status for task in tasks] == [200] * 4
        assert pod.came == ["first", "0", "1", "2"]
        assert await front.metric("admission_queue") == 0
        assert await front.metric("admission_waited_seconds_count") == 3
        assert await rejections(front) == {}
        await front.idle()


async def test_a_burst_is_let_through_to_the_bound_and_no_further() -> None:
    async with till() as pod, serving([pod.pod], admission={"enabled": True, "max_in_flight": 5}) as front:
        tasks = [asked(front, str(n)) for n in range(40)]
        most = 0
        while len(pod.came) < 40:
            await until(lambda: pod.under_way == min(5, 40 - len(pod.came) + pod.under_way))
            most = max(most, pod.under_way)
            pod.serve()
            pod.serve()
        await pod.serve_all(40)
        assert {(await task).status for task in tasks} == {200}
        assert most == 5


async def test_more_urgent_requests_go_first() -> None:
    async with till() as pod, serving([pod.pod], admission=ONE) as front:
        tasks = [await placed(front, pod, "first")]
        for name, headers in (
            ("plain", {}),
            ("low", urgent(-1)),
            ("high", urgent(7)),
            ("none", {"x-gateway-priority": "x"}),
        ):
            tasks.append(await held(front, name, headers))
        await pod.serve_all(5)
        assert pod.came == ["first", "high", "plain", "none", "low"]
        assert {(await task).status for task in tasks} == {200}


async def test_the_header_of_the_priority_can_be_another() -> None:
    async with till() as pod, serving([pod.pod], admission={**ONE, "priority_header": "X-Urgency"}) as front:
        tasks = [await placed(front, pod, "first"), await held(front, "plain", urgent(50))]
        tasks.append(await held(front, "high", {"x-urgency": "1"}))
        await pod.serve_all(3)
        assert pod.came == ["first", "high", "plain"]
        await asyncio.gather(*tasks)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.yaml"
    entries = [
        {"id": "small", "key": "sk-small"},
        {"id": "large", "key": "sk-large", "share": 3},
        {"id": "boss", "key": "sk-boss", "priority": 10},
        {"id": "root", "key": "sk-root", "admin": True},
    ]
    write(file, entries)
    return file


async def test_keys_are_served_by_their_shares(keys: Path) -> None:
    sections: dict[str, Any] = {
        "auth": {"keys": str(keys)},
        "session": {"headers": bearer("sk-root")},
        "admission": ONE,
    }
    async with till() as pod, serving([pod.pod], **sections) as front, client() as http:
        front.http = http
        tasks = [await placed(front, pod, "first", headers=bearer("sk-root"))]
        names = [(f"{key}-{n}", key) for n in range(12) for key in ("small", "large")]
        tasks += [await held(front, name, bearer(f"sk-{key}")) for name, key in names]
        await pod.serve_all(25)
        order = [name.partition("-") for name in pod.came[1:]]
        assert Counter(key for key, *_ in order[:16]) == {"large": 12, "small": 4}
        assert [name for key, _, name in order if key == "small"] == [str(n) for n in range(12)]
        assert {(await task).status for task in tasks} == {200}


async def test_a_keys_priority_is_the_highest_that_its_requests_have(keys: Path) -> None:
    sections: dict[str, Any] = {
        "auth": {"keys": str(keys)},
        "session": {"headers": bearer("sk-root")},
        "admission": ONE,
    }
    async with till() as pod, serving([pod.pod], **sections) as front, client() as http:
        front.http = http
        tasks = [await placed(front, pod, "first", headers=bearer("sk-root"))]
        for name, key, headers in (
            ("small", "sk-small", urgent(99)),
            ("boss, later", "sk-boss", urgent(-1)),
            ("large", "sk-large", {}),
            ("boss", "sk-boss", {}),
            ("boss, soon", "sk-boss", urgent(99)),
        ):
            tasks.append(await held(front, name, {**bearer(key), **headers}))
        await pod.serve_all(6)
        assert pod.came == ["first", "boss", "boss, soon", "small", "large", "boss, later"]
        await asyncio.gather(*tasks)


async def test_a_line_in_the_access_log_says_how_long_a_request_waited(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    async with till() as pod, serving([pod.pod], admission=ONE, access_log={"path": str(log)}) as front:
        tasks = [await placed(front, pod, "first"), await held(front, "second")]
        await pod.serve_all(2)
        await asyncio.gather(*tasks)
    first, second = (json.loads(line) for line in log.read_text().splitlines())
    assert first["queued_s"] is None
    assert 0 < second["queued_s"] <= second["ttft_s"]


# --- turned away


async def test_where_as_many_wait_as_may_a_request_is_told_when_to_come_back() -> None:
    async with till() as pod, serving([pod.pod], admission={**ONE, "queue": 1, "timeout": 20.0}) as front:
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
    async with till() as pod, serving([pod.pod], admission={**ONE, "queue": 3, "timeout": 500.0}) as front:
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
    async with till() as pod, serving([pod.pod], admission={**ONE, "timeout": 0.2}) as front:
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
    async with till() as pod, serving([pod.pod], admission={**ONE, "queue": 2}) as front:
        first = await placed(front, pod, "first")
        older, newer = await held(front, "older"), await held(front, "newer")
        more_urgent = asked(front, "urgent", urgent(1))
        assert_rejected(await newer, "displaced")
        await pod.serve_all(3)
        assert pod.came == ["first", "urgent", "older"]
        assert {(await task).status for task in (first, older, more_urgent)} == {200}
        assert await rejections(front) == {"displaced": 1}


async def test_a_key_cannot_fill_the_queue_against_the_others(keys: Path) -> None:
    sections: dict[str, Any] = {"auth": {"keys": str(keys)}, "session": {"headers": bearer("sk-root")}}
    async with till() as pod, serving([pod.pod], admission={**ONE, "queue": 2}, **sections) as front, client() as http:
        front.http = http
        tasks = [await placed(front, pod, "first", headers=bearer("sk-small"))]
        many = [await held(front, f"many-{n}", bearer("sk-small")) for n in range(2)]
        other = asked(front, "other", bearer("sk-root"))
        assert_rejected(await many[1], "displaced")
        await pod.serve_all(3)
        assert {(await task).status for task in (*tasks, many[0], other)} == {200}


# --- what is not held back


async def test_a_model_is_not_held_back_for_another_one() -> None:
    async with (
        till() as pod,
        till(models=says(models({"id": "other"}))) as free,
        serving([pod.pod, free.pod], admission={**ONE, "queue": 1}) as front,
    ):
        tasks = [await placed(front, pod, "first"), await held(front, "second")]
        for name in ("third", "fourth"):
            other = await placed(front, free, name, model="other")
            assert_rejected(await asked(front, "too many", model="other"), "queue_full")
            free.serve()
            assert (await other).status == 200
        await pod.serve_all(2)
        assert {(await task).status for task in tasks} == {200}


async def test_what_computes_nothing_is_not_held_back() -> None:
    async with till(tokenize=says({"tokens": [1], "count": 1})) as pod, serving([pod.pod], admission=ONE) as front:
        pod.pod.scripts["/v1/responses/resp_1"] = says({"id": "resp_1"})
        first = await placed(front, pod, "first")
        assert (await front.post("/tokenize", {"model": MODEL, "prompt": "a"})).status == 200
        assert (await front.get("/v1/responses/resp_1")).status == 200
        for path in ("/v1/models", "/health", "/ready", "/pods"):
            assert (await front.get(path)).status == 200
        assert (await front.post("/explain", text_body([1]))).status == 200
        pod.serve()
        await first


async def test_a_pod_at_its_limit_is_waited_for() -> None:
    sections: dict[str, Any] = {
        "admission": {"enabled": True, "max_in_flight": 100},
        "limits": {"max_concurrent_per_pod": 1},
    }
    async with till() as pod, serving([pod.pod], **sections) as front:
        tasks = [await placed(front, pod, "first"), await held(front, "second")]
        await pod.serve_all(2)
        assert [(await task).status for task in tasks] == [200, 200]


async def test_switched_off_nothing_of_it_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Admission, "admit", never)
    async with fleet(admission={"max_in_flight": 1}) as (front, (pod,)):
        await asyncio.gather(*(front.complete([n + 1]) for n in range(10)))
        counts = front.parts.pods[pod.url.removeprefix("http://")].in_flight[0]
        assert counts.since_poll is None
        assert not front.parts.admission.on


# --- ends


@pytest.mark.parametrize("chunked", [False, True], ids=["plain", "by way of aiohttp"])
async def test_a_client_that_leaves_frees_its_place_at_once(chunked: bool) -> None:
    sent = posted(text_body([1]))
    if chunked:
        sent = _chunked(sent)
    async with till() as pod, serving([pod.pod], admission={**ONE, "queue": 1}) as front:
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


async def test_a_client_that_leaves_the_moment_its_turn_comes_passes_it_on() -> None:
    async with till() as pod, serving([pod.pod], admission=ONE) as front:
        first = await placed(front, pod, "first")
        leaving = await held(front, "leaving")
        second = await held(front, "second")
        leaving.cancel()
        pod.serve()
        await until(lambda: "second" in pod.came)
        pod.serve()
        assert [(await task).status for task in (first, second)] == [200, 200]
        await front.idle()


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
