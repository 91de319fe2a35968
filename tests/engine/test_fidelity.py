"""Simulated pods beside real ones: the same load through a gateway, in front of each.

The profile is fitted to what the real pods take during that load, since machines differ, and from minute to minute; so
what is compared is the model, not its figures.
"""

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from openai import OpenAI

from tests.engine.front import Gateway, in_front_of
from tests.engine.pods import Pod

pytestmark = pytest.mark.engine

REQUESTS = 200
PREFIXES = 10
AT_ONCE = 2
LADDER = (256, 1024, 2048, 4096)
PART = 25  # requests between two looks at what the pods take
MAX_ROUNDS = 5  # where the machine changes between the real pods' turn and the simulated ones'
FIRST_TOKEN_WITHIN = 0.25
SAME_PLACEMENTS = 0.95
BY_PREFIX = {"preset": "affinity"}  # what goes by costs it has learned goes by the machine, too


class Asked(NamedTuple):
    prefix: int
    prompt: list[int]


class Told(NamedTuple):
    pod: str
    cached: int
    first_token_s: float


class SimulatedPodProcess(NamedTuple):
    """As much of a pod as a gateway and a test need."""

    url: str
    model: str
    p2p_port: int

    @property
    def parameters(self) -> "SimulatedPodProcess":
        return self


def ids(seed: object, length: int) -> list[int]:
    rng = random.Random(repr(seed))
    return [rng.randrange(300, 4000) for _ in range(length)]


def load(seed: int) -> tuple[list[list[int]], list[Asked]]:
    """Prefixes, and requests behind them."""
    rng = random.Random(seed)
    prefixes = [ids((seed, number), rng.randrange(32, 96) * 32) for number in range(PREFIXES)]
    asked = []
    for number in range(REQUESTS):
        prefix = rng.randrange(PREFIXES)
        asked.append(Asked(prefix, prefixes[prefix] + ids((seed, "question", number), rng.randrange(64, 256))))
    return prefixes, asked


def complete(url: str, model: str, prompt: list[int]) -> Told:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        began = time.perf_counter()
        raw = client.completions.with_raw_response.create(
            model=model,
            prompt=prompt,
            max_tokens=4,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        first, cached = 0.0, 0
        for chunk in raw.parse():
            first = first or time.perf_counter() - began
            if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
                cached = chunk.usage.prompt_tokens_details.cached_tokens or 0
        return Told(raw.headers.get("x-gateway-pod", ""), cached, first)


def told_by(gateway: Gateway, pods: Sequence[Any], seed: int, between: Callable[[], None]) -> list[Told]:
    """What becomes of the load, each prefix being on one of the pods before it begins; pods by their place."""
    prefixes, asked = load(seed)
    for number, prefix in enumerate(prefixes):
        pod = pods[number % len(pods)]
        complete(pod.url, pod.model, prefix)
        gateway.wait_until_cached({"model": pod.model, "prompt": prefix}, pod, len(prefix) // 32 * 32)
    told: list[Told] = []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for at in range(0, REQUESTS, PART):
            part = asked[at : at + PART]
            told += threads.map(lambda each: complete(gateway.url, pods[0].model, each.prompt), part)
            between()
    places = {pod.url: str(place) for place, pod in enumerate(pods)}
    return [each._replace(pod=places[each.pod]) for each in told]


class Ladder:
    """What a pod takes for fresh prompts of some lengths, asked now and then."""

    def __init__(self, pod: Pod, seed: int) -> None:
        self._pod = pod
        self._seed = seed
        self._taken: dict[int, list[float]] = {length: [] for length in LADDER}

    def climb(self) -> None:
        """Once more."""
        for length, taken in self._taken.items():
            prompt = ids(("ladder", self._seed, length, len(taken)), length)
            taken.append(complete(self._pod.url, self._pod.model, prompt).first_token_s)

    def fitted(self, path: Path) -> Path:
        """A profile of the medians."""
        costs = [statistics.median(taken) for taken in self._taken.values()]
        square, linear, fixed = np.polyfit(LADDER, costs, 2)
        profile = {
            "block_size": 32,
            "gpu_blocks": 4096,
            "cpu_blocks": 1024,
            "max_model_len": 8192,
            "token_budget": 2048,
            "request_fixed_ms": max(0.0, float(fixed) * 1e3),
            "step_fixed_ms": 1.0,
            "prefill_us_per_token": max(1.0, float(linear) * 1e6),
            "prefill_ns_per_token_squared": max(0.0, float(square) * 1e9),
            "decode_ms": 10.0,
            "kv_bytes_per_token": 8192,
            "restore_gb_per_s": 2.0,
        }
        path.write_text(yaml.safe_dump(profile))
        return path


@contextmanager
def simulated(profile: Path, model: str) -> Iterator[list[SimulatedPodProcess]]:
    command = [sys.executable, "-m", "loadgen", "pod", "--count", "2", "--json", "--profile", str(profile)]
    with subprocess.Popen([*command, "--model", model], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())["pods"]
            yield [SimulatedPodProcess(each["url"], model, int(each["p2p"].rpartition(":")[2])) for each in told]
        finally:
            process.terminate()


def test_a_load_goes_through_simulated_pods_as_through_real_ones(
    pods: tuple[Pod, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    ratios: list[float] = []
    while not ratios or (abs(statistics.median(ratios) - 1) > FIRST_TOKEN_WITHIN and len(ratios) < MAX_ROUNDS):
        ratios.append(one_round(pods, tmp_path_factory.mktemp("fidelity")))
    assert abs(statistics.median(ratios) - 1) <= FIRST_TOKEN_WITHIN


def one_round(pods: tuple[Pod, ...], directory: Path) -> float:
    """The median first token of the simulated pods by that of the real ones."""
    seed = time.monotonic_ns()
    ladder = Ladder(pods[0], seed)
    with in_front_of(pods, directory, placement=BY_PREFIX) as gateway:
        real = told_by(gateway, pods, seed, ladder.climb)
    profile = ladder.fitted(directory / "fitted.yaml")
    with (
        simulated(profile, pods[0].model) as fakes,
        in_front_of(fakes, directory, placement=BY_PREFIX) as gateway,  # type: ignore[arg-type]
    ):
        fake = told_by(gateway, fakes, seed, lambda: None)
    pairs = list(zip(real, fake, strict=True))
    same = sum(one.pod == other.pod for one, other in pairs)
    assert same >= SAME_PLACEMENTS * REQUESTS
    assert [pair for pair in pairs if pair[0].pod == pair[1].pod and pair[0].cached != pair[1].cached] == []
    ours, theirs = (statistics.median(each.first_token_s for each in told) for told in (fake, real))
    print(f"\n{same} of {REQUESTS} placed alike; first token {ours * 1e3:.0f} ms simulated, {theirs * 1e3:.0f} real")
    return ours / theirs
