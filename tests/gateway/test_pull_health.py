"""Peers whose pulls fail are not named, each time for longer; what works again is named again by itself."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from gateway.pairs import Pair
from scorers import Pull
from tests.gateway.fleet import (
    completions,
    ids,
    name,
    serving,
    simulated,
    spec,
    text_body,
    until,
    warm,
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
from tests.gateway.scripted import scripted


async def test_a_source_that_brings_nothing_is_not_named_again() -> None:
    # It refuses whoever calls it by another name than its own.
    async with simulated(2, profile=PATIENT) as (consumer, holder):
        other_name = spec(holder, p2p=f"localhost:{holder.p2p_port}")
        entries = spec(consumer, **COMPUTES), other_name
        async with served(*entries, holder=holder, p2p={"breaker": {"cooldown": 60.0, "max_cooldown": 60.0}}) as front:
            answer = await front.complete(ids(200))
            assert (answer.pod, answer.source, answer.cached) == (consumer.url, holder.url, 0)
            assert await front.metric("pull_failures_total", reason="nothing", source=name(holder)) == 1
            assert await reason(front, 1) == "breaker"
            assert (await front.complete(ids(200, 1))).source is None
            assert await breakers(front) == [(holder.url, consumer.url, "nothing")]


async def test_where_answers_do_not_report_it_the_consumers_counter_tells_that_nothing_came() -> None:
    async with simulated(2, profile=PATIENT, prompt_tokens_details=False) as (consumer, holder):
        other_name = spec(holder, p2p=f"localhost:{holder.p2p_port}")
        entries = spec(consumer, **COMPUTES), other_name
        async with served(*entries, holder=holder, p2p={"breaker": {"cooldown": 60.0, "max_cooldown": 60.0}}) as front:
            await asyncio.sleep(0.3)  # some polls, as there always are
            assert (await streamed(front, 0)).source == holder.url

            async def found() -> bool:
                return await breakers(front) == [(holder.url, consumer.url, "nothing")]

            await until(found)
            assert await front.metric("pull_failures_total", reason="nothing") == 1


@pytest.mark.parametrize("stream", [True, False], ids=["a stream", "in one piece"])
async def test_an_answer_that_is_long_is_not_taken_for_one_whose_pull_brought_nothing(stream: bool) -> None:
    slow = msgspec.structs.replace(PATIENT, decode_ms=50.0 * 20)  # 20 ms a token
    async with simulated(2, profile=slow, prompt_tokens_details=False) as (consumer, holder):
        wait = {"deadline_cap": 5.0, "breaker": {"cooldown": 60.0, "max_cooldown": 60.0}}
        async with served(spec(consumer, **COMPUTES), spec(holder), holder=holder, p2p=wait) as front:
            await polled(front, consumer, 5)
            answer = await front.complete(ids(200), stream=stream, max_tokens=60)
            assert answer.source == holder.url
            await polled(front, consumer, 5)
            assert await front.metric("pull_failures_total") == 0
            assert await reason(front, 1) == "named"


async def test_a_source_that_fails_two_consumers_is_nobodys() -> None:
    wait = {"breaker": {"cooldown": 60.0, "max_cooldown": 60.0}}
    async with simulated(4, profile=PATIENT) as (one, two, three, holder):
        entries = *(spec(pod, **COMPUTES) for pod in (one, two, three)), spec(holder)
        async with served(*entries, holder=holder, p2p=wait) as front:
            holder.stall()
            for salt in range(8):  # to one consumer or another
                await streamed(front, salt)
            assert (holder.url, None, "consumers") in await breakers(front)
            assert await front.metric("pull_breakers_open", of="source") == 1
            assert await front.metric("watchdog_fired_total") == 2
            assert await reason(front, 9) == "breaker"


async def test_who_knew_a_source_before_it_restarted_is_tried_before_a_request_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.trials._PULL_S", 0.3)
    async with pair(p2p={"probe": True}) as (front, consumer, holder):
        await streamed(front, 0, stream_options={"include_usage": True})
        tried = await front.metric("pull_trials_total", result="ok")
        costs, ranks = front.parts.pods.costs, ((holder.url, 0), (consumer.url, 0))
        costs.pulled(*ranks, Pull(1.0, 192.0, 0.0, 0.0), 0.1, front.parts.pods.clock())
        await holder.restart()
        await until(lambda: not costs.met(*ranks))

        async def made() -> bool:
            return await front.metric("pull_trials_total", result="ok") == tried + 1

        await until(made)
        assert costs.met(*ranks)  # and no request is expected to wait for a connection
        assert costs.met(*ranks)  # and no request is expected to wait for a connection
        await warm(holder, ids(200, 1))
        await until(lambda: is_named(front, 1))
        assert (await streamed(front, 1)).source == holder.url
        assert await front.metric("watchdog_fired_total") == 0


async def test_so_is_one_of_which_pulls_had_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its consumer may be as it was; that it is another process now is no reason to make a request pay again."""
    monkeypatch.setattr("gateway.trials._PULL_S", 0.3)
    wait = {"breaker": {"cooldown": 60.0, "max_cooldown": 60.0}}
    async with pair(p2p={"probe": True, **wait}) as (front, _, holder):
        holder.stall()
        await streamed(front, 0)
        assert await front.metric("watchdog_fired_total") == 1
        holder.resume()
        tried = await front.metric("pull_trials_total", result="ok")
        await holder.restart()

        async def made() -> bool:
            return await front.metric("pull_trials_total", result="ok") == tried + 1

        await until(made)
        await warm(holder, ids(200, 1))
        await until(lambda: is_named(front, 1))
        assert (await streamed(front, 1)).source == holder.url
        assert await front.metric("watchdog_fired_total") == 1


async def test_a_source_that_no_longer_holds_what_it_is_believed_to_costs_nothing_but_the_pull() -> None:
    small = msgspec.structs.replace(PATIENT, gpu_blocks=64, cpu_blocks=64, max_model_len=1024)
    async with simulated(profile=PATIENT) as (consumer,), simulated(profile=small) as (holder,):
        wait = {"breaker": {"cooldown": 60.0, "max_cooldown": 60.0}}
        async with served(spec(consumer, **COMPUTES), spec(holder), holder=holder, p2p=wait) as front:
            await until(lambda: is_named(front, 9))
            holder.drop_events(1000)
            for salt in range(10, 20):  # what it held so far falls out, and nobody hears of it
                await warm(holder, ids(200, salt))
            answer = await front.complete(ids(200, 9))
            assert (answer.source, answer.cached) == (holder.url, 0)
            assert await breakers(front) == [(holder.url, consumer.url, "nothing")]
            assert await reason(front, 8) == "breaker"


async def test_what_becomes_of_pulls_of_pods_that_are_gone_is_not_kept(tmp_path: Path) -> None:
    async with simulated(2, profile=PATIENT) as (consumer, holder):
        entries = [spec(consumer, **COMPUTES), spec(holder)]
        async with reloadable(entries, tmp_path / "gateway.yaml", **HEALTH) as found:
            front = found.front
            assert await found.reload(entries[:1], **HEALTH) == "ok"
            fail(front, holder, consumer)
            assert await breakers(front) == []
            front.parts.fleet._pulls.succeeded(Pair((holder.url, 0), (consumer.url, 0)))
            assert not front.parts.fleet._pulls._met


async def test_who_wants_a_pod_polled_again_and_again_has_it_polled_a_few_times_a_second() -> None:
    async with scripted() as pod, serving([pod], poll={"interval": 10.0}) as front:
        before = await front.metric("polls_total", pod=name(pod))
        deadline = asyncio.get_running_loop().time() + 1.0
        while asyncio.get_running_loop().time() < deadline:
            front.parts.pods[name(pod)].wake.set()
            await asyncio.sleep(0.005)
        assert 1 <= await front.metric("polls_total", pod=name(pod)) - before <= 6


async def test_a_changed_configuration_is_in_force_for_ports_breakers_and_deadlines(tmp_path: Path) -> None:
    async with simulated(2, profile=PATIENT) as (consumer, holder):
        entries = [spec(consumer, **COMPUTES), spec(holder, p2p="127.0.0.1:1")]
        async with reloadable(entries, tmp_path / "gateway.yaml", **HEALTH) as found:
            front = found.front
            await warm(holder, ids(200))
            await front.settled(holder)

            async def deaf() -> bool:
                return await reason(front, 0) == "breaker"

            await until(deaf)
            p2p = {**HEALTH["p2p"], "port_probe_interval": None, "first_byte_deadline": None}
            assert await found.reload(entries, p2p=p2p) == "ok"
            assert await reason(front, 0) == "named"
            looked = await front.metric("port_probes_total")
            assert (await streamed(front, 0)).source == holder.url
            assert await front.metric("port_probes_total") == looked
            entries[1] = spec(holder)
            assert await found.reload(entries, p2p=HEALTH["p2p"]) == "ok"

            async def looks() -> bool:
                return await front.metric("port_probes_total", pod=name(holder), result="listening") > 0

            await until(looks)


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_a_pull_between_two_ranks_of_one_pod_that_is_late_goes_again_there() -> None:
    sections = {**HEALTH, "placement": {"scorers": []}}
    async with (
        simulated(profile=PATIENT, ranks=2) as (pod,),
        serving([spec(pod, data_parallel_size=2)], **sections) as front,
    ):
        url, rank_1 = f"{pod.url}/v1/completions", {"x-data-parallel-rank": "1"}
        async with front.http.post(url, json=text_body(ids(200)), headers=rank_1) as warmed:
            assert warmed.status == 200
        await front.settled(pod)
        told = await front.explain(ids(200))
        assert (told["chosen_rank"], told["source"]["rank"]) == (0, 1)
        pod.engines[1].stall()
        assert (await streamed(front, 0)).source is None
        sent = [(request.rank, "kv_transfer_params" in request.json) for request in completions(pod)]
        assert sent == [(1, False), (0, True), (0, False)]
