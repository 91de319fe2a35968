"""Whether a request names a peer to pull from, and what comes of it, from the client's body to the pod's usage."""

import json
from typing import Any

import pytest

from tests.gateway.fleet import (
    MODEL,
    PREFIX_ONLY,
    QUEUE_ONLY,
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

pytestmark = pytest.mark.usefixtures("ties_go_to_the_first")

DELTA = 64
PULLING: dict[str, Any] = {"placement": QUEUE_ONLY, "p2p": {"min_cached_token_delta": DELTA}}


def name(pod: Any) -> str:
    return str(pod.url.removeprefix("http://"))


def params(pod: Any) -> Any:
    """The kv_transfer_params of the last completion at a pod."""
    return completions(pod)[-1].json.get("kv_transfer_params")


async def test_a_peer_that_leads_by_the_delta_is_named_and_pulled_from() -> None:
    async with fleet(2, **PULLING) as (front, (consumer, holder)):
        await warm(holder, ids(200))
        await front.settled(holder)
        told = await front.explain(ids(200))
        assert told["chosen"] == consumer.url
        assert told["source"] == {"pod": holder.url, "rank": 0, "cached_tokens": 192}
        assert (told["source_reason"], told["predicted_cached_tokens"]) == ("named", 192)
        answer = await front.complete(ids(200))
        assert (answer.pod, answer.source, answer.cached) == (consumer.url, holder.url, 192)
        source = params(consumer)["remote_kv_source"]
        assert (source["remote_host"], source["remote_port"]) == (holder.p2p_host, holder.p2p_port)
        assert set(source) == {"kv_request_id", "remote_host", "remote_port"}
        assert consumer.engines[0].scheduler.counts["cached p2p"] == 192
        assert await front.metric("pulls_total", outcome="named") == 1
        assert await front.metric("pulled_tokens_total", source=name(holder)) == 192
        assert await front.metric("ttft_seconds_count", pull="named") == 1


@pytest.mark.parametrize(("lead", "reason"), [(DELTA, "named"), (DELTA - 16, "below-floor")])
async def test_the_delta_is_the_least_lead(lead: int, reason: str) -> None:
    async with fleet(2, **PULLING) as (front, (consumer, holder)):
        await warm(holder, ids(200))
        await warm(consumer, ids(192 - lead))
        await front.settled(holder, consumer)
        told = await front.explain(ids(200))
        assert told["source_reason"] == reason
        answer = await front.complete(ids(200))
        assert answer.source == (holder.url if reason == "named" else None)
        assert (params(consumer) is not None) == (reason == "named")
        assert answer.cached == told["predicted_cached_tokens"] == (192 if reason == "named" else 192 - lead)


async def test_a_pod_that_holds_the_prefix_itself_names_nobody() -> None:
    async with fleet(2, placement=PREFIX_ONLY) as (front, (_, holder)):
        await warm(holder, ids(200))
        await front.settled(holder)
        assert (await front.explain(ids(200)))["source_reason"] == "self"
        answer = await front.complete(ids(200))
        assert (answer.pod, answer.source, answer.cached) == (holder.url, None, 192)
        assert await front.metric("pulls_total", outcome="self") == 1


async def test_a_prefix_that_nobody_holds_has_no_source() -> None:
    async with fleet(2, **PULLING) as (front, _):
        told = await front.explain(ids(200))
        assert (told["source"], told["source_reason"]) == (None, "no-holder")
        answer = await front.complete(ids(200))
        assert (answer.source, answer.cached) == (None, 0)
        assert await front.metric("pulls_total", outcome="no-holder") == 1


async def test_pulls_can_be_turned_off() -> None:
    async with fleet(2, placement=QUEUE_ONLY, p2p={"enabled": False}) as (front, (consumer, holder)):
        await warm(holder, ids(200))
        await front.settled(holder)
        assert (await front.explain(ids(200)))["source_reason"] == "disabled"
        answer = await front.complete(ids(200))
        assert (answer.pod, answer.source, params(consumer)) == (consumer.url, None, None)
        assert answer.cached == 0


@pytest.mark.parametrize("field", ["n", "best_of", "use_beam_search"])
async def test_a_request_for_several_sequences_never_names_a_source(field: str) -> None:
    async with fleet(2, **PULLING) as (front, (_, holder)):
        await warm(holder, ids(200))
        await front.settled(holder)
        value = True if field == "use_beam_search" else 2
        assert (await front.explain(ids(200), **{field: value}))["source_reason"] == "batch"
        assert (await front.explain(ids(200), **{field: 1 if value == 2 else False}))["source_reason"] == "named"


async def test_a_batch_never_names_a_source_and_is_placed_by_all_its_prompts() -> None:
    async with fleet(2, **PULLING) as (front, (consumer, holder)):
        await warm(holder, ids(200))
        await warm(holder, ids(100, salt=1))
        await front.settled(holder)
        prompts = [ids(200), ids(100, salt=1)]
        told = await front.explain(prompts)
        assert (told["source_reason"], told["tokens"]) == ("batch", 300)
        assert [each["cached_tokens"]["any"] for each in told["candidates"]] == [0, 288]
        answer = await front.complete(prompts)
        assert (answer.pod, answer.source, params(consumer)) == (consumer.url, None, None)


async def test_of_equal_holders_a_request_id_always_names_the_same() -> None:
    async with fleet(3, **PULLING) as (front, (_, one, two)):
        for holder in (one, two):
            await warm(holder, ids(200))
        await front.settled(one, two)
        named: dict[str, Any] = {}
        for number in range(12):
            for _ in range(2):
                told = await front.post("/explain", text_body(ids(200)), {"x-request-id": str(number)})
                source = told.json["source"]["pod"]
                assert named.setdefault(str(number), source) == source
        assert set(named.values()) == {one.url, two.url}


async def test_only_what_the_cpu_tier_holds_can_be_pulled() -> None:
    async with fleet(2, pod={"offload_prompt_only": True}, **PULLING) as (front, (_, holder)):
        sent = text_body(ids(40), max_tokens=200, return_token_ids=True)
        async with front.http.post(f"{holder.url}/v1/completions", json=sent) as answer:
            generated = (await answer.json())["choices"][0]["token_ids"]

        async def announced() -> bool:
            return bool((await front.row(holder))["cached_blocks"] == {"gpu": 14, "cpu": 2})

        await until(announced)
        told = await front.explain([*ids(40), *generated])
        assert told["candidates"][1]["cached_tokens"] == {"gpu": 224, "cpu": 32, "any": 224}
        assert told["source_reason"] == "below-floor"


async def test_the_port_of_the_configuration_is_named_where_the_pod_has_none() -> None:
    async with simulated() as (consumer,), simulated() as (holder,):
        entry = {"url": holder.url.replace("127.0.0.1", "localhost")}
        async with serving([spec(consumer), entry], placement=QUEUE_ONLY, p2p={"port": 7777}) as front:
            await warm(holder, ids(200))

            async def known() -> bool:
                return bool((await front.explain(ids(200)))["source_reason"] == "named")

            await until(known)
            answer = await front.complete(ids(200))
            assert answer.source == entry["url"]
            source = params(consumer)["remote_kv_source"]
            assert (source["remote_host"], source["remote_port"]) == ("localhost", 7777)
            assert answer.cached == 0  # nobody serves there: a pull that fails is a miss, not an error
            assert await front.metric("mispredicted_requests_total", direction="over") == 1


async def test_a_pod_without_an_address_of_its_own_is_no_source() -> None:
    async with simulated(2) as (consumer, holder), serving([{"url": consumer.url}, {"url": holder.url}]) as front:
        await warm(holder, ids(200))
        await front.settled(holder)
        assert (await front.explain(ids(200)))["source_reason"] == "no-holder"
        assert (await front.row(holder))["p2p"] is None


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_what_was_predicted_is_what_pods_report(stream: bool) -> None:
    async with fleet(2, **PULLING) as (front, (consumer, holder)):
        await warm(holder, ids(200))
        await front.settled(holder)
        foretold, reported = 0, 0
        for prompt in (ids(200), ids(200), ids(192), ids(150), ids(77, salt=1), ids(16), ids(1)):
            told = await front.explain(prompt)
            assert told["chosen"] == consumer.url
            foretold += told["predicted_cached_tokens"]
            body = text_body(prompt, max_tokens=3, stream=stream, stream_options={"include_usage": True})
            answer = await front.post("/v1/completions", body)
            assert answer.status == 200
            await front.settled(consumer)
            reported += completions(consumer)[-1].cached_tokens or 0
        assert foretold == reported > 0
        assert await front.metric("predicted_cached_tokens_total", pod=name(consumer)) == foretold
        assert await front.metric("reported_cached_tokens_total", pod=name(consumer)) == reported
        assert await front.metric("mispredicted_requests_total") == 0
        assert await front.metric("completion_tokens_total", pod=name(consumer)) == 21
        assert await front.metric("prompt_tokens_total", pod=name(consumer)) == 200 + 200 + 192 + 150 + 77 + 16 + 1


async def test_a_batch_is_not_compared_since_pods_report_one_of_its_sequences() -> None:
    async with fleet() as (front, (pod,)):
        for _ in range(2):
            await front.complete([ids(200), ids(100, salt=1)])
            await front.settled(pod)
        assert (await front.explain([ids(200), ids(100, salt=1)]))["predicted_cached_tokens"] == 288
        assert await front.metric("reported_cached_tokens_total") == 0
        assert await front.metric("mispredicted_requests_total") == 0
        assert await front.metric("prompt_tokens_total") == 600


async def test_a_pod_that_reports_no_details_is_not_compared() -> None:
    async with fleet(pod={"prompt_tokens_details": False}) as (front, (pod,)):
        await front.complete(ids(200))
        await front.settled(pod)
        await front.complete(ids(200))
        assert await front.metric("predicted_cached_tokens_total") == 0
        assert await front.metric("mispredicted_requests_total") == 0
        assert await front.metric("completion_tokens_total") == 2


async def test_a_chat_is_pulled_like_a_text() -> None:
    turns = [{"role": "user", "content": "Tell me a story. " * 20}]
    async with fleet(2, **PULLING) as (front, (consumer, holder)):
        body = {"model": MODEL, "messages": turns, "max_tokens": 4}
        async with front.http.post(f"{holder.url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
        await front.settled(holder)
        first = await front.post("/v1/chat/completions", body)
        assert (first.pod, first.source) == (consumer.url, holder.url)
        assert first.cached == first.json["usage"]["prompt_tokens"] // 16 * 16
        assert json.loads(completions(consumer)[-1].body)["messages"] == turns


async def test_a_source_that_is_gone_is_not_named_and_its_clients_wait_for_nobody() -> None:
    async with fleet(2, placement=PREFIX_ONLY, poll={"interval": 5.0}) as (front, (other, holder)):
        await warm(holder, ids(200))
        await front.settled(holder)
        assert (await front.complete(ids(200))).pod == holder.url
        await holder.kill()
        answer = await front.complete(ids(200))
        assert (answer.pod, answer.source, answer.cached) == (other.url, None, 0)
        assert float(await front.metric("request_duration_seconds_sum")) < 5.0

        async def forgotten() -> bool:
            row = await front.row(holder)
            return (row["state"], row["cached_blocks"]) == ("down", {"gpu": 0, "cpu": 0})

        await until(forgotten)
        assert (await front.row(holder))["certain"] is False
        told = await front.explain(ids(200, salt=9))
        assert [each["pod"] for each in told["candidates"]] == [other.url]
        assert other.engines[0].scheduler.counts["cached p2p"] == 0


async def test_a_source_that_returns_starts_from_nothing_and_can_be_named_again() -> None:
    async with fleet(2, **PULLING) as (front, (_, holder)):
        await warm(holder, ids(200))
        await front.settled(holder)
        assert (await front.explain(ids(200)))["source_reason"] == "named"
        await holder.kill()

        async def unnamed() -> bool:
            return bool((await front.explain(ids(200)))["source_reason"] == "no-holder")

        await until(unnamed)
        await holder.restart()
        await front.until_ready(2)
        assert (await front.explain(ids(200)))["source_reason"] == "no-holder"
        await warm(holder, ids(200))
        await front.settled(holder)
        assert (await front.row(holder))["last_seq"] == holder.next_seq() - 1 < 3

        async def named() -> bool:  # its port is looked at again first
            return bool((await front.explain(ids(200)))["source_reason"] == "named")

        await until(named)
        answer = await front.complete(ids(200))
        assert (answer.source, answer.cached) == (holder.url, 192)


async def test_a_request_under_way_when_its_source_dies_is_answered_all_the_same() -> None:
    async with fleet(2, **PULLING) as (front, (consumer, holder)), connection(front) as (reader, writer):
        await warm(holder, ids(200))
        await front.settled(holder)
        holder.stall()
        writer.write(posted(text_body(ids(200))))
        await until(lambda: bool(completions(consumer)))
        assert params(consumer) is not None
        await until(lambda: bool(consumer.engines[0].scheduler.loading))
        await holder.kill()
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
        await front.idle()
