"""What a gateway learns of two pods from the answers that pass it, beside what is measured of them directly.

The gateway begins with the usual placement and without costs. Its users read documents, two at once, and ask about
them; then one pod takes no new requests for a while, as for maintenance, and the other one pulls from it what is asked
about. In between the same pods are measured as `calibrate` does it: machines differ, and from minute to minute.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import inf
from pathlib import Path
from statistics import median

import pytest
from openai import OpenAI

from config.schema import Config, PodConfig
from gateway.calibrate.measure import Climb
from gateway.calibrate.result import Rung, learn
from gateway.direct import DirectPod, reach
from scorers import Costs
from tests.engine.front import Gateway, in_front_of, until
from tests.engine.pods import Pod

pytestmark = pytest.mark.engine

WITHIN = 2.0
PARTS = 3  # of the load, at least, with a measurement in front of each and one behind the last
MOST_PARTS = 12  # where others disturb single ones, or what is read goes to one pod for a while
DOCUMENTS = (300, 400, 550, 700, 900, 1100, 1400, 1800, 2400, 3200, 4400, 6000)  # tokens
QUESTION = (16, 200)
AT_ONCE = 2
LADDER = (256, 512, 1024, 2048)
LADDER_ROUNDS = 2  # each time: what comes first at a length, pull or computing, changes from one to the next
PULLS = 8  # one way, for what they cost to count as learned
DEADLINE_S = 60.0

Way = tuple[str, str]
"""URLs of a source and of who pulls from it."""


def ids(length: int) -> list[int]:
    return [random.randrange(300, 4000) for _ in range(length)]


class Users:
    """They read documents through a gateway and ask about them; answers are streamed."""

    def __init__(self, gateway: Gateway, model: str, client: OpenAI) -> None:
        self._gateway = gateway
        self._model = model
        self._client = client

    def read(self) -> list[list[int]]:
        """New documents, each sent once; returns when it is known who can serve them to peers."""
        documents = [ids(length) for length in random.sample(DOCUMENTS, len(DOCUMENTS))]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(self._complete, documents))
        until(lambda: all(map(self._can_be_pulled, documents)), DEADLINE_S, "CPU-tier events")
        return documents

    def ask(self, documents: Sequence[list[int]]) -> None:
        """A question about each, one after the other."""
        for document in documents:
            self._complete(document + ids(random.randrange(*QUESTION)))

    def _complete(self, prompt: list[int]) -> None:
        stream = self._client.completions.create(
            model=self._model, prompt=prompt, max_tokens=8, stream=True, extra_body={"ignore_eos": True}
        )
        with stream:
            assert [c.finish_reason for chunk in stream for c in chunk.choices if c.finish_reason] == ["length"]

    def _can_be_pulled(self, document: list[int]) -> bool:
        candidates = self._gateway.explain({"model": self._model, "prompt": document})["candidates"]
        return any(each["cached_tokens"]["cpu"] >= len(document) // 32 * 32 for each in candidates)


class Learned:
    """What a gateway has learned, looked at now and then: it forgets, and single looks tell of single disturbances."""

    def __init__(self) -> None:
        self._seen: dict[Way, list[float]] = {}

    def look(self, gateway: Gateway) -> None:
        """Once more, at each way of which enough pulls have been seen."""
        for link in gateway.get("/pods")["links"]:
            if link["samples"] >= PULLS:
                crossover = link["crossover_tokens"]
                way = link["source"], link["consumer"]
                self._seen.setdefault(way, []).append(inf if crossover is None else crossover)

    def crossovers(self) -> dict[Way, float]:
        """The medians."""
        return {way: median(seen) for way, seen in self._seen.items()}


class Direct:
    """What the pods take when they are asked past the gateway, one request at a time."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._pods = pods
        self._rungs: list[Rung] = []

    def climb(self) -> None:
        """Once more, while nobody else asks."""
        asyncio.run(self._climb())

    def crossovers(self) -> dict[Way, int | None]:
        """From how many tokens on a pull pays, by the medians of all that was measured."""
        one, other = urls = [pod.url for pod in self._pods]
        costs = Costs()
        learn(costs, urls, self._rungs)
        return {way: costs.crossover((way[0], 0), (way[1], 0)) for way in ((one, other), (other, one))}

    async def _climb(self) -> None:
        specs = tuple(PodConfig(url=pod.url) for pod in self._pods)
        async with reach(Config(pods=specs)) as api:
            pods = [
                DirectPod(api, spec, (pod.parameters.host, pod.parameters.p2p_port), timeout=DEADLINE_S)
                for spec, pod in zip(specs, self._pods, strict=True)
            ]
            climb = Climb(pods, max_time=DEADLINE_S, tell=lambda _: None)
            self._rungs += (await climb.measure(LADDER, LADDER_ROUNDS, self._pods[0].model)).rungs


@contextmanager
def only(name: str, gateway: Gateway) -> Iterator[None]:
    """The other pod takes no new requests; its peer may pull from it."""
    gateway.reconfigure(placement={"filters": [{"type": "label", "key": "name", "values": [name]}]})
    yield
    gateway.reconfigure(placement={})


def test_the_learned_crossover_is_near_the_one_measured_directly(pods: tuple[Pod, ...], tmp_path: Path) -> None:
    named = [
        {"url": pod.url, "p2p": f"127.0.0.1:{pod.parameters.p2p_port}", "labels": {"name": name}}
        for pod, name in zip(pods, "ab", strict=True)
    ]
    direct, learned = Direct(pods), Learned()
    with (
        in_front_of(pods, tmp_path, pods=named, p2p={}, poll={}) as gateway,
        OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        users = Users(gateway, pods[0].model, client)
        direct.climb()
        for part in range(MOST_PARTS):
            for name in "ab":
                documents = users.read()
                with only(name, gateway):
                    users.ask(documents)
            direct.climb()
            learned.look(gateway)
            if part + 1 >= PARTS and near(learned.crossovers(), direct.crossovers()):
                break
    print(f"\n{part + 1} parts; learned {learned.crossovers()}, measured {direct.crossovers()}")
    assert near(learned.crossovers(), direct.crossovers())


def near(learned: dict[Way, float], measured: dict[Way, int | None]) -> bool:
    """Whether all ways have been learned, and right."""
    return all(
        ladder is not None and ladder / WITHIN <= learned.get(way, 0.0) <= ladder * WITHIN
        for way, ladder in measured.items()
    )
