"""Peers whose pulls fail are not named, each time for longer; what works again is named again by itself."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from gateway.errors import PodTimeout
from gateway.pairs import Pair, Pairs
from gateway.ports import connect
from gateway.trials import Trials
from loadgen.pod import SimulatedPod
from scorers import Pull
from tests.gateway.fleet import (
    DEADLINE_S,
    MODEL,
    SMALL,
    Answer,
    Front,
    completions,
    ids,
    serving,
    simulated,
    spec,
    text_body,
    until,
    warm,
)
from tests.gateway.reloading import reloadable
from tests.gateway.scripted import says, scripted

PATIENT = msgspec.structs.replace(
    SMALL, pull_handshake_deadline_s=60.0, pull_lookup_deadline_s=60.0, pull_fetch_deadline_s=60.0
)
COMPUTES = {"labels": {"does": "compute"}}  # whoever holds what
PULLING: dict[str, Any] = {
    "placement": {"scorers": [], "filters": [{"type": "label", "key": "does", "values": ["compute"]}]},
    "p2p": {
        "deadline_floor": 0.2,
        "deadline_cap": 0.4,
        "port_probe_interval": 0.1,
        "breaker": {"cooldown": 0.2, "max_cooldown": 0.4},
    },
    "poll": {"interval": 0.05},
}
PROMPTS = range(10)


def name(pod: Any) -> str:
    return str(pod.url.removeprefix("http://"))


@asynccontextmanager
async def served(*entries: Any, holder: SimulatedPod, **sections: Any) -> AsyncIterator[Front]:
    sections = {**PULLING, **{key: {**PULLING.get(key, {}), **value} for key, value in sections.items()}}
    async with serving(entries, **sections) as front:
        for salt in PROMPTS:
            await warm(holder, ids(200, salt))
        await front.settled(holder)
        yield front


@asynccontextmanager
async def pair(**sections: Any) -> AsyncIterator[tuple[Front, SimulatedPod, SimulatedPod]]:
    """A consumer, which is always chosen, and a peer that holds some prompts."""
    async with (
        simulated(2, profile=PATIENT) as (consumer, holder),
        served(spec(consumer, **COMPUTES), spec(holder), holder=holder, **sections) as front,
    ):
        yield front, consumer, holder


async def reason(front: Front, salt: int) -> str:
    return str((await front.explain(ids(200, salt)))["source_reason"])


async def streamed(front: Front, salt: int, **fields: Any) -> Answer:
    return await front.complete(ids(200, salt), stream=True, **fields)


async def breakers(front: Front) -> list[tuple[str, str | None, str]]:
    rows = (await front.get("/pods")).json["breakers"]
    return [(row["source"], row["consumer"], row["reason"]) for row in rows]


def fail(front: Front, source: Any, consumer: Any) -> None:
    """As if a pull had been late."""
    front.parts.fleet._pulls.tried(Pair((source.url, 0), (consumer.url, 0)), "late")


async def is_named(front: Front, salt: int) -> bool:
    return await reason(front, salt) == "named"


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


async def polled(front: Front, pod: SimulatedPod, times: int) -> None:
    """Return when it has been, so often."""
    before = await front.metric("polls_total", pod=name(pod), result="ok")

    async def enough() -> bool:
        return await front.metric("polls_total", pod=name(pod), result="ok") >= before + times

    await until(enough)


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


async def test_a_pod_that_does_not_listen_where_it_serves_pulls_is_no_source_until_it_does() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        async with simulated(2, profile=PATIENT) as (consumer, holder):
            entries = spec(consumer, **COMPUTES), spec(holder, p2p=f"127.0.0.1:{port}")
            async with served(*entries, holder=holder) as front:

                async def shut() -> bool:
                    return await front.metric("pod_p2p_port_closed", pod=name(holder)) == 1

                await until(shut)
                assert await reason(front, 0) == "breaker"
                assert (await streamed(front, 0)).source is None
                assert await breakers(front) == [(holder.url, None, "port")]
                assert await front.metric("pod_p2p_port_closed", pod=name(consumer)) == 0
                assert await front.metric("watchdog_fired_total") == 0
                closed.listen()
                await until(lambda: is_named(front, 1))
                assert await front.metric("port_probes_total", pod=name(holder), result="refused") > 0


async def test_ports_are_not_looked_at_where_that_is_not_wanted() -> None:
    async with simulated(2, profile=PATIENT) as (consumer, holder):
        entries = spec(consumer, **COMPUTES), spec(holder, p2p="127.0.0.1:1")
        async with served(*entries, holder=holder, p2p={"port_probe_interval": None}) as front:
            assert await reason(front, 0) == "named"
            assert await front.metric("port_probes_total") == 0


@pytest.mark.parametrize("different", [{"root": "/models/other"}, {"seed": "1"}], ids=["model path", "seed"])
async def test_pods_that_can_never_pull_from_each_other_are_not_paired(different: dict[str, Any]) -> None:
    async with simulated(profile=PATIENT) as (consumer,), simulated(profile=PATIENT, **different) as (holder,):
        entries = spec(consumer, **COMPUTES), spec(holder)
        async with served(*entries, holder=holder, p2p={"probe": True}) as front:

            async def differ() -> bool:
                return await reason(front, 0) == "differ"

            await until(differ)
            answer = await front.complete(ids(200))
            assert (answer.source, answer.cached) == (None, 0)
            assert await front.metric("pulls_total", outcome="differ") == 1
            assert await front.metric("pod_disagreements", pod=name(consumer)) == 1


async def test_what_pods_say_of_themselves_is_compared_where_they_say_it() -> None:
    async with scripted() as one, scripted() as other, scripted() as silent:
        one.scripts["/kv/identity"] = says({"dtype": "bfloat16", "tensor_parallel": 2, "p2p_tier": None})
        other.scripts["/kv/identity"] = says({"dtype": "float16", "tensor_parallel": 2, "p2p_tier": "x"})
        other.scripts["/version"] = says({"version": "0.32.1"})
        silent.scripts["/version"] = says({"version": "0.33.0+cpu"})
        async with serving([one, other, silent]) as front:

            async def known() -> bool:
                return await front.metric("identities_total", result="ok") == 3

            await until(known)
            rows = await front.pods()
            assert rows[one.url]["cannot_pull_from"] == {name(other): "dtype"}
            assert rows[other.url]["cannot_pull_from"] == {name(one): "dtype", name(silent): "version"}


async def test_a_pod_that_cannot_say_what_it_is_serves_all_the_same() -> None:
    async with scripted(completions=says({"ok": True})) as pod:
        pod.scripts["/kv/identity"] = says({"detail": "no"}, 500)
        async with serving([pod]) as front:

            async def failed() -> bool:
                return await front.metric("identities_total", pod=name(pod), result="pod_unavailable") == 1

            await until(failed)
            assert (await front.post("/v1/completions", {"model": MODEL, "prompt": [1]})).status == 200


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
            assert await is_named(front, 9)
            holder.drop_events(1000)
            for salt in range(10, 20):  # what it held so far falls out, and nobody hears of it
                await warm(holder, ids(200, salt))
            answer = await front.complete(ids(200, 9))
            assert (answer.source, answer.cached) == (holder.url, 0)
            assert await breakers(front) == [(holder.url, consumer.url, "nothing")]
            assert await reason(front, 8) == "breaker"


async def test_what_listens_there_takes_no_harm_from_being_looked_at() -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        for _ in range(50):
            assert await connect("127.0.0.1", port) == "listening"
        with context.socket(zmq.DEALER) as dealer:
            dealer.connect(f"tcp://127.0.0.1:{port}")
            await dealer.send(b"hello")
            async with asyncio.timeout(DEADLINE_S):
                peer, said = await router.recv_multipart()
                await router.send_multipart([peer, b"well"])
                assert (said, await dealer.recv()) == (b"hello", b"well")
            dealer.linger = router.linger = 0
    assert await connect("127.0.0.1", port) == "refused"
    assert await connect("no.such.host.invalid", 1) == "unreachable"


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


async def test_what_becomes_of_pulls_of_pods_that_are_gone_is_not_kept(tmp_path: Path) -> None:
    async with simulated(2, profile=PATIENT) as (consumer, holder):
        entries = [spec(consumer, **COMPUTES), spec(holder)]
        async with reloadable(entries, tmp_path / "gateway.yaml", **PULLING) as found:
            front = found.front
            assert await found.reload(entries[:1], **PULLING) == "ok"
            fail(front, holder, consumer)
            assert await breakers(front) == []
            front.parts.fleet._pulls.succeeded(Pair((holder.url, 0), (consumer.url, 0)))
            assert not front.parts.fleet._pulls._met


async def test_where_pulls_are_switched_off_nobody_is_tried(tmp_path: Path) -> None:
    async with simulated(2, profile=PATIENT) as (consumer, holder):
        entries = [spec(consumer, **COMPUTES), spec(holder)]
        p2p = {**PULLING["p2p"], "probe": True}
        async with reloadable(entries, tmp_path / "gateway.yaml", **{**PULLING, "p2p": p2p}) as found:
            front = found.front
            holder.stall()
            fail(front, holder, consumer)
            assert len(await breakers(front)) == 1
            assert await found.reload(entries, **{**PULLING, "p2p": {**p2p, "enabled": False}}) == "ok"
            assert await breakers(front) == []
            holder.resume()


async def test_who_wants_a_pod_polled_again_and_again_has_it_polled_a_few_times_a_second() -> None:
    async with scripted() as pod, serving([pod], poll={"interval": 10.0}) as front:
        before = await front.metric("polls_total", pod=name(pod))
        deadline = asyncio.get_running_loop().time() + 1.0
        while asyncio.get_running_loop().time() < deadline:
            front.parts.pods[name(pod)].wake.set()
            await asyncio.sleep(0.005)
        assert 1 <= await front.metric("polls_total", pod=name(pod)) - before <= 6


async def test_a_name_with_several_addresses_is_refused_where_each_of_them_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def several(_: str, __: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr("gateway.ports._addresses", several)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        assert await connect("several.invalid", port) == "refused"
        closed.listen()
        assert await connect("several.invalid", port) == "listening"


async def test_where_there_can_be_no_port_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert await connect("127.0.0.1", 65536 + other.getsockname()[1]) == "refused"


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


async def test_a_changed_configuration_is_in_force_for_ports_breakers_and_deadlines(tmp_path: Path) -> None:
    async with simulated(2, profile=PATIENT) as (consumer, holder):
        entries = [spec(consumer, **COMPUTES), spec(holder, p2p="127.0.0.1:1")]
        async with reloadable(entries, tmp_path / "gateway.yaml", **PULLING) as found:
            front = found.front
            await warm(holder, ids(200))
            await front.settled(holder)

            async def deaf() -> bool:
                return await reason(front, 0) == "breaker"

            await until(deaf)
            p2p = {**PULLING["p2p"], "port_probe_interval": None, "first_byte_deadline": None}
            assert await found.reload(entries, p2p=p2p) == "ok"
            assert await reason(front, 0) == "named"
            looked = await front.metric("port_probes_total")
            assert (await streamed(front, 0)).source == holder.url
            assert await front.metric("port_probes_total") == looked
            entries[1] = spec(holder)
            assert await found.reload(entries, p2p=PULLING["p2p"]) == "ok"

            async def looks() -> bool:
                return await front.metric("port_probes_total", pod=name(holder), result="listening") > 0

            await until(looks)


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_a_pull_between_two_ranks_of_one_pod_that_is_late_goes_again_there() -> None:
    sections = {**PULLING, "placement": {"scorers": []}}
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
