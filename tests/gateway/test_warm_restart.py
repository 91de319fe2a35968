"""A gateway restarted under load routes as well as the one that never stopped."""

import random
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from tests.gateway.fleet import SMALL, Front, serving, simulated, warm
from tests.gateway.workload import conversations

PODS = 4
BEFORE = 500
WHILE_DOWN = 20
AFTER = 1000
BOUND = 0.02
TIGHT = msgspec.structs.replace(SMALL, gpu_blocks=256, cpu_blocks=2048, max_model_len=4096, speed=1000)

Restart = Literal["none", "restored", "cold"]


async def sent(front: Front, prompts: list[list[int]]) -> float:
    """The share of the prompts' tokens that pods did not have to compute."""
    cached = 0
    for prompt in prompts:
        cached += (await front.complete(prompt)).cached
    return cached / sum(map(len, prompts))


async def hit_rate(restart: Restart, directory: Path, *, replay: bool) -> float:
    """Of the requests after a gateway was restarted in one way; while it is down, pods are used without it."""
    prompts = conversations(11, openings=40, opening_blocks=8, active=200, turns=10, turn_blocks=2)
    before, meanwhile, after = (list(islice(prompts, count)) for count in (BEFORE, WHILE_DOWN, AFTER))
    async with simulated(PODS, profile=TIGHT, replay=replay) as pods:
        async with serving(pods) as front:
            await sent(front, before)
            (directory / "snapshot").write_bytes((await front.get("/index/snapshot")).body)
            for number, prompt in enumerate(meanwhile):
                await warm(pods[number % PODS], prompt)
            if restart == "none":
                return await sent(front, after)
        restore = str(directory / "snapshot") if restart == "restored" else None
        async with serving(pods, restore=restore) as front:
            return await sent(front, after)


@pytest.fixture(autouse=True)
def _same_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties fall the same way in every run."""
    monkeypatch.setattr(random, "random", random.Random(1).random)


async def test_a_restored_gateway_hits_as_one_that_never_stopped(tmp_path: Path) -> None:
    whole = await hit_rate("none", tmp_path, replay=False)
    assert 0.5 < whole < 0.95
    assert await hit_rate("restored", tmp_path, replay=True) > whole - BOUND
    assert await hit_rate("restored", tmp_path, replay=False) > whole - BOUND
    # Nothing of this comes by itself.
    assert await hit_rate("cold", tmp_path, replay=False) < whole - BOUND
