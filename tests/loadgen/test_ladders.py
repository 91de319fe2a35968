"""What the shipped profiles say of a pair of pods, held against what was published or measured.

The method is that of the measurements: seed the source with a fresh prompt, then have the consumer answer a prompt that
nobody holds, and the source's prompt with the source named; max_tokens 1, time to the whole answer.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import aiohttp
import pytest

from loadgen.pod import SimulatedPod
from loadgen.profile import PROFILES
from tests.loadgen.clients import cached, complete
from tests.loadgen.virtual import in_virtual_time, now

# Of each figure; where a range was measured, of its ends.
TOLERANCE = 0.1


class Rung(NamedTuple):
    """One length and its times in ms, each from … to; None: not held to it."""

    tokens: int
    recompute: tuple[float, float]
    pull: tuple[float, float] | None


def rung(tokens: int, recompute: float, pull: float) -> Rung:
    return Rung(tokens, (recompute, recompute), (pull, pull))


LADDERS = {
    "gpt-oss-120b-h200": [
        rung(2_048, 78.3, 34.6),
        rung(8_192, 249.9, 56.5),
        rung(16_384, 510.3, 85.9),
        rung(32_768, 1_173.2, 165.2),
        rung(49_152, 1_987.7, 235.0),
    ],
    "glm-wide-ep": [
        rung(4_096, 672, 1_262),
        rung(8_192, 1_068, 1_171),
        rung(12_288, 1_709, 1_241),
        rung(16_384, 2_148, 1_269),
        rung(24_576, 3_338, 1_315),
    ],
    "tiny-cpu": [
        rung(500, 200, 180),
        rung(1_000, 300, 190),
        # The pull was measured at 110 ms, below those of half and of twice its length.
        Rung(2_000, (700, 1_400), None),
        Rung(4_000, (1_500, 1_500), (240, 340)),
        rung(8_000, 5_600, 360),
    ],
}


class Times(NamedTuple):
    """What one length took, in ms."""

    recompute: float
    pull: float


async def climbed(profile: str, lengths: Sequence[int]) -> list[Times]:
    """Return what each length takes a warmed pair of pods; in virtual time."""
    fresh = random.Random(7)
    async with (
        SimulatedPod(profile=profile) as source,
        SimulatedPod(profile=profile) as consumer,
        aiohttp.ClientSession() as http,
    ):

        async def answer_ms(prompt: list[int], cached_tokens: int, pulls: bool) -> float:
            began = now()
            params = source.kv_source("id") if pulls else None
            assert cached(await complete(http, consumer, prompt, kv_transfer_params=params)) == cached_tokens
            return (now() - began) * 1000

        size = PROFILES[profile].block_size
        times = []
        for tokens in (size, *lengths):  # the first pays the pair's set-up
            held, unknown = (fresh.choices(range(1000, 8000), k=tokens) for _ in range(2))
            await complete(http, source, held)
            recompute = await answer_ms(unknown, 0, pulls=False)
            times.append(Times(recompute, await answer_ms(held, tokens // size * size, pulls=True)))
        return times[1:]


@pytest.mark.parametrize("profile", LADDERS)
def test_a_profile_climbs_the_ladder_that_it_was_fitted_to(profile: str) -> None:
    rungs = LADDERS[profile]
    times = in_virtual_time(climbed(profile, [rung.tokens for rung in rungs]))
    for (tokens, recompute, pull), took in zip(rungs, times, strict=True):
        assert within(recompute, took.recompute), (tokens, took)
        assert pull is None or within(pull, took.pull), (tokens, took)


def within(bounds: tuple[float, float], value: float) -> bool:
    low, high = bounds
    return (1 - TOLERANCE) * low <= value <= (1 + TOLERANCE) * high


def test_llama_8b_crosses_where_it_was_seen_to() -> None:
    # No ladder was published: two probes crossed at 900 and near 2,000 tokens.
    shorter, near, longer = in_virtual_time(climbed("llama-8b", [896, 2_048, 4_096]))
    assert shorter.recompute < shorter.pull
    assert near.recompute == pytest.approx(near.pull, rel=TOLERANCE)
    assert longer.pull < longer.recompute


def test_every_profile_but_the_one_to_watch_is_held_to_something() -> None:
    assert {"demo", "llama-8b", *LADDERS} == PROFILES.keys()


@pytest.mark.parametrize(("profile", "setup_ms"), [("gpt-oss-120b-h200", 6_000), ("tiny-cpu", 300)])
def test_the_first_pull_of_a_pair_pays_its_set_up(profile: str, setup_ms: float) -> None:
    async def first_and_second() -> list[float]:
        times = []
        async with (
            SimulatedPod(profile=profile) as source,
            SimulatedPod(profile=profile) as consumer,
            aiohttp.ClientSession() as http,
        ):
            for start in (1000, 3000):
                prompt = list(range(start, start + 1024))
                await complete(http, source, prompt)
                began = now()
                await complete(http, consumer, prompt, kv_transfer_params=source.kv_source("id"))
                times.append((now() - began) * 1000)
        return times

    first, second = in_virtual_time(first_and_second())
    assert first - second == pytest.approx(setup_ms)
