"""What transfers take that go on at the same time, in virtual time and to the millisecond."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import aiohttp
import msgspec
import pytest

from loadgen.pod import SimulatedPod
from loadgen.profile import PodProfile
from tests.loadgen.clients import cached, complete
from tests.loadgen.virtual import in_virtual_time, now

TOKENS = 1600
# Nothing takes time but the link: 100 ms for TOKENS.
LINK_ONLY = PodProfile(
    request_fixed_ms=0.0,
    step_fixed_ms=0.0,
    prefill_us_per_token=0.0,
    decode_ms=0.0,
    pull_fixed_ms=0.0,
    kv_bytes_per_token=1,
    pull_us_per_token=100_000 / TOKENS,
)
ALONE_S = 0.1


class Fleet(NamedTuple):
    """Pods, and a way to have one pull what another holds: ``pull(consumer, source, which)`` returns what it took."""

    pods: list[SimulatedPod]
    pull: Callable[[int, int, int], Awaitable[float]]


@asynccontextmanager
async def fleet(*profiles: PodProfile) -> AsyncIterator[Fleet]:
    """Pods that each hold two prompts of their own, known to their peers."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        pods = [await stack.enter_async_context(SimulatedPod(profile=profile)) for profile in profiles]

        def prompt(pod: int, which: int) -> list[int]:
            return [1000 + 10 * pod + which] * TOKENS

        async def pull(consumer: int, source: int, which: int = 0) -> float:
            began = now()
            params = pods[source].kv_source("id")
            answer = await complete(http, pods[consumer], prompt(source, which), kv_transfer_params=params)
            assert cached(answer) == TOKENS
            return now() - began

        for number, pod in enumerate(pods):
            for which in range(2):
                await complete(http, pod, prompt(number, which))
        yield Fleet(pods, pull)


def took(*pulls: tuple[int, int, int], profiles: tuple[PodProfile, ...] = (LINK_ONLY,) * 3) -> list[float]:
    """Return how long these pulls took, begun at once: consumer, source, which."""

    async def measured() -> list[float]:
        async with fleet(*profiles) as pods:
            return list(await asyncio.gather(*(pods.pull(*pull) for pull in pulls)))

    return in_virtual_time(measured())


def about(seconds: float) -> object:
    return pytest.approx(seconds, rel=0.02)


def test_a_pull_alone_has_the_whole_link() -> None:
    assert took((1, 0, 0)) == [about(ALONE_S)]


def test_pulls_from_one_source_share_its_outgoing_link() -> None:
    assert took((1, 0, 0), (2, 0, 1)) == [about(2 * ALONE_S)] * 2


def test_pulls_of_one_consumer_share_its_incoming_link() -> None:
    assert took((2, 0, 0), (2, 1, 0)) == [about(2 * ALONE_S)] * 2


def test_both_directions_of_a_link_are_there_at_once() -> None:
    assert took((1, 0, 0), (0, 1, 0)) == [about(ALONE_S)] * 2


def test_the_slower_of_both_links_decides() -> None:
    slow = msgspec.structs.replace(LINK_ONLY, pull_us_per_token=5 * LINK_ONLY.pull_us_per_token)
    assert took((1, 0, 0), profiles=(slow, LINK_ONLY)) == [about(5 * ALONE_S)]
    assert took((1, 0, 0), profiles=(LINK_ONLY, slow)) == [about(5 * ALONE_S)]


def test_the_tighter_share_decides() -> None:
    # Pod 0 sends two and pod 2 receives two: each of the three is one of either, or of both.
    assert took((2, 0, 0), (2, 1, 0), (1, 0, 1)) == [about(2 * ALONE_S)] * 3


def test_who_comes_later_shares_what_is_left() -> None:
    async def measured() -> tuple[float, float]:
        async with fleet(*(LINK_ONLY,) * 3) as pods:
            first = asyncio.ensure_future(pods.pull(1, 0, 0))
            await asyncio.sleep(ALONE_S / 2)
            later = await pods.pull(2, 0, 1)
            return await first, later

    # Half alone, the other half at half the rate; then the later one is alone for as much as is left of it.
    first, later = in_virtual_time(measured())
    assert first == pytest.approx(1.5 * ALONE_S, rel=0.2)
    assert later == pytest.approx(1.5 * ALONE_S, rel=0.2)


@pytest.mark.parametrize("slow", [0, 1], ids=["the source's", "the consumer's"])
def test_a_slow_link_slows_pulls_until_its_time_is_over(slow: int) -> None:
    async def measured() -> list[float]:
        async with fleet(LINK_ONLY, LINK_ONLY) as pods:
            pods.pods[slow].slow_link(3.0, seconds=2 * ALONE_S)
            times = [await pods.pull(1, 0, 0)]
            return [*times, await pods.pull(1, 0, 1)]

    # The fault ends when two thirds are through.
    during, after = in_virtual_time(measured())
    assert during == pytest.approx((2 + 1 / 3) * ALONE_S, rel=0.2)
    assert after == about(ALONE_S)


def test_a_busy_source_answers_between_its_steps() -> None:
    busy = msgspec.structs.replace(LINK_ONLY, decode_ms=200.0)

    async def measured() -> float:
        async with fleet(busy, LINK_ONLY) as pods, aiohttp.ClientSession() as http:
            decoding = asyncio.ensure_future(complete(http, pods.pods[0], [7], max_tokens=1000))
            await asyncio.sleep(0.01)
            pulled = await pods.pull(1, 0, 0)
            decoding.cancel()
            return pulled

    # The rest of one step until it says hello, and one more each for lookup and fetch.
    assert in_virtual_time(measured()) == pytest.approx(0.19 + 2 * 0.2 + ALONE_S, abs=0.02)


def test_decodes_hold_up_others_by_the_length_of_their_context() -> None:
    profile = msgspec.structs.replace(LINK_ONLY, decode_us_per_kilotoken_context=1000.0, token_budget=1001)

    async def ttft_beside(context: int) -> float:
        async with SimulatedPod(profile=profile) as pod, aiohttp.ClientSession() as http:
            decoding = asyncio.ensure_future(complete(http, pod, [7] * context, max_tokens=1000))
            await asyncio.sleep(0.5)
            began = now()
            await complete(http, pod, [8] * 10_000)
            decoding.cancel()
            return now() - began

    # Ten steps beside a decode that takes a microsecond per token of its context, which grows by one a step.
    short, long = (in_virtual_time(ttft_beside(context)) for context in (1000, 16_000))
    assert short == pytest.approx(10 * 1.5e-3, rel=0.3)
    assert long == pytest.approx(10 * 16e-3, rel=0.1)
