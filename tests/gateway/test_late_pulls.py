"""A pull may hang, and a request may not: it is taken back from its pod and goes again without a source, once."""

import asyncio
import random
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gateway.decision import Decision
from gateway.pairs import Pair
from gateway.tokens import TokenIds
from loadgen.pod import SimulatedPod
from loadgen.profile import PodProfile
from tests.gateway.fleet import (
    BLOCK,
    MODEL,
    Answer,
    Front,
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
from tests.gateway.pulling import CAP_S, COMPUTES, FLOOR_S, PATIENT, PULLING, merged

SOON_S = CAP_S + 5.0  # on a busy machine; an engine would have waited for a minute
WAYS = pytest.mark.parametrize("stream", [True, False], ids=["a stream", "in one piece"])


def sources(pod: SimulatedPod) -> list[bool]:
    """Of the completions at a pod, in order, whether they named a source."""
    return ["kv_transfer_params" in request.json for request in completions(pod)]


@asynccontextmanager
async def pair(
    profile: PodProfile = PATIENT, **sections: Any
) -> AsyncIterator[tuple[Front, SimulatedPod, SimulatedPod]]:
    """A consumer, which is always chosen, and a peer that holds two prompts."""
    async with (
        simulated(2, profile=profile) as (consumer, holder),
        serving([spec(consumer, **COMPUTES), spec(holder)], **merged(PULLING, sections)) as front,
    ):
        for salt in (0, 1, 2):
            await warm(holder, ids(200, salt))
        await front.settled(holder)
        yield front, consumer, holder


async def ask(front: Front, salt: int = 0, *, stream: bool, **fields: Any) -> tuple[Answer, float]:
    began = time.monotonic()
    body = text_body(ids(200, salt), stream=stream, max_tokens=4, **fields)
    answer = await front.post("/v1/completions", body)
    assert answer.status == 200, answer.body
    return answer, time.monotonic() - began


def text(answer: Answer) -> str:
    if answer.headers["content-type"].startswith("application/json"):
        return str(answer.json["choices"][0]["text"])
    events = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: {")]
    return "".join(choice["text"] for event in events for choice in msgspec.json.decode(event)["choices"])


async def expected_text() -> str:
    """What a pod that has computed everything itself answers."""
    async with simulated(profile=PATIENT) as (alone,), serving([alone]) as front:
        return text((await ask(front, stream=False))[0])


async def pulls_again(front: Front, salt: int) -> bool:
    return bool((await front.explain(ids(200, salt)))["source_reason"] == "named")


@WAYS
async def test_a_source_that_stands_still_costs_no_more_than_the_deadline_and_only_once(stream: bool) -> None:
    wanted = await expected_text()
    async with pair() as (front, consumer, holder):
        holder.stall()
        answer, seconds = await ask(front, stream=stream)
        assert (answer.pod, answer.source, text(answer)) == (consumer.url, None, wanted)
        assert FLOOR_S <= seconds < SOON_S
        assert sources(consumer) == [True, False]
        ids_sent = [request.headers["x-request-id"] for request in completions(consumer)]
        assert len(set(ids_sent)) == 2
        await until(lambda: completions(consumer)[0].outcome == "aborted")
        assert await front.metric("watchdog_fired_total", pod=name(consumer), source=name(holder)) == 1
        assert await front.metric("pull_failures_total", reason="late", source=name(holder)) == 1
        assert await front.metric("pulls_total", outcome="late") == 1
        assert await front.metric("requests_total", status="200", pod=name(consumer)) == 1
        assert await front.metric("retries_total") == 0

        told = await front.explain(ids(200, 1))
        assert (told["source"], told["source_reason"]) == (None, "breaker")
        answer, _ = await ask(front, 1, stream=stream)
        assert (answer.pod, answer.source) == (consumer.url, None)
        assert sources(consumer) == [True, False, False]
        assert await front.metric("pulls_total", outcome="breaker") == 1
        assert await front.metric("watchdog_fired_total") == 1
        await front.idle()
        holder.resume()


@WAYS
async def test_it_goes_again_as_a_prompt_that_shares_nothing_with_what_its_pod_still_waits_for(stream: bool) -> None:
    """An engine keeps whoever wants a block that a pull was to bring waiting, though the pull was given up."""
    async with pair() as (front, consumer, holder):
        holder.stall()
        await ask(front, stream=stream)
        first, again = (request.json for request in completions(consumer))
        assert "cache_salt" not in first
        salt = again.pop("cache_salt")
        del first["kv_transfer_params"]
        assert again == first

        # Whoever else wants these blocks does not wait either; who does not want them has no salt.
        longer = [*ids(200), *ids(100, 9)]
        await front.post("/v1/completions", text_body(longer, stream=stream, max_tokens=4))
        await ask(front, 1, stream=stream)
        *_, sharing, other = (request.json for request in completions(consumer))
        assert sharing["cache_salt"] not in ("", salt)
        assert "cache_salt" not in other
        assert await front.metric("detours_total", way="salt") == 2
        holder.resume()


async def test_who_wants_what_hangs_goes_to_another_pod_where_that_is_sooner() -> None:
    async with (
        simulated(3, profile=PATIENT) as (consumer, holder, third),
        serving([spec(consumer, **COMPUTES), spec(holder), spec(third)], **PULLING) as front,
    ):
        for pod in (holder, third):
            await warm(pod, ids(200))
            await front.settled(pod)
        for pod in (holder, third):
            pod.stall()
        asked = asyncio.create_task(ask(front, stream=True))
        await until(lambda: sources(consumer) == [True])
        named = completions(consumer)[0].json["kv_transfer_params"]["remote_kv_source"]
        free = third if named["remote_port"] == holder.p2p_port else holder
        free.resume()
        answer, _ = await asked
        assert answer.pod == free.url  # it has the prompt, and computes next to nothing
        assert "cache_salt" not in completions(free)[-1].json
        assert await front.metric("detours_total", way="other_pod") == 1
        for pod in (holder, third):
            pod.resume()


async def test_when_pulls_work_again_nothing_hangs_any_more() -> None:
    async with pair(p2p={"probe": True, "breaker": {"cooldown": 0.1}}) as (front, consumer, holder):
        holder.stall()
        await ask(front, stream=True)
        holder.resume()
        await until(lambda: pulls_again(front, 1))
        await ask(front, stream=True)
        assert "cache_salt" not in completions(consumer)[-1].json


@WAYS
async def test_a_half_open_session_costs_one_request_its_deadline(stream: bool) -> None:
    async with pair() as (front, consumer, holder):
        assert (await ask(front, stream=stream))[0].source == holder.url
        holder.stale_session()
        answer, seconds = await ask(front, 1, stream=stream)
        assert (answer.source, answer.pod) == (None, consumer.url)
        assert seconds < SOON_S
        await ask(front, 2, stream=stream)
        assert sources(consumer) == [True, True, False, False]
        assert await front.metric("watchdog_fired_total") == 1


async def test_a_source_that_dies_in_the_middle_of_a_pull_is_made_up_for() -> None:
    slow = msgspec.structs.replace(PATIENT, pull_us_per_token=1_000_000_000.0)
    async with (
        simulated(profile=PATIENT) as (consumer,),
        simulated(profile=slow) as (holder,),
        serving([spec(consumer, **COMPUTES), spec(holder)], **PULLING) as front,
    ):
        await warm(holder, ids(200))
        await front.settled(holder)
        asked = asyncio.create_task(ask(front, stream=True))
        await until(lambda: consumer.engines[0].scheduler.gpu.usage > 0)
        await holder.kill()
        answer, seconds = await asked
        assert (answer.pod, text(answer)) == (consumer.url, await expected_text())
        assert seconds < SOON_S


@WAYS
async def test_a_port_on_which_somebody_else_listens_hangs_one_request(stream: bool) -> None:
    connected: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: connected.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent, simulated(2, profile=PATIENT) as (consumer, holder):
        entries = [spec(consumer, **COMPUTES), spec(holder, p2p=f"127.0.0.1:{port}")]
        async with serving(entries, **PULLING) as front:
            for salt in (0, 1):
                await warm(holder, ids(200, salt))
            await front.settled(holder)
            answer, seconds = await ask(front, stream=stream)
            assert (answer.pod, answer.source) == (consumer.url, None)
            assert seconds < SOON_S
            await ask(front, 1, stream=stream)
            assert sources(consumer) == [True, False, False]
        for writer in connected:
            writer.close()


async def test_a_request_that_is_taken_back_does_not_go_to_the_source_that_is_stuck() -> None:
    # Whoever has less to do, and then whoever holds more.
    where = {"scorers": [{"type": "active-requests"}, {"type": "prefix", "weight": 0.9}], "filters": []}
    async with pair(placement=where) as (front, consumer, holder):
        holder.stall()
        busy = asyncio.create_task(ask(front, 1, stream=True))
        await until(lambda: completions(holder)[-1].outcome == "running")
        asked = asyncio.create_task(ask(front, stream=True))
        await until(lambda: sources(consumer) == [True])
        busy.cancel()
        answer, _ = await asked
        assert answer.pod == consumer.url
        assert sources(consumer) == [True, False]
        assert (await front.explain(ids(200, 2)))["chosen"] == holder.url


async def test_where_nobody_else_is_left_even_the_source_that_is_stuck_is_asked() -> None:
    async with pair(poll={"failures": 1}) as (front, consumer, holder):
        holder.stall()
        asked = asyncio.create_task(front.post("/v1/completions", text_body(ids(200), stream=True)))
        await until(lambda: sources(consumer) == [True])
        pod = front.parts.pods[name(consumer)]
        pod.state = "down"  # as when it stops being well just then
        await until(lambda: len(completions(holder)) == 4)
        holder.resume()
        answer = await asked
        assert (answer.status, answer.pod) == (200, holder.url)
        pod.state = "ready"


async def test_of_a_slow_fleet_no_more_is_doubled_than_the_budget_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.retries.FLOOR", 0.0)
    async with pair(limits={"retry_budget": 0.0}) as (front, consumer, holder):
        holder.stall()
        asked = asyncio.create_task(ask(front, stream=True))

        async def refused() -> bool:
            return await front.metric("watchdog_refused_total", reason="budget") == 1

        await until(refused)
        holder.resume()
        answer, _ = await asked
        assert (answer.source, sources(consumer)) == (holder.url, [True])


async def test_who_was_refused_goes_again_as_soon_as_the_budget_bears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.retries.FLOOR", 0.0)
    async with pair(limits={"retry_budget": 0.0}) as (front, consumer, holder):
        holder.stall()
        asked = asyncio.create_task(ask(front, stream=True))

        async def refused() -> bool:
            return await front.metric("watchdog_refused_total") == 1

        await until(refused)
        polls = await front.metric("polls_total", pod=name(consumer))

        async def asked_again() -> bool:
            return await front.metric("polls_total", pod=name(consumer)) > polls + 20

        await until(asked_again)
        assert not asked.done()
        assert await front.metric("watchdog_refused_total") == await front.metric("watchdog_fired_total") == 1
        monkeypatch.setattr("gateway.retries.FLOOR", 1.0)
        answer, _ = await asked
        assert (answer.source, sources(consumer)) == (None, [True, False])
        holder.resume()


async def test_pulls_that_are_late_leave_retries_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.retries.FLOOR", 1.0)
    async with pair(limits={"retry_budget": 0.0}) as (front, consumer, holder):
        holder.stall()
        await ask(front, stream=True)
        assert await front.metric("watchdog_fired_total") == 1
        holder.resume()
        consumer.fail_next(503)
        answer, _ = await ask(front, 1, stream=True)
        assert answer.pod == holder.url
        assert await front.metric("retries_total") == 1


async def test_nobody_is_sent_to_another_pod_that_waits_for_the_same_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is expected of it: it would hang there as well."""
    sooner_elsewhere = property(lambda decision: 0.5 if decision.salt is None else 1.0)
    async with (
        simulated(3, profile=PATIENT) as (one, other, holder),
        serving([spec(one, **COMPUTES), spec(other, **COMPUTES), spec(holder)], **PULLING) as front,
    ):
        monkeypatch.setattr(Decision, "predicted_s", sooner_elsewhere)
        await warm(holder, ids(200))
        await front.settled(holder)
        prompts = list(TokenIds("I", ids(200)).keys(MODEL, BLOCK, None))
        hanging, now = front.parts.fleet._pulls.hanging, front.parts.pods.clock()
        hanging.add(Pair((holder.url, 0), (one.url, 0)), [array("Q", prompts)], 0, now)
        await ask(front, stream=True)
        hanging.add(Pair((holder.url, 0), (other.url, 0)), [array("Q", prompts)], 0, now)
        salts = await front.metric("detours_total", way="salt")
        await ask(front, stream=True)
        assert await front.metric("detours_total", way="salt") == salts + 1


async def test_a_deadline_can_be_given_and_there_need_not_be_any() -> None:
    async with pair(p2p={"first_byte_deadline": 0.1, "deadline_floor": 3.0, "deadline_cap": 5.0}) as (front, _, holder):
        holder.stall()
        assert 0.1 <= (await ask(front, stream=True))[1] < 3.0
    async with pair(p2p={"first_byte_deadline": None}) as (front, consumer, holder):
        holder.stall()
        asked = asyncio.create_task(ask(front, stream=True))
        await until(lambda: len(completions(consumer)) == 1)
        await asyncio.wait([asked], timeout=2 * CAP_S)
        assert not asked.done()
        holder.resume()
        assert (await asked)[0].source == holder.url


async def test_an_answer_in_one_piece_that_is_merely_long_is_left_alone() -> None:
    slow = msgspec.structs.replace(PATIENT, decode_ms=50.0 * 20)  # 20 ms a token
    async with pair(slow) as (front, consumer, holder):
        began = time.monotonic()
        answer = await front.complete(ids(200), max_tokens=60)
        assert time.monotonic() - began > 2 * CAP_S
        assert (answer.source, answer.cached) == (holder.url, 192)
        assert sources(consumer) == [True]
        assert await front.metric("watchdog_fired_total") == 0


@WAYS
async def test_a_request_that_waits_for_its_turn_is_not_doubled(stream: bool) -> None:
    # One at a time, each computed for 0.3 s.
    busy = msgspec.structs.replace(PATIENT, max_running=1, request_fixed_ms=300.0 * 50)
    async with pair(busy) as (front, consumer, holder):
        before = [
            asyncio.create_task(front.post("/v1/completions", text_body(ids(20, salt), stream=stream)))
            for salt in range(10, 16)
        ]
        await until(lambda: len(completions(consumer)) == len(before))
        asked = asyncio.create_task(ask(front, stream=stream))
        answer, seconds = await asked
        assert seconds > 2 * CAP_S
        assert await front.metric("watchdog_fired_total") == 0
        assert answer.source == holder.url
        for each in before:
            assert (await each).status == 200


async def test_while_sessions_break_at_random_nothing_is_lost_and_in_the_end_all_is_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for deadline in ("_COMPUTE_S", "_CONFIRM_S", "_PULL_S"):
        monkeypatch.setattr(f"gateway.trials.{deadline}", 0.5)
    draw = random.Random(7)
    sections: dict[str, Any] = {
        "placement": {"scorers": [], "picker": {"type": "random"}},
        "p2p": {
            "deadline_floor": 0.1,
            "deadline_cap": 0.2,
            "probe": True,
            "breaker": {"cooldown": 0.1, "max_cooldown": 0.4},
        },
        "limits": {"retry_budget": 1.0},
        "poll": {"interval": 0.05},
    }
    # Each holds half of the prompts at a time.
    small = msgspec.structs.replace(PATIENT, gpu_blocks=64, cpu_blocks=130, max_model_len=1024)
    async with simulated(3, profile=small) as pods, serving(pods, **sections) as front:
        wanted: dict[int, str] = {}
        for salt in range(20):
            wanted[salt] = text((await ask(front, salt, stream=False))[0])
        await front.settled(*pods)

        async def client() -> None:
            for _ in range(15):
                salt = draw.randrange(20)
                answer, _ = await ask(front, salt, stream=draw.random() < 0.5)
                assert text(answer) == wanted[salt]

        async def trouble() -> None:
            while True:
                draw.choice(pods).stale_session(0.3)
                await asyncio.sleep(0.1)

        troubled = asyncio.create_task(trouble())
        await asyncio.gather(*(client() for _ in range(12)))
        troubled.cancel()
        await front.idle()
        rows = (await front.pods()).values()
        assert [row["pulls"] for row in rows] == [row["serving"] for row in rows] == [0] * 3

        async def all_closed() -> bool:
            return not (await front.get("/pods")).json["breakers"]

        await until(all_closed)
        assert await front.metric("requests_total", status="200") == await front.metric("requests_total")
        assert await front.metric("watchdog_fired_total") > 0
        assert await front.metric("task_failures_total") == 0


async def test_the_access_log_says_whose_pull_was_late(tmp_path: Any) -> None:
    log = tmp_path / "access.log"
    async with pair(access_log={"path": str(log)}) as (front, _, holder):
        holder.stall()
        await ask(front, stream=True)
    lines = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    late = [line for line in lines if line["late_source"]]
    assert [(line["late_source"], line["source"], line["attempts"], line["source_reason"]) for line in late] == [
        (name(holder), None, 2, "late")
    ]
