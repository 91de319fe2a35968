"""A pod whose claims prove wrong is believed less, visibly, until they prove right again."""

from itertools import count
from typing import Any

import msgspec
import pytest

from loadgen.pod import SimulatedPod
from tests.gateway.fleet import BLOCK, PREFIX_ONLY, Front, fleet, ids, until, warm

pytestmark = pytest.mark.usefixtures("ties_go_to_the_first")

PROMPT = 200
HELD = PROMPT // BLOCK * BLOCK
LIES = 20


def claim(pod: SimulatedPod, prompt: list[int], salt: int) -> None:
    """Announce a prompt in both tiers that the pod does not hold."""
    stored: dict[str, Any] = {
        "type": "BlockStored",
        "block_hashes": [salt * 1_000_000 + block for block in range(HELD // BLOCK)],
        "parent_block_hash": None,
        "token_ids": prompt[:HELD],
        "block_size": BLOCK,
        "lora_id": None,
        "lora_name": None,
    }
    events = [{**stored, "medium": medium} for medium in ("GPU", "CPU")]
    pod.publish_payload(msgspec.msgpack.encode([0.0, events, 0]))


async def credit(front: Front, pod: SimulatedPod) -> float:
    return float((await front.row(pod))["credit"])


async def caught_lying(front: Front, pod: SimulatedPod) -> None:
    for salt in range(LIES):
        prompt = ids(PROMPT, salt=salt)
        claim(pod, prompt, salt)

        async def believed(prompt: list[int] = prompt) -> bool:
            return bool((await front.explain(prompt))["predicted_cached_tokens"] == HELD)

        await until(believed)
        assert (await front.complete(prompt)).cached == 0


async def test_claims_that_fail_cost_the_pod_its_prefix_credit() -> None:
    async with fleet(2, placement=PREFIX_ONLY) as (front, (pod, _)):
        assert await credit(front, pod) == 1.0
        assert (await front.row(pod))["accuracy"] is None
        await caught_lying(front, pod)
        row = await front.row(pod)
        assert row["accuracy"] == 0.0
        assert row["credit"] < 0.3
        name = pod.url.removeprefix("http://")
        assert await front.metric("pod_credit", pod=name) == pytest.approx(row["credit"], abs=0.05)
        assert await front.metric("mispredicted_requests_total", direction="over") == LIES
        claim(pod, ids(PROMPT, salt=500), 500)

        async def claimed() -> bool:
            return bool((await front.explain(ids(PROMPT, salt=500)))["candidates"][0]["cached_tokens"]["any"] == HELD)

        await until(claimed)
        candidate, _ = (await front.explain(ids(PROMPT, salt=500)))["candidates"]
        assert candidate["credit"] == pytest.approx(row["credit"], abs=0.05)
        assert candidate["scores"]["prefix"] < 0.3


async def test_a_pod_that_tells_the_truth_again_gets_its_credit_back() -> None:
    async with fleet() as (front, (pod,)):
        await caught_lying(front, pod)
        low = await credit(front, pod)
        prompt = ids(PROMPT, salt=900)
        await warm(pod, prompt)

        async def known() -> bool:
            return bool((await front.explain(prompt))["predicted_cached_tokens"] == HELD)

        await until(known)
        for _ in range(2 * LIES):
            assert (await front.complete(prompt)).cached == HELD
        assert await credit(front, pod) > low + 0.3


async def test_a_pod_that_is_not_believed_is_no_source_for_long_leads() -> None:
    pulling: dict[str, Any] = {
        "placement": {"scorers": [{"type": "queue"}]},
        "p2p": {"min_cached_token_delta": HELD // 2},
    }
    async with fleet(2, **pulling) as (front, (consumer, liar)):
        claim(liar, ids(PROMPT, salt=700), 700)

        async def reason() -> str:
            return str((await front.explain(ids(PROMPT, salt=700)))["source_reason"])

        async def named() -> bool:
            return await reason() == "named"

        await until(named)
        liar_stream = front.parts.pods[liar.url.removeprefix("http://")].streams[0]
        for number in range(LIES):
            liar_stream.trust.compared(HELD, 0, front.parts.pods.clock() + number)
        assert await reason() == "below-floor"
        assert (await front.complete(ids(PROMPT, salt=700))).pod == consumer.url


async def test_credit_fades_when_events_are_lost_for_good() -> None:
    async with fleet(pod={"replay": False}) as (front, (pod,)):
        salts = count()

        async def fading() -> bool:
            # Again and again: without a replay, what is announced before the gateway listens is not even missed.
            await warm(pod, ids(100, salt=next(salts)))
            pod.drop_events(1)
            await warm(pod, ids(100, salt=next(salts)))
            row = await front.row(pod)
            return not row["certain"] and 0.9 < row["credit"] < 1.0

        await until(fading)


async def test_a_pod_that_returns_is_believed_anew() -> None:
    async with fleet() as (front, (pod,)):
        await caught_lying(front, pod)
        await pod.restart()

        async def anew() -> bool:
            row = await front.row(pod)
            return bool(row["state"] == "ready" and row["credit"] == 1.0 and row["accuracy"] is None)

        await until(anew)
