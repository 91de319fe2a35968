"""Requests that wait while every pod that could serve them has enough to do: which, and in what order they go."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from gateway.admission import Admission
from tests.gateway.fleet import MODEL, fleet, serving, text_body, until
from tests.gateway.keyring import bearer
from tests.gateway.scripted import models, says
from tests.gateway.till import (
    FULL,
    ONE,
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

# --- waiting


async def test_requests_beyond_what_pods_take_wait_and_are_served_in_order() -> None:
    async with one_at_a_time() as (front, pod):
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
    async with one_at_a_time(max_in_flight=5) as (front, pod):
        tasks = [asked(front, str(n)) for n in range(40)]
        while len(pod.came) < 40:
            await until(lambda: pod.under_way == min(5, 40 - len(pod.came) + pod.under_way))
            pod.serve()
            pod.serve()
        await pod.serve_all(40)
        assert {(await task).status for task in tasks} == {200}
        assert pod.most == 5


async def test_more_urgent_requests_go_first() -> None:
    async with one_at_a_time() as (front, pod):
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
    async with one_at_a_time(priority_header="X-Urgency") as (front, pod):
        tasks = [await placed(front, pod, "first"), await held(front, "plain", urgent(50))]
        tasks.append(await held(front, "high", {"x-urgency": "1"}))
        await pod.serve_all(3)
        assert pod.came == ["first", "high", "plain"]
        await asyncio.gather(*tasks)


async def test_keys_are_served_by_their_shares(tmp_path: Path) -> None:
    async with with_keys(write_keys(tmp_path)) as (front, pod):
        tasks = [await placed(front, pod, "first", headers=bearer("sk-root"))]
        names = [(f"{key}-{n}", key) for n in range(12) for key in ("small", "large")]
        tasks += [await held(front, name, bearer(f"sk-{key}")) for name, key in names]
        await pod.serve_all(25)
        order = [name.partition("-") for name in pod.came[1:]]
        assert Counter(key for key, *_ in order[:16]) == {"large": 12, "small": 4}
        assert [name for key, _, name in order if key == "small"] == [str(n) for n in range(12)]
        assert {(await task).status for task in tasks} == {200}


async def test_a_keys_priority_is_the_highest_that_its_requests_have(tmp_path: Path) -> None:
    async with with_keys(write_keys(tmp_path)) as (front, pod):
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
    async with one_at_a_time({"access_log": {"path": str(log)}}) as (front, pod):
        tasks = [await placed(front, pod, "first"), await held(front, "second")]
        await pod.serve_all(2)
        await asyncio.gather(*tasks)
    first, second = (json.loads(line) for line in log.read_text().splitlines())
    assert first["queued_s"] is None
    assert 0 < second["queued_s"] <= second["ttft_s"]


# --- what is waited for


LEAST_BUSY = {"scorers": [{"type": "active-requests"}]}


async def test_a_pod_at_its_limit_is_waited_for() -> None:
    async with till() as pod, serving([pod.pod], **FULL["its limit"]) as front:
        tasks = [await placed(front, pod, "first"), await held(front, "second")]
        await pod.serve_all(2)
        assert [(await task).status for task in tasks] == [200, 200]


@pytest.mark.usefixtures("ties_go_to_the_first")
@pytest.mark.parametrize("at", FULL)
async def test_what_needs_a_stored_response_waits_for_its_pod_while_others_are_free(at: str) -> None:
    sections = {**FULL[at], "placement": LEAST_BUSY}
    async with till() as keeper, till() as other, serving([keeper.pod, other.pod], **sections) as front:
        made = await placed(front, keeper, "made", path="/v1/responses", input="x")
        keeper.serve()
        assert (await made).json == {"id": "made"}
        after = {"path": "/v1/responses", "input": "x", "previous_response_id": "made"}
        tasks = [await placed(front, keeper, "first", **after), await held(front, "second", **after)]
        elsewhere = await placed(front, other, "elsewhere")
        assert keeper.came == ["made", "first"]
        other.serve()
        await keeper.serve_all(3)
        assert {(await task).status for task in (*tasks, elsewhere)} == {200}
        assert (keeper.came, other.came) == (["made", "first", "second"], ["elsewhere"])
        assert keeper.most == 1


async def test_what_needs_a_response_that_is_gone_with_its_pod_is_told_so_at_once() -> None:
    after = {"path": "/v1/responses", "input": "x", "previous_response_id": "made"}
    async with one_at_a_time({"poll": {"interval": 0.05}}) as (front, pod):
        made = await placed(front, pod, "made", path="/v1/responses", input="x")
        pod.serve()
        await made
        first, second = await placed(front, pod, "first", **after), await held(front, "second", **after)
        pod.pod.scripts["/health"] = says({}, status=500)
        told = await second
        assert (told.status, told.json["error"]["code"]) == (404, "response_not_found")
        pod.serve()
        await first


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


async def test_switched_off_nothing_of_it_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Admission, "admit", never)
    async with fleet(admission={"max_in_flight": 1}) as (front, (pod,)):
        await asyncio.gather(*(front.complete([n + 1]) for n in range(10)))
        counts = front.parts.pods[pod.url.removeprefix("http://")].in_flight[0]
        assert counts.since_poll is None
        assert not front.parts.admission.on
