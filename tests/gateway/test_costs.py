"""What a gateway learns of its pods' speed, over sockets: from which answers, how well, and what it expects then."""

from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.pod import SimulatedPod
from scorers import Prefill, Pull
from tests.gateway.fleet import (
    MODEL,
    SMALL,
    Front,
    completions,
    connection,
    fleet,
    ids,
    posted,
    serving,
    simulated,
    spec,
    text_body,
    until,
    warm,
)
from tests.gateway.reloading import reloadable
from tests.gateway.scripted import breaks_off, scripted

# Slow enough that what computing takes stands out from what a busy machine adds.
PACED = msgspec.structs.replace(
    SMALL, speed=1, prefill_us_per_token=100.0, decode_ms=1.0, pull_fixed_ms=20.0, pull_us_per_token=2.0
)
LENGTHS = (300, 600, 1200, 2400)
ROUNDS = 6


async def ask(front: Front, prompt: Any, *, stream: bool = True, **fields: Any) -> None:
    answer = await front.post("/v1/completions", text_body(prompt, stream=stream, **fields))
    assert answer.status == 200, answer.body


async def learned(front: Front, *, stream: bool = True) -> None:
    """Prompts of several lengths, none of which is cached."""
    for number in range(ROUNDS):
        for length in LENGTHS:
            await ask(front, ids(length, salt=number * 10_000 + length), stream=stream)


async def costs(front: Front, pod: SimulatedPod) -> dict[str, float]:
    (rank,) = (await front.row(pod))["ranks"]
    found: dict[str, float] = rank["costs"]
    return found


async def links(front: Front) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await front.get("/pods")).json["links"]
    return found


def answers_known(front: Front) -> float:
    """How many answers' worth is known of how answers slow each other."""
    table = front.parts.pods
    return float(table.costs.state(table.clock())["answer"].evidence)


async def test_streamed_requests_show_what_computing_costs_and_when_first_tokens_come() -> None:
    async with fleet(pod={"profile": PACED}) as (front, (pod,)):
        before = await costs(front, pod)
        assert before["samples"] == 0
        await learned(front)
        found = await costs(front, pod)
        assert before["prefill_us_per_token"] < 50 <= found["prefill_us_per_token"] <= 150
        assert found["samples"] > ROUNDS * len(LENGTHS) / 2
        told = await front.metric("prefill_seconds_per_token", pod=pod.url.removeprefix("http://"), rank="0")
        assert told * 1e6 == pytest.approx(found["prefill_us_per_token"], rel=0.01)

        for length in LENGTHS[1:]:
            (candidate,) = (await front.explain(ids(length, salt=77)))["candidates"]
            assert length * 0.05 < candidate["predicted_ttft_ms"] < length * 0.2
        await front.settled(pod)
        (held,) = (await front.explain(ids(2400, salt=2400)))["candidates"]
        assert held["cached_tokens"]["any"] >= 2384
        assert held["predicted_ttft_ms"] < 100

        assert await front.metric("ttft_error_ratio_count", pull="none") == ROUNDS * len(LENGTHS)
        assert answers_known(front) > ROUNDS


async def test_predictions_come_true_once_enough_is_known() -> None:
    async with fleet(pod={"profile": PACED}) as (front, _):
        await learned(front)
        before = await front.metric("ttft_error_ratio_sum")
        for number in range(8):
            await ask(front, ids(LENGTHS[number % 4], salt=60_000 + number))
        assert 0.6 < (await front.metric("ttft_error_ratio_sum") - before) / 8 < 1.6


CHAT = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "word " * 200}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", text_body(ids(400))),
        ("/v1/completions", text_body(ids(400), stream=False)),
        ("/v1/completions", text_body([ids(400), ids(400, salt=1)], stream=True)),
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", CHAT),
        ("/v1/responses", {"model": MODEL, "input": "word " * 200, "stream": True}),
        ("/v1/embeddings", {"model": MODEL, "input": "word " * 200, "stream": True}),
        ("/v1/score", {"model": MODEL, "query": "a", "documents": ["b"], "stream": True}),
    ],
    ids=["text", "said not to stream", "batch", "chat", "message", "streamed response", "embedding", "score"],
)
async def test_what_does_not_tell_when_the_first_token_came_teaches_nothing(path: str, body: Any) -> None:
    async with fleet() as (front, (pod,)):
        for _ in range(4):
            assert (await front.post(path, body)).status == 200
        await front.idle()
        assert (await costs(front, pod))["samples"] == 0
        assert await front.metric("ttft_error_ratio_count") == answers_known(front) == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_streamed_chat_teaches_like_a_text(path: str) -> None:
    async with fleet() as (front, (pod,)):
        for number in range(4):
            said = [{"role": "user", "content": f"{number} " + "word " * 200}]
            assert (await front.post(path, {**CHAT, "messages": said, "stream": True})).status == 200
        assert (await costs(front, pod))["samples"] > 0
        assert await front.metric("ttft_error_ratio_count") == 4
        assert answers_known(front) > 0


async def test_an_answer_that_does_not_end_whole_says_nothing_of_how_long_answers_take() -> None:
    first = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
    script = breaks_off(first, **{"content-type": "text/event-stream"})
    async with scripted(completions=script) as pod, serving([pod]) as front:
        async with front.http.post(f"{front.url}/v1/completions", json=text_body(ids(50), stream=True)) as answer:
            assert answer.status == 200
            with pytest.raises(Exception, match=r"payload|Connection"):
                await answer.read()
        await front.idle()
        assert answers_known(front) == 0


async def test_nor_does_one_whose_client_left() -> None:
    slow = msgspec.structs.replace(SMALL, speed=1, decode_ms=20)
    async with fleet(pod={"profile": slow}) as (front, (pod,)):
        async with connection(front) as (reader, writer):
            writer.write(posted(text_body(ids(50), stream=True, max_tokens=500)))
            assert b" 200 " in await reader.readuntil(b"\r\n")
            await reader.readuntil(b"data:")
        await until(lambda: completions(pod)[0].path != "" and pod.engines[0].running == 0)
        await front.idle()
        assert answers_known(front) == 0


@asynccontextmanager
async def pulling(**sections: Any) -> AsyncIterator[tuple[Front, SimulatedPod, SimulatedPod]]:
    """A gateway, the pod that computes everything, and one that it pulls from."""
    only = {"filters": [{"type": "label", "key": "computes", "values": ["yes"]}]}
    async with simulated(2, profile=PACED) as (consumer, holder):
        pods = [spec(consumer, labels={"computes": "yes"}), spec(holder)]
        async with serving(pods, placement=only, **sections) as front:
            yield front, consumer, holder


async def pull(front: Front, holder: SimulatedPod, prompt: list[int]) -> None:
    await warm(holder, prompt)
    await front.settled(holder)
    answer = await front.post("/v1/completions", text_body(prompt, stream=True))
    assert (answer.status, answer.source) == (200, holder.url)


async def test_pulls_show_what_they_cost_on_their_way() -> None:
    async with pulling() as (front, consumer, holder):
        assert await links(front) == []
        for number in range(4):
            await pull(front, holder, ids(1600, salt=900 + number))
        (row,) = await links(front)
        assert row.pop("fixed_ms") < 200
        assert row.pop("us_per_token") < PACED.prefill_us_per_token
        assert row.pop("samples") > 2
        assert row.pop("crossover_tokens") > 0
        there = {"source": holder.url, "source_rank": 0, "consumer": consumer.url, "consumer_rank": 0}
        assert row == {**there, "slowed": False}
        assert await front.metric("ttft_error_ratio_count", pull="named") == 4
        told = await front.explain(ids(1600, salt=900))
        assert [each["predicted_source"] for each in told["candidates"]] == [None, None]


async def test_by_default_costs_say_whether_a_prompt_is_pulled() -> None:
    default = {"source": {"type": "expected-ttft"}, "min_cached_token_delta": "auto"}
    async with pulling(p2p=default) as (front, consumer, holder):
        costs, pair = front.parts.pods.costs, ((holder.url, 0), (consumer.url, 0))
        computed, times = Prefill(1.0, 1600.0, 1600.0**2, 0.0), count(front.parts.pods.clock(), 1.0)
        for _ in range(50):
            costs.computed(pair[1], computed, 1.0, next(times))
        await pull(front, holder, ids(1600, salt=1))
        for _ in range(100):
            costs.pulled(*pair, Pull(1.0, 1600.0, 0.0, 0.0), 5.0, next(times))
        await warm(holder, ids(1600, salt=2))
        await front.settled(holder)
        told = await front.explain(ids(1600, salt=2))
        assert (told["source"], told["source_reason"]) == (None, "cost")
        answer = await front.post("/v1/completions", text_body(ids(1600, salt=2), stream=True))
        assert (answer.status, answer.source) == (200, None)


async def test_a_link_that_gets_slow_is_told_once_until_it_is_well_again(log: list[MutableMapping[str, Any]]) -> None:
    def told(level: str) -> list[Any]:
        return [entry for entry in log if entry["log_level"] == level and entry["event"].startswith("pulls ")]

    async with pulling() as (front, consumer, holder):
        table, pair = front.parts.pods, ((holder.url, 0), (consumer.url, 0))

        def take(seconds: float, pulls: int) -> None:
            for _ in range(pulls):  # each a while after the last: a fit that has enough does not take all of a burst
                table.costs.pulled(*pair, Pull(1.0, 16_384.0, 0.0, 0.0), seconds, next(times))

        def until_they_are(*, slow: bool) -> None:
            for _ in range(1000):
                take(1.0 if slow else 0.1, 1)
                if table.costs.slowed(*pair) == slow:
                    return take(1.0 if slow else 0.1, 5)  # and not by a hair
            raise AssertionError

        times = count(table.clock(), 1.0)
        take(0.1, 40)
        for number, slow in enumerate([False, True, True, False, True]):
            until_they_are(slow=slow)
            await pull(front, holder, ids(400, salt=number))
            await until(lambda slow=slow: is_slow(front, slow))
            assert len(await links(front)) == 1
        assert len(told("warning")) == 2
        assert len(told("info")) == 1
        assert told("warning")[0].items() >= {"source": holder.url, "consumer": consumer.url}.items()


async def is_slow(front: Front, links: int) -> bool:
    return await front.metric("slow_links") == links


async def test_of_a_pod_that_is_taken_out_nothing_is_kept(tmp_path: Path) -> None:
    async with simulated(2) as (one, two), reloadable([one, two], tmp_path / "gateway.yaml") as gateway:
        front = gateway.front
        costs = front.parts.pods.costs
        for pair in (((one.url, 0), (two.url, 0)), ((two.url, 0), (one.url, 0))):
            costs.pulled(*pair, Pull(1.0, 1000.0, 0.0, 0.0), 0.1, 1.0)
        assert len(await links(front)) == 2
        assert await gateway.reload([one]) == "ok"
        assert await links(front) == []


async def test_a_pod_that_was_gone_sets_up_its_connections_anew() -> None:
    async with fleet(2, poll={"interval": 0.05}) as (front, (one, two)):
        costs, pair = front.parts.pods.costs, ((one.url, 0), (two.url, 0))
        costs.pulled(*pair, Pull(1.0, 1000.0, 0.0, 0.0), 0.1, 1.0)
        assert costs.met(*pair)
        await two.kill()
        await until(lambda: not costs.met(*pair))
        assert len(await links(front)) == 1
