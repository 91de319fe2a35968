"""The modelled engine against the one that simulated pods run, which goes block by block and step by step."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import Any, NamedTuple, cast

import aiohttp
import pytest
from msgspec.structs import replace

from loadgen.answer import Answer
from loadgen.engine import Engine
from loadgen.hashing import BlockHasher
from loadgen.pod import SimulatedPod
from loadgen.profile import PROFILES, PodProfile
from loadgen.sequence import Sequence
from tests.loadgen.clients import cached, complete
from tests.loadgen.sim.pods import Pods, sequential
from tests.loadgen.virtual import in_virtual_time, now


class Job(NamedTuple):
    at: float
    tokens: list[int]
    prompt: int


class Answered(NamedTuple):
    """Seconds to the first and to the last token, and what was reused from the GPU and the CPU tier."""

    first: float
    ended: float
    reused: tuple[int, int]


class _Silent:
    def publish(self, events: object) -> None:
        pass


async def _exactly(profile: PodProfile, jobs: list[Job]) -> list[Answered]:
    hasher = BlockHasher(profile.block_size, seed="0")

    async def answered(engine: Engine, job: Job) -> Answered:
        answer = job.tokens[job.prompt :]
        sequence = Sequence(job.tokens[: job.prompt], Answer(answer, [""] * len(answer), "length", None), hasher)
        await asyncio.sleep(job.at)
        engine.submit(sequence)
        times = [now() - job.at async for _ in sequence.outputs()]
        assert sequence.cached is not None
        return Answered(times[0], times[-1], sequence.cached[:2])

    async with asyncio.TaskGroup() as tasks:
        engine = Engine(profile, hasher, cast("Any", _Silent()), cast("Any", None), tasks)
        running = tasks.create_task(engine.run())
        results = [tasks.create_task(answered(engine, job)) for job in jobs]
        await asyncio.wait(results)
        running.cancel()
    return [result.result() for result in results]


def _modelled(profile: PodProfile, jobs: list[Job]) -> list[Answered]:
    pods = Pods(profile)
    for job in jobs:
        sequence = pods.sequence(job.tokens[: job.prompt], len(job.tokens) - job.prompt)
        sequence.tokens[job.prompt :] = type(sequence.tokens)("I", job.tokens[job.prompt :])
        sequence.keys[:] = pods.keys(job.tokens)
        pods.clock.at(job.at, lambda sequence=sequence: pods.engines[0].submit(sequence))  # type: ignore[misc]
    pods.clock.run()
    pods.all_over()
    return [
        Answered(
            pods.time("first", sequence) - job.at,
            pods.time("ended", sequence) - job.at,
            (sequence.reused or (0, 0))[:2],
        )
        for job, sequence in zip(jobs, pods.sequences, strict=True)
    ]


def agree(profile: PodProfile, jobs: list[Job], step_s: float, *, blocks: int = 0) -> None:
    """Times within 2 % or a step, and the same tokens reused; so many blocks may be on the GPU still, or no longer."""
    exact = in_virtual_time(_exactly(profile, jobs))
    for left, right in zip(exact, _modelled(profile, jobs), strict=True):
        assert sum(right.reused) == sum(left.reused)
        assert right.reused[0] == pytest.approx(left.reused[0], abs=blocks * profile.block_size)
        assert right.first == pytest.approx(left.first, rel=0.02, abs=step_s)
        assert right.ended == pytest.approx(left.ended, rel=0.02, abs=step_s)


def conversations(rng: Random, count: int, turns: int, gap: float, lengths: tuple[int, int]) -> list[Job]:
    """Each turn's prompt is all that was said before, and something new."""
    jobs = []
    for conversation in range(count):
        said: list[int] = sequential(10_000 * (rng.randrange(3) + 1), 500)
        at = rng.uniform(0.0, gap)
        for turn in range(turns):
            base = 1_000_000 * (conversation + 1) + 10_000 * turn
            said = said + sequential(base, rng.randint(*lengths))
            tokens = said + sequential(base + 5_000, rng.randint(1, 12))
            jobs.append(Job(at, tokens, len(said)))
            said = tokens
            at += gap * rng.uniform(0.8, 1.2)
    return jobs


DEMO = replace(PROFILES["demo"], speed=1.0)
GPT = PROFILES["gpt-oss-120b-h200"]


@pytest.mark.parametrize("seed", range(3))
def test_turns_one_after_the_other_take_the_same_time(seed: int) -> None:
    jobs = conversations(Random(seed), 1, 6, 10.0, (100, 3_000))
    agree(DEMO, jobs, 1e-6)
    agree(GPT, jobs, 1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_what_the_gpu_has_evicted_comes_back_from_the_cpu_tier_alike(seed: int) -> None:
    # The conversation fits, and what comes between displaces a part of it.
    rng = Random(seed)
    profile = replace(DEMO, gpu_blocks=250, cpu_blocks=2_000, max_model_len=4_000)
    jobs = []
    for at, job in enumerate(sorted(conversations(rng, 3, 3, 10.0, (100, 700)))):
        jobs.append(job._replace(at=10.0 * at))
    # An answer's blocks are counted by their sum, so that it needs up to one less while it is under way.
    agree(profile, jobs, 0.004, blocks=1)


@pytest.mark.parametrize("seed", range(3))
def test_conversations_at_once_take_the_same_time_within_a_step(seed: int) -> None:
    rng = Random(seed)
    agree(GPT, sorted(conversations(rng, 4, 3, 1.0, (200, 4_000))), 0.3)


class Asked(NamedTuple):
    """A request for one token, of which `source` has what it begins with."""

    at: float
    prompt: list[int]
    source: int | None


async def _pulled_exactly(profile: PodProfile, held: list[list[int]], requests: list[Asked]) -> list[tuple[float, int]]:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        pods = [await stack.enter_async_context(SimulatedPod(profile=profile)) for _ in range(3)]
        for prompt in held:
            await complete(http, pods[0], prompt)
            await complete(http, pods[1], prompt)

        async def answered(request: Asked) -> tuple[float, int]:
            await asyncio.sleep(request.at)
            began = now()
            params = None if request.source is None else pods[request.source].kv_source("id")
            answer = await complete(http, pods[2], request.prompt, kv_transfer_params=params)
            return now() - began, cached(answer)

        return list(await asyncio.gather(*map(answered, requests)))


def _pulled_modelled(profile: PodProfile, held: list[list[int]], requests: list[Asked]) -> list[tuple[float, int]]:
    pods = Pods(profile, 3)
    for prompt in held:
        pods.answered(prompt, pod=0)
        pods.answered(prompt, pod=1)
    began = pods.clock.now
    sequences = [pods.sequence(request.prompt, 1, request.source) for request in requests]
    for request, sequence in zip(requests, sequences, strict=True):
        pods.clock.at(began + request.at, partial(pods.engines[2].submit, sequence))
    pods.clock.run()
    pods.all_over()
    return [
        (pods.time("first", sequence) - began - request.at, sum(sequence.reused or ()))
        for request, sequence in zip(requests, sequences, strict=True)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_requests_for_the_same_blocks_of_peers_take_the_same_time_and_reuse_the_same(seed: int) -> None:
    rng = Random(seed)
    profile = replace(DEMO, pull_us_per_token=50.0, pull_fixed_ms=5.0)
    held = [sequential(10_000 * family, 1_600) for family in range(2)]
    requests = []
    for number in range(8):
        prefix = rng.choice(held)[: rng.choice([400, 800, 1_600])]
        tail = sequential(30_000 + 1_000 * number, rng.randint(1, 40))
        requests.append(Asked(rng.uniform(0.0, 0.1), prefix + tail, rng.choice([0, 0, 1, 1, None])))
    exact = in_virtual_time(_pulled_exactly(profile, held, requests))
    modelled = _pulled_modelled(profile, held, requests)
    assert [reused for _, reused in modelled] == [reused for _, reused in exact]
    # Within a step, and a slice of a transfer.
    assert [took for took, _ in modelled] == [pytest.approx(took, abs=0.03) for took, _ in exact]
