"""What a gateway learns of two real pods: from how many tokens on a pull pays, beside a ladder measured directly."""

import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from openai import OpenAI

from tests.engine.front import Gateway, in_front_of
from tests.engine.pods import Pod

pytestmark = pytest.mark.engine

LADDER = (128, 256, 512, 1024, 2048, 4096)
ROUNDS = 6
WITHIN = 2.0


@pytest.fixture
def learning(pods: tuple[Pod, ...], tmp_path: Path) -> Iterator[Gateway]:
    """Places everything on the second pod, and has it pull whatever the first one holds more of."""
    with in_front_of(
        pods,
        tmp_path,
        pods=[
            {"url": pod.url, "p2p": f"127.0.0.1:{pod.parameters.p2p_port}", "labels": {"computes": computes}}
            for pod, computes in zip(pods, ("no", "yes"), strict=True)
        ],
        placement={"filters": [{"type": "label", "key": "computes", "values": ["yes"]}]},
        p2p={"source": {"type": "weighted-sampling"}, "min_cached_token_delta": 32},
    ) as gateway:
        yield gateway


def ids(seed: object, length: int) -> list[int]:
    rng = random.Random(repr(seed))
    return [rng.randrange(300, 4000) for _ in range(length)]


def first_token_s(url: str, model: str, prompt: list[int], **more: Any) -> float:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        began = time.perf_counter()
        stream = client.completions.create(
            model=model,
            prompt=prompt,
            max_tokens=2,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True, **more},
        )
        with stream:
            next(iter(stream))
            return time.perf_counter() - began


def crossing(computed: dict[int, float], pulled: dict[int, float]) -> float:
    """Tokens from which on the pull is quicker, by lines through the steps; each step counts in its own measure."""
    square, linear, fixed = fitted(computed, 2)
    per_token, at_once = fitted(pulled, 1)
    lengths = np.arange(LADDER[0] // 4, LADDER[-1])
    gains = square * lengths**2 + (linear - per_token) * lengths + fixed - at_once
    return float(lengths[np.argmax(gains > 0)])


def fitted(taken: dict[int, float], degree: int) -> list[float]:
    seconds = [taken[length] for length in LADDER]
    return [float(each) for each in np.polyfit(LADDER, seconds, degree, w=[1 / each for each in seconds])]


def test_the_learned_crossover_of_a_pair_is_what_a_ladder_gives(pods: tuple[Pod, ...], learning: Gateway) -> None:
    source, consumer = pods
    peer = {"remote_host": "127.0.0.1", "remote_port": source.parameters.p2p_port}
    computed: dict[int, list[float]] = {length: [] for length in LADDER}
    pulled: dict[int, list[float]] = {length: [] for length in LADDER}
    seed = time.monotonic_ns()
    for number in range(ROUNDS):
        for length in LADDER:
            fresh, held, fresh_too, held_too = (ids((seed, number, length, leg), length) for leg in range(4))
            for prompt in (held, held_too):
                first_token_s(source.url, source.model, prompt)
                learning.wait_until_cached({"model": source.model, "prompt": prompt}, source, length // 32 * 32)
            # By way of the gateway, which learns; and past it, which is the ladder.
            first_token_s(learning.url, consumer.model, fresh)
            first_token_s(learning.url, consumer.model, held)
            computed[length].append(first_token_s(consumer.url, consumer.model, fresh_too))
            named = {"kv_transfer_params": {"remote_kv_source": {**peer, "kv_request_id": str(uuid4())}}}
            pulled[length].append(first_token_s(consumer.url, consumer.model, held_too, **named))
    ladder = crossing(
        *({length: statistics.median(taken) for length, taken in leg.items()} for leg in (computed, pulled))
    )
    (pair,) = learning.get("/pods")["links"]
    assert (pair["source"], pair["consumer"]) == (source.url, consumer.url)
    assert pair["samples"] > LADDER.index(LADDER[-1])
    print(
        f"\na pull pays from {pair['crossover_tokens']} tokens on as learned, from {ladder:.0f} by the ladder; {pair}"
    )
    assert ladder / WITHIN <= pair["crossover_tokens"] <= ladder * WITHIN
