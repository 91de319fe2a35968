"""What a gateway learns of two pods from the answers that pass it, beside what is measured of them directly.

The gateway begins without costs. A user reads documents, half of them at each pod, while the other one takes no new
requests, as for maintenance, and then asks about all of them at one: whether that pulls from its peer what it lacks is
for the gateway to say. In between, since machines differ from minute to minute, the same pods are asked past the
gateway: at each length of a ladder about a document that the peer has read, and about one that nobody has. One request
at a time, here and there: pods that share a machine's cores are slower together than alone.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from math import inf
from pathlib import Path
from statistics import median

import pytest
from openai import OpenAI

from config.schema import Config, PodConfig
from gateway.calibrate.ladder import Turn, turns
from gateway.calibrate.result import Rung, learn
from gateway.direct import DirectPod, reach
from scorers import Costs
from tests.engine.front import Gateway, in_front_of, until
from tests.engine.pods import Pod

pytestmark = pytest.mark.engine

WITHIN = 2.0
PARTS = 8  # of the load, with a measurement behind each
DOCUMENTS = (300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1250, 1400, 1600, 1800, 2400, 4400, 6000)  # tokens
QUESTION = (16, 200)
LADDER = (256, 384, 512, 768, 1024, 2048)
ASKED = sum(QUESTION) // 2
BLOCK = 32
PAUSES_S = (0.2, 0.5, 1.0, 3.0)  # until what has been read can be pulled, which nobody tells
PULLS = 8  # one way, for what they cost to count as learned
DEADLINE_S = 60.0

Way = tuple[str, str]
"""URLs of a source and of who pulls from it."""


def ids(length: int) -> list[int]:
    return [random.randrange(300, 4000) for _ in range(length)]


class User:
    """Reads documents through a gateway and asks about them; answers are streamed."""

    def __init__(self, gateway: Gateway, model: str, client: OpenAI) -> None:
        self._gateway = gateway
        self._model = model
        self._client = client

    def read(self) -> list[list[int]]:
        """New documents; returns when it is known who can serve them to its peer."""
        lengths = random.sample(DOCUMENTS, len(DOCUMENTS))
        half = len(lengths) // 2
        documents = [*self._read("a", lengths[:half]), *self._read("b", lengths[half:])]
        until(lambda: all(map(self._can_be_pulled, documents)), DEADLINE_S, "CPU-tier events")
        return random.sample(documents, len(documents))

    def ask(self, name: str, documents: Sequence[list[int]]) -> None:
        """A question about each, at this pod."""
        with only(name, self._gateway):
            for document in documents:
                self._complete(document + ids(random.randrange(*QUESTION)))

    def _read(self, name: str, lengths: Sequence[int]) -> list[list[int]]:
        documents = [ids(length) for length in lengths]
        with only(name, self._gateway):
            for document in documents:
                self._complete(document)
        return documents

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

    def __str__(self) -> str:
        return f"{self.crossovers()}, medians of {list(self._seen.values())}"

    def crossovers(self) -> dict[Way, float]:
        """The medians."""
        return {way: median(seen) for way, seen in self._seen.items()}


class Direct:
    """What the pods take when they are asked past the gateway, one request at a time."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self._pods = pods
        self._turns = turns(LADDER, 1 + PARTS)
        self._rungs: list[Rung] = []

    def climb(self, *, again: bool = True) -> None:
        """All lengths once, both ways, while nobody else asks. The first time only warms up: it is not `again`."""
        rungs = asyncio.run(self._climb())
        self._rungs += rungs if again else []

    def crossovers(self) -> dict[Way, int | None]:
        """From how many tokens on a pull pays, by the medians of all that was measured."""
        one, other = urls = [pod.url for pod in self._pods]
        costs = Costs()
        learn(costs, urls, self._rungs)
        return {way: costs.crossover((way[0], 0), (way[1], 0)) for way in ((one, other), (other, one))}

    async def _climb(self) -> list[Rung]:
        specs = tuple(PodConfig(url=pod.url) for pod in self._pods)
        async with reach(Config(pods=specs)) as api:
            pods = [
                DirectPod(api, spec, (pod.parameters.host, pod.parameters.p2p_port), timeout=DEADLINE_S)
                for spec, pod in zip(specs, self._pods, strict=True)
            ]
            for pod in pods:  # the first request opens a connection, to a pod that has been idle
                await pod.complete(self._pods[0].model, ids(LADDER[0]))
            return [await self._rung(pods, turn) for turn in islice(self._turns, 2 * len(LADDER))]

    async def _rung(self, pods: Sequence[DirectPod], turn: Turn) -> Rung:
        source, consumer, tokens = pods[turn.source], pods[turn.consumer], turn.tokens
        if turn.pull_first:
            pulled = await self._pulled(source, consumer, tokens)
            computed = await consumer.complete(self._pods[0].model, ids(tokens + ASKED))
        else:
            computed = await consumer.complete(self._pods[0].model, ids(tokens + ASKED))
            pulled = await self._pulled(source, consumer, tokens)
        return Rung(turn.source, turn.consumer, tokens + ASKED, computed.seconds, pulled, 0.0, tokens)

    async def _pulled(self, source: DirectPod, consumer: DirectPod, tokens: int) -> float:
        """Seconds for a question about a document that the source has read."""
        model = self._pods[0].model
        for pause in PAUSES_S:
            document = ids(tokens)
            await source.complete(model, document)
            await asyncio.sleep(pause)
            pulled = await consumer.complete(model, document + ids(ASKED), source=source.p2p)
            if (pulled.cached_tokens or 0) >= tokens // BLOCK * BLOCK:
                return pulled.seconds
        pytest.fail(f"{consumer.url} does not pull {tokens} tokens from {source.url}")


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
        user = User(gateway, pods[0].model, client)
        direct.climb(again=False)
        for _ in range(PARTS):
            for name in "ab":
                user.ask(name, user.read())
            direct.climb()
            learned.look(gateway)
    print(f"\nlearned {learned}, measured {direct.crossovers()}")
    assert near(learned.crossovers(), direct.crossovers())


def near(learned: dict[Way, float], measured: dict[Way, int | None]) -> bool:
    """Whether all ways have been learned, and right."""
    return all(
        ladder is not None and ladder / WITHIN <= learned.get(way, 0.0) <= ladder * WITHIN
        for way, ladder in measured.items()
    )
