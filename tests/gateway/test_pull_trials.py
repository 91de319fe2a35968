"""A pull of the gateway's own tells whether a pair works again, at the expense of no client."""

from pathlib import Path
from typing import Any

import pytest

from gateway.errors import PodTimeout
from gateway.pairs import Pair, Pairs
from gateway.trials import Trials
from tests.gateway.fleet import (
    completions,
    simulated,
    spec,
    until,
)
from tests.gateway.pulling import (
    COMPUTES,
    HEALTH,
    PATIENT,
    breakers,
    fail,
    is_named,
    pair,
    polled,
    reason,
    served,
    streamed,
)
from tests.gateway.reloading import reloadable


async def test_a_pair_that_works_again_is_found_by_a_trial_that_no_client_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for deadline in ("_COMPUTE_S", "_PULL_S"):
        monkeypatch.setattr(f"gateway.trials.{deadline}", 0.3)
    async with pair(p2p={"probe": True}) as (front, consumer, holder):
        await streamed(front, 0)
        holder.stale_session()
        assert (await streamed(front, 1)).source is None
        assert await breakers(front) == [(holder.url, consumer.url, "late")]
        assert await front.metric("pull_breakers_open", of="pair") == 1

        async def failed() -> bool:
            return await front.metric("pull_trials_total", result="late") >= 2

        await until(failed)
        assert await reason(front, 2) == "breaker"
        assert await front.metric("watchdog_fired_total") == 1
        holder.stale_session(0.001)  # and then well again
        await until(lambda: is_named(front, 2))
        assert await breakers(front) == []
        assert await front.metric("pull_trials_total", result="ok") == 1
        assert (await streamed(front, 2)).source == holder.url
        trials = [request for request in completions(consumer) if len(request.json["prompt"]) == 257]
        assert {request.json["max_tokens"] for request in trials} == {1}


async def test_without_prompts_of_its_own_the_next_request_is_the_trial() -> None:
    async with pair() as (front, consumer, holder):
        holder.stall()
        await streamed(front, 0)
        assert await reason(front, 1) == "breaker"
        await until(lambda: is_named(front, 1))
        assert (await streamed(front, 1)).source is None
        assert await front.metric("watchdog_fired_total") == 2
        holder.resume()
        await until(lambda: is_named(front, 2))
        assert (await streamed(front, 2, stream_options={"include_usage": True})).source == holder.url
        assert [len(request.json["prompt"]) for request in completions(consumer)] == [200] * 5
        assert await front.metric("pull_trials_total") == 0


async def test_where_neither_answers_nor_counters_tell_a_pair_is_tried_once_after_its_first_pull(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.poller._LABELLED", {})
    async with simulated(2, profile=PATIENT) as (consumer, holder):
        other_name = spec(holder, p2p=f"localhost:{holder.p2p_port}")
        entries = spec(consumer, **COMPUTES), other_name
        wait = {"probe": True, "breaker": {"cooldown": 60.0, "max_cooldown": 60.0}}
        async with served(*entries, holder=holder, p2p=wait) as front:
            assert (await streamed(front, 0)).source == holder.url

            async def found() -> bool:
                return await breakers(front) == [(holder.url, consumer.url, "nothing")]

            await until(found)
            assert await front.metric("pull_trials_total", result="nothing") == 1


async def test_a_trial_that_cannot_be_made_is_made_later() -> None:
    async with pair(p2p={"probe": True}) as (front, consumer, holder):
        await streamed(front, 0, stream_options={"include_usage": True})
        fail(front, holder, consumer)
        holder.fail_next(503, 2)

        async def put_off() -> bool:
            return await front.metric("pull_trials_total", result="impossible") == 2

        await until(put_off)
        assert await reason(front, 1) == "breaker"
        await until(lambda: is_named(front, 1))
        assert await front.metric("pull_trials_total", result="ok") == 1


async def test_where_a_pod_takes_no_trial_the_next_request_tries() -> None:
    wait = {"cooldown": 0.2, "max_cooldown": 60.0}
    async with pair(p2p={"probe": True, "breaker": wait}) as (front, consumer, holder):
        await streamed(front, 0, stream_options={"include_usage": True})
        tried = await front.metric("pull_trials_total")
        consumer.fail_next(400)
        fail(front, holder, consumer)
        await until(lambda: is_named(front, 1))
        assert await front.metric("pull_trials_total", result="unclear") == 1
        assert await front.metric("pull_trials_total") == tried + 1


async def test_a_pod_that_is_late_to_tell_what_a_trial_brought_is_no_pull_that_was_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0

    async def pulled(*_: Any) -> float:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise PodTimeout("/metrics did not answer in time", code="pod_timeout")
        return 192.0 * asked

    monkeypatch.setattr(Trials, "_pulled", pulled)
    async with (
        simulated(2, profile=PATIENT, prompt_tokens_details=False) as (consumer, holder),
        served(spec(consumer, **COMPUTES), spec(holder), holder=holder, p2p={"probe": True}) as front,
    ):
        fail(front, holder, consumer)
        await until(lambda: is_named(front, 1))
        assert await front.metric("pull_trials_total", result="impossible") == 1
        assert await front.metric("pull_trials_total", result="late") == 0


async def test_while_a_trial_takes_its_time_nobody_looks_for_another_over_and_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    due = Pairs.due

    def counted(found: Pairs, now: float) -> list[Pair]:
        nonlocal looks
        looks += 1
        return due(found, now)

    monkeypatch.setattr(Pairs, "due", counted)
    async with simulated(3, profile=PATIENT) as (one, other, holder):
        entries = spec(one, **COMPUTES), spec(other, **COMPUTES), spec(holder)
        async with served(*entries, holder=holder, p2p={"probe": True}) as front:
            holder.stall()
            fail(front, holder, one)
            fail(front, holder, other)

            async def on_trial() -> bool:
                rows = (await front.get("/pods")).json["breakers"]
                return any(row["consumer"] and row["trial_in_s"] is None for row in rows)

            await until(on_trial)
            before = looks
            await polled(front, one, 10)
            assert looks - before < 10
            holder.resume()


async def test_where_pulls_are_switched_off_nobody_is_tried(tmp_path: Path) -> None:
    async with simulated(2, profile=PATIENT) as (consumer, holder):
        entries = [spec(consumer, **COMPUTES), spec(holder)]
        p2p = {**HEALTH["p2p"], "probe": True}
        async with reloadable(entries, tmp_path / "gateway.yaml", **{**HEALTH, "p2p": p2p}) as found:
            front = found.front
            holder.stall()
            fail(front, holder, consumer)
            assert len(await breakers(front)) == 1
            assert await found.reload(entries, **{**HEALTH, "p2p": {**p2p, "enabled": False}}) == "ok"
            assert await breakers(front) == []
            holder.resume()


async def test_where_a_trial_tells_nothing_the_next_request_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.trials._CONFIRM_S", 0.1)
    async with pair(p2p={"probe": True}) as (front, consumer, holder):
        holder.drop_events(1000)  # what it computes from now on, it does not tell
        fail(front, holder, consumer)
        await until(lambda: is_named(front, 1))


async def test_a_fault_in_trials_is_counted_and_they_go_on(monkeypatch: pytest.MonkeyPatch, log: list[Any]) -> None:
    monkeypatch.setattr("gateway.fleet._RESTART_AFTER_FAULT_S", 600.0)  # one fault is not all trials'
    faults = [RuntimeError("a bug")]

    def sizes(_: Any, __: str) -> tuple[int, ...]:
        if faults:
            raise faults.pop()
        return (16,)

    async with pair(p2p={"probe": True}) as (front, consumer, holder):
        monkeypatch.setattr("index.RadixIndex.block_sizes", sizes)
        fail(front, holder, consumer)
        await until(lambda: not faults)
        await until(lambda: is_named(front, 1))
        assert await front.metric("task_failures_total", pod="") == 1
    failed = [entry for entry in log if entry["event"] == "task failed"]
    assert len(failed) == 1
    log.remove(failed[0])
