"""Requests of one pod that want the same blocks of a peer at once: the blocks move once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import msgspec
import pytest

from loadgen.pod import SimulatedPod
from loadgen.profile import PodProfile
from tests.loadgen.clients import cached, complete, until
from tests.loadgen.virtual import in_virtual_time, now

TOKENS = 1600
# A token takes 1 ms to compute, a pull of TOKENS 100 ms; nothing else takes time but what a test adds.
PROFILE = PodProfile(
    request_fixed_ms=0.0,
    step_fixed_ms=0.0,
    prefill_us_per_token=1_000.0,
    decode_ms=0.0,
    pull_fixed_ms=0.0,
    kv_bytes_per_token=1,
    pull_us_per_token=100_000 / TOKENS,
    token_budget=32_768,
)
PULL_S, TOKEN_S = 0.1, 0.001
PREFIX = list(range(TOKENS))


def tail(number: int, tokens: int = 8) -> list[int]:
    return [10_000 + number] * tokens


def about(seconds: float) -> object:
    return pytest.approx(seconds, rel=0.01)


class Scene:
    """Pods of which all but the last hold PREFIX; the last one is asked."""

    def __init__(self, http: aiohttp.ClientSession, pods: list[SimulatedPod]) -> None:
        self.http = http
        self.pods = pods
        self.consumer = pods[-1]

    async def ask(self, prompt: list[int], source: int | None = None, *, after: float = 0.0) -> tuple[int, float]:
        """Return what was reused, and what it took."""
        await asyncio.sleep(after)
        began = now()
        fields: dict[str, Any] = {}
        if source is not None:
            fields["kv_transfer_params"] = self.pods[source].kv_source("id")
        answer = await complete(self.http, self.consumer, prompt, **fields)
        return cached(answer), now() - began

    def moved(self) -> int:
        """Tokens that pulls have brought so far."""
        return self.consumer.engines[0].scheduler.counts["cached p2p"]


def played(scene: Callable[[Scene], Awaitable[None]], *profiles: PodProfile) -> None:
    """Let a scene happen in virtual time, after which the pod that was asked holds nothing back."""

    async def play() -> None:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession())
            pods = [
                await stack.enter_async_context(SimulatedPod(profile=profile))
                for profile in profiles or (PROFILE, PROFILE)
            ]
            for pod in pods[:-1]:
                await complete(http, pod, PREFIX)
            await scene(Scene(http, pods))
            engine = pods[-1].engines[0]
            await until(lambda: engine.scheduler.gpu.usage == 0.0)
            assert engine.waiting == engine.running == 0

    in_virtual_time(play())


def test_what_several_want_at_once_moves_once_and_all_reuse_it() -> None:
    async def scene(pods: Scene) -> None:
        answers = await asyncio.gather(*(pods.ask(PREFIX + tail(number), 0) for number in range(4)))
        assert [reused for reused, _ in answers] == [TOKENS] * 4
        # They go on in one step, which computes the tails of all four.
        assert [took for _, took in answers] == [about(PULL_S + 4 * 8 * TOKEN_S)] * 4
        assert pods.moved() == TOKENS

    played(scene)


def test_who_comes_while_it_moves_waits_for_the_rest_of_it() -> None:
    async def scene(pods: Scene) -> None:
        first, later = await asyncio.gather(
            pods.ask(PREFIX + tail(1), 0), pods.ask(PREFIX + tail(2), 0, after=PULL_S * 0.6)
        )
        assert (first[0], later[0]) == (TOKENS, TOKENS)
        assert first[1] == about(PULL_S + 16 * TOKEN_S)
        assert later[1] == about(PULL_S * 0.4 + 16 * TOKEN_S)
        assert pods.moved() == TOKENS

    played(scene)


def test_who_names_no_source_waits_for_what_is_on_its_way_too() -> None:
    async def scene(pods: Scene) -> None:
        _, later = await asyncio.gather(pods.ask(PREFIX + tail(1), 0), pods.ask(PREFIX + tail(2), after=PULL_S / 2))
        assert later == (TOKENS, about(PULL_S / 2 + 16 * TOKEN_S))
        assert pods.moved() == TOKENS

    played(scene)


def test_who_names_another_source_waits_too() -> None:
    async def scene(pods: Scene) -> None:
        answers = await asyncio.gather(*(pods.ask(PREFIX + tail(number), number % 2) for number in range(4)))
        assert [reused for reused, _ in answers] == [TOKENS] * 4
        assert pods.moved() == TOKENS

    played(scene, *[PROFILE] * 3)


def test_a_prompt_that_ends_where_the_pull_does_is_reused_to_its_end() -> None:
    async def scene(pods: Scene) -> None:
        answers = await asyncio.gather(*(pods.ask(PREFIX, 0) for _ in range(3)))
        assert [reused for reused, _ in answers] == [TOKENS] * 3
        assert pods.moved() == TOKENS

    played(scene)


def test_who_wants_more_than_is_coming_pulls_only_the_rest() -> None:
    async def scene(pods: Scene) -> None:
        half = TOKENS // 2
        first, whole = await asyncio.gather(
            pods.ask(PREFIX[:half] + tail(1), 0), pods.ask(PREFIX + tail(2), 0, after=0.01)
        )
        assert (first[0], whole[0]) == (half, TOKENS)
        assert whole[1] == about(PULL_S - 0.01 + 8 * TOKEN_S)  # one half after the other
        assert pods.moved() == TOKENS

    played(scene)


def test_who_wants_less_than_is_coming_waits_for_all_of_it() -> None:
    async def scene(pods: Scene) -> None:
        _, less = await asyncio.gather(pods.ask(PREFIX, 0), pods.ask(PREFIX[:320] + tail(2), 0, after=0.01))
        assert less[0] == 320
        assert less[1] > PULL_S - 0.01
        assert pods.moved() == TOKENS

    played(scene)


def test_who_lacks_what_is_before_blocks_that_are_coming_moves_none_of_these() -> None:
    slow = msgspec.structs.replace(PROFILE, pull_us_per_token=10_000.0)
    small = msgspec.structs.replace(slow, cpu_blocks=TOKENS // 16)

    async def scene(pods: Scene) -> None:
        await pods.ask(PREFIX[:320] + tail(0))
        assert pods.consumer.clear_gpu()
        first = asyncio.create_task(pods.ask(PREFIX + tail(1), 0))
        await until(lambda: len(pods.consumer.engines[0].scheduler.loading) == 1)
        await pods.ask(list(range(50_000, 50_000 + TOKENS)))  # in the CPU tier it takes the place of the first 320
        second = await pods.ask(PREFIX + tail(2), 0)
        assert (second[0], (await first)[0]) == (TOKENS, TOKENS)
        assert pods.moved() == TOKENS - 320

    played(scene, slow, small)


def test_different_prefixes_do_not_wait_for_each_other() -> None:
    async def scene(pods: Scene) -> None:
        other = list(range(50_000, 50_160))
        await complete(pods.http, pods.pods[0], other)
        long, short = await asyncio.gather(pods.ask(PREFIX + tail(1), 0), pods.ask(other + tail(2), 0, after=0.01))
        assert (long[0], short[0]) == (TOKENS, 160)
        assert short[1] == about(2 * PULL_S / 10 + 8 * TOKEN_S)  # at half the rate of the link
        assert pods.moved() == TOKENS + 160

    played(scene)


def test_where_a_pull_fails_the_others_pull_or_compute_for_themselves() -> None:
    async def scene(pods: Scene) -> None:
        asked = asyncio.gather(
            pods.ask(PREFIX + tail(1), 0),
            pods.ask(PREFIX + tail(2), 1, after=0.01),
            pods.ask(PREFIX + tail(3), 1, after=0.02),
        )
        await asyncio.sleep(PULL_S / 2)
        await pods.pods[0].kill()
        fails, *others = await asked
        assert fails[0] == 0
        assert fails[1] > TOKENS * TOKEN_S
        assert [reused for reused, _ in others] == [TOKENS] * 2
        # The one that computes is one step ahead, when the other two see what there is.
        assert pods.moved() == TOKENS - 64

    played(scene, PROFILE, PROFILE, msgspec.structs.replace(PROFILE, token_budget=64))


def test_where_a_pull_fails_who_names_no_source_computes() -> None:
    async def scene(pods: Scene) -> None:
        asked = asyncio.gather(pods.ask(PREFIX + tail(1), 0), pods.ask(PREFIX + tail(2), after=0.01))
        await asyncio.sleep(PULL_S / 2)
        await pods.pods[0].kill()
        # Which of the two comes first is not said. The other one finds what that one is computing.
        assert sorted(reused for reused, _ in await asked) == [0, TOKENS]
        assert pods.moved() == 0

    played(scene)


def test_a_pull_that_hangs_is_waited_for_until_its_deadline() -> None:
    async def scene(pods: Scene) -> None:
        asked = asyncio.gather(pods.ask(PREFIX + tail(1), 0), pods.ask(PREFIX + tail(2), 1, after=0.01))
        await asyncio.sleep(PULL_S / 4)
        pods.pods[0].slow_link(1e6)
        hangs, waits = await asked
        assert (hangs[0], waits[0]) == (0, TOKENS)
        assert waits[1] - PROFILE.pull_fetch_deadline_s == pytest.approx(0.0, abs=TOKENS * TOKEN_S + 2 * PULL_S)

    played(scene, *[PROFILE] * 3)


def test_where_the_client_of_a_pull_leaves_the_others_pull_for_themselves() -> None:
    async def scene(pods: Scene) -> None:
        first = asyncio.create_task(pods.ask(PREFIX + tail(1), 0))
        second = asyncio.create_task(pods.ask(PREFIX + tail(2), 0, after=0.01))
        await asyncio.sleep(PULL_S / 2)
        first.cancel()
        reused, took = await second
        # The source sees within 20 ms that the first one has gone.
        assert took == pytest.approx(PULL_S * 1.5 - 0.01 + 8 * TOKEN_S, abs=0.02)
        assert reused == TOKENS
        assert pods.moved() == TOKENS

    played(scene)


def test_who_waits_may_leave_and_the_pull_goes_on() -> None:
    async def scene(pods: Scene) -> None:
        first = asyncio.create_task(pods.ask(PREFIX + tail(1), 0))
        second = asyncio.create_task(pods.ask(PREFIX + tail(2), 0, after=0.01))
        await asyncio.sleep(PULL_S / 2)
        second.cancel()
        await until(lambda: pods.consumer.engines[0].waiting == 1)
        assert await first == (TOKENS, about(PULL_S + 8 * TOKEN_S))

    played(scene)


def test_what_another_one_has_computed_meanwhile_does_not_move() -> None:
    busy = msgspec.structs.replace(PROFILE, decode_ms=5_000.0)

    async def scene(pods: Scene) -> None:
        decoding = asyncio.create_task(complete(pods.http, pods.pods[0], [7], max_tokens=100))
        await asyncio.sleep(0.01)
        asked = asyncio.create_task(pods.ask(PREFIX + tail(1), 0))  # it is answered at the end of a step
        assert (await pods.ask(PREFIX + tail(2), after=0.01))[0] == 0
        assert (await asked)[0] == TOKENS
        assert pods.moved() == 0
        decoding.cancel()

    played(scene, busy, PROFILE)


def test_where_memory_is_short_who_waited_is_answered_all_the_same() -> None:
    # Two prompts of TOKENS and something fit, and a third does not.
    tight = msgspec.structs.replace(PROFILE, gpu_blocks=202, max_model_len=3_200)

    async def scene(pods: Scene) -> None:
        computing = asyncio.create_task(pods.ask(list(range(50_000, 50_000 + TOKENS))))
        answers = await asyncio.gather(*(pods.ask(PREFIX + tail(number), 0, after=0.01) for number in range(3)))
        assert [reused for reused, _ in answers] == [TOKENS] * 3
        assert pods.moved() == TOKENS
        await computing

    played(scene, PROFILE, tight)


def test_without_room_for_what_is_in_the_cpu_tier_nothing_is_pulled_behind_it() -> None:
    tight = msgspec.structs.replace(PROFILE, gpu_blocks=110, max_model_len=1_700, decode_ms=10.0)

    async def scene(pods: Scene) -> None:
        await pods.ask(PREFIX[:320] + tail(0))
        assert pods.consumer.clear_gpu()
        long = complete(pods.http, pods.consumer, list(range(50_000, 50_000 + TOKENS)), max_tokens=50)
        answering = asyncio.create_task(long)
        await until(lambda: pods.consumer.engines[0].running == 1)
        reused, _ = await pods.ask(PREFIX + tail(1), 0)
        assert 0 < reused <= 16 * (110 - TOKENS // 16)
        assert pods.moved() == 0
        await answering

    played(scene, PROFILE, tight)
