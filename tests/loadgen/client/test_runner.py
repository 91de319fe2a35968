"""Loads against a simulated pod."""

import asyncio
from collections import Counter

import msgspec
import pytest

from loadgen.client.failures import UNFINISHED
from loadgen.client.load import Load
from loadgen.client.runner import Limits, Runner
from loadgen.pod import SimulatedPod
from loadgen.report.record import Record
from tests.gateway.raw import CHUNKED, EVENT, OK, SSE, chunk, raw, then_stalls
from tests.loadgen.client.loads import SMALL, records

CHAT = {"conversations": 4, "turns": 3, "system_tokens": 20, "question_tokens": 5, "output_tokens": 6, "think": 0.0}


async def test_an_open_loop_sends_at_its_times_and_records_what_came() -> None:
    async with SimulatedPod(speed=1000) as pod:
        load = Load(arrival="constant", rate=200.0, requests=20, parameters=SMALL)
        found = sorted(await records(pod.url, load), key=lambda record: record.number)
    assert [record.scheduled_s for record in found] == [number / 200 for number in range(20)]
    assert {record.error for record in found} == {None}
    assert {(record.prompt_tokens, record.output_tokens, record.cached_tokens) for record in found} == {(20, 5, 0)}
    assert all(len(record.itl_ms) == 4 for record in found)
    assert all(record.sent_s >= record.scheduled_s for record in found)
    headers = pod.requests[0].headers
    assert (headers["x-request-id"], headers["x-correlation-id"]) == ("run-0", "random-0")


async def test_what_a_limit_holds_back_counts_from_when_it_was_due() -> None:
    async with SimulatedPod(speed=1000) as pod:
        pod.stall()
        asyncio.get_running_loop().call_later(0.3, pod.resume)
        load = Load(arrival="constant", rate=100.0, requests=5, most=1, parameters=SMALL)
        found = sorted(await records(pod.url, load), key=lambda record: record.number)
    last = found[-1]
    assert last.ttft_ms is not None
    assert last.ttft_sent_ms is not None
    assert last.ttft_ms > 200 > last.ttft_sent_ms
    assert last.schedule_delay_ms == pytest.approx(last.ttft_ms - last.ttft_sent_ms)


async def test_a_closed_loop_keeps_so_many_under_way() -> None:
    async with SimulatedPod(speed=1000) as pod:
        at_once: Counter[int] = Counter()
        load = Load(arrival="closed", concurrency=3, requests=30, parameters=SMALL)
        found = await records(pod.url, load, during=lambda runner, _: at_once.update([runner.under_way]))
    assert len(found) == 30
    assert max(at_once) == 3


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_turns_wait_for_each_other_and_their_prompts_are_cached(api: str) -> None:
    async with SimulatedPod(speed=1000) as pod:
        load = Load(dataset="chat", parameters=CHAT, arrival="closed", concurrency=2, unit="sessions")
        found = {record.number: record for record in await records(pod.url, load, api=api, history="real")}
    assert len(found) == 12
    for number in range(12):
        if number % 3:
            assert found[number].sent_s >= found[number - 1].ended_s
            assert found[number].cached_tokens  # the real answer is in the next prompt
    assert {record.phase for record in found.values()} == {"first", "next"}


async def test_the_real_answer_is_sent_again() -> None:
    async with SimulatedPod(speed=1000) as pod:
        load = Load(dataset="chat", parameters=CHAT | {"conversations": 1}, arrival="closed", concurrency=1)
        await records(pod.url, load, api="chat", history="real")
    first, second, third = (msgspec.json.decode(received.body)["messages"] for received in pod.requests)
    assert [message["role"] for message in third] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert set(second[-2]["content"]) <= set("abcdefghijklmnopqrstuvwxyz ")
    assert len(second[-2]["content"]) == 6  # the pod's tokens are letters; the made up ones would be words


async def test_the_warm_up_is_marked() -> None:
    async with SimulatedPod(speed=1000) as pod:
        load = Load(arrival="constant", rate=200.0, requests=10, parameters=SMALL)
        by_count = await records(pod.url, load, limits=Limits(warm_up_requests=3))
        by_time = await records(pod.url, load, limits=Limits(warm_up_s=0.02))
    for found in (by_count, by_time):
        assert sorted(r.number for r in found if r.warm_up) == list(range(4 if found is by_time else 3))


async def test_a_duration_ends_an_endless_load() -> None:
    async with SimulatedPod(speed=1000) as pod:
        load = Load(arrival="constant", rate=64.0, parameters=SMALL)
        found = await records(pod.url, load, limits=Limits(duration_s=0.25, warm_up_s=0.125))
    assert sorted(record.number for record in found) == list(range(24))
    assert {record.error for record in found} == {None}


async def test_what_is_under_way_at_the_end_has_a_grace() -> None:
    async with raw(then_stalls(OK + SSE + CHUNKED + b"\r\n", chunk(EVENT))) as pod:
        load = Load(arrival="constant", rate=50.0, parameters=SMALL)
        found = await records(pod.url, load, limits=Limits(duration_s=0.1, grace_s=0.1))
    assert len(found) == 5
    assert {record.error for record in found} == {UNFINISHED}
    assert not any(record.failed or record.completed for record in found)


async def test_what_was_due_and_never_sent_is_told() -> None:
    async with raw(then_stalls()) as pod:
        load = Load(arrival="constant", rate=50.0, parameters=SMALL, most=1)
        runners: list[Runner] = []
        limits = Limits(duration_s=0.1, grace_s=0.05)
        found = await records(pod.url, load, limits=limits, during=lambda runner, _: runners.append(runner))
    assert (len(found), runners[0].not_sent) == (1, 4)


async def test_an_interrupt_sends_no_more_and_lets_what_is_under_way_end() -> None:
    async with SimulatedPod(speed=1000) as pod:
        load = Load(arrival="closed", concurrency=4, parameters=SMALL)

        def after_ten(runner: Runner, record: Record) -> None:
            if record.number == 10:
                runner.interrupt()

        found = await records(pod.url, load, during=after_ten)
    assert 10 < len(found) < 20
    assert {record.error for record in found} == {None}


async def test_a_second_interrupt_cuts_off() -> None:
    async with raw(then_stalls()) as pod:
        load = Load(arrival="closed", concurrency=4, parameters=SMALL)
        limits = Limits(timeout_s=30.0)
        task: asyncio.Task[list[Record]]
        runners: list[Runner] = []
        original = Runner.run

        async def run(self: Runner) -> None:
            runners.append(self)
            await original(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Runner, "run", run)
            task = asyncio.create_task(records(pod.url, load, limits=limits))
            async with asyncio.timeout(10):
                while pod.heard < 4:  # noqa: ASYNC110 (a raw pod tells nobody)
                    await asyncio.sleep(0.01)
                runners[0].interrupt()
                runners[0].interrupt()
                found = await task
    assert [record.error for record in found] == [UNFINISHED] * 4


async def test_a_pod_that_dies_fails_what_it_had_and_the_load_goes_on() -> None:
    async with SimulatedPod(speed=1000) as pod:
        pod.fail_next(500, 2)
        found = await records(pod.url, Load(arrival="closed", concurrency=2, requests=6, parameters=SMALL))
    assert Counter(record.error for record in found) == {"status_500": 2, None: 4}


async def test_turns_go_on_after_one_that_failed() -> None:
    async with SimulatedPod(speed=1000) as pod:
        pod.fail_next(500, 1)
        load = Load(dataset="chat", parameters=CHAT | {"conversations": 1}, arrival="closed", concurrency=1)
        found = await records(pod.url, load, api="chat", history="real")
    assert [record.error for record in found] == ["status_500", None, None]
