"""Trials of pulls between two pods, with a prompt of this gateway's own: no client waits for one.

A fresh prompt of a few blocks is computed by the source; when its events confirm the blocks in the tier that pulls are
served from, the consumer is given the same prompt and pulls. What it reports as cached, or else its counter of what
came from peers, tells whether the pull brought anything. So a trial costs the pods some hundred tokens each, however
long the prompts are that would have pulled; and one that hangs is ended by closing its connection.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Final, Literal, NamedTuple

import msgspec
import structlog
from msgspec import Struct

from config.schema import P2P
from gateway.errors import PodError, PodRejected, PodTimeout
from gateway.inject import kv_transfer_params, remote_kv_source
from gateway.metrics import Metrics
from gateway.pairs import Pair
from gateway.pod import Pod
from gateway.pods import PodTable
from gateway.poller import Poller
from gateway.pulls import Pulls
from gateway.tokens import TokenIds
from gateway.upstream import PodApi
from index import Publisher, RadixIndex

_log = structlog.get_logger("gateway.trials")

_TOKENS: Final = 256  # in whole blocks, or one block where that is more; and one token more, which is computed
_IDS: Final = range(100, 400)  # which any vocabulary has; as many as that make no prompt twice
_COMPUTE_S: Final = 30.0  # at the source, behind what it has to do
_CONFIRM_S: Final = 5.0  # until the source's events say what it holds
_PULL_S: Final = 30.0  # at the consumer, behind what it has to do: nobody waits
_LOOK_S: Final = 0.02
_AT_ONCE: Final = 4

Result = Literal["ok", "late", "nothing", "unclear", "impossible"]


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens_details: _Details | None = None


class _Answer(Struct):
    usage: _Usage | None = None

    @property
    def cached(self) -> int | None:
        """Tokens; None: it does not say."""
        details = None if self.usage is None else self.usage.prompt_tokens_details
        return None if details is None else details.cached_tokens


class _Ranks(NamedTuple):
    source: Pod
    source_rank: int
    address: tuple[str, int]
    consumer: Pod
    rank: int


class Trials:
    """`run` makes them as they fall due, few at once."""

    def __init__(
        self,
        pods: PodTable,
        index: RadixIndex,
        pulls: Pulls,
        api: PodApi,
        poller: Poller,
        metrics: Metrics,
        p2p: P2P,
    ) -> None:
        self._pods = pods
        self._index = index
        self._pulls = pulls
        self._api = api
        self._poller = poller
        self._metrics = metrics
        self._news = asyncio.Event()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        pulls.changed = self._news.set
        self.reconfigure(p2p)

    def reconfigure(self, p2p: P2P) -> None:
        """Whether prompts of this gateway's own may be computed. Else the next request is the trial."""
        self._probe = p2p.enabled and p2p.probe
        if not p2p.enabled:
            self._pods.pairs.keep([])  # nobody pulls, so nothing is to be tried

    async def run(self) -> None:
        """Until cancelled."""
        pairs, clock = self._pods.pairs, self._pods.clock
        async with asyncio.TaskGroup() as group:
            while True:
                self._news.clear()
                for pair in pairs.due(clock()):
                    group.create_task(self._try(pair), name=f"trial {pair.consumer[0]} from {pair.source[0]}")
                due = pairs.next_due()
                try:
                    async with asyncio.timeout(None if due is None else max(0.0, due - clock())):
                        await self._news.wait()
                except TimeoutError:
                    pass

    async def _try(self, pair: Pair) -> None:
        result: Result = "unclear"
        try:
            if self._probe:
                async with self._slots:
                    result = await self._result(pair)
                self._metrics.pull_trials.labels(result).inc()
            if result == "unclear":
                self._pulls.unclear(pair)
            elif result != "impossible":
                self._pulls.tried(pair, None if result == "ok" else result)
        except Exception as fault:  # noqa: BLE001 - it is no other trial's
            self._metrics.task_failures.labels("").inc()
            _log.exception("task failed", task="trial", exc_info=fault)
        finally:
            self._pods.pairs.postponed(*pair, self._pods.clock())  # where nothing came of it
            self._news.set()

    async def _result(self, pair: Pair) -> Result:
        found = self._find(pair)
        if found is None:
            return "impossible"
        sizes = self._index.block_sizes(found.source.base_model)
        size = sizes[-1] if sizes else _TOKENS
        prompt = random.choices(_IDS, k=max(1, _TOKENS // size) * size + 1)  # noqa: S311 - not for secrets
        try:
            await self._complete(found.source, found.source_rank, prompt, None, _COMPUTE_S)
            held = await self._held(found, prompt, size)
            before = await self._pulled(found.consumer, found.rank)
            answer = await self._pull(found, prompt)
            if answer is None:
                return "late"
            brought = await self._brought(found, answer, before)
        except PodRejected:
            return "unclear"  # it takes no such prompt, and will not later either
        except PodError:
            return "impossible"
        if brought:
            return "ok"
        # Where the source was not known to hold the prompt, nothing follows from a pull that brought nothing.
        return "nothing" if held and brought is not None else "unclear"

    async def _pull(self, found: _Ranks, prompt: list[int]) -> _Answer | None:
        """None: it was late. Raises PodError."""
        host, port = found.address
        source = remote_kv_source(host, port + found.source_rank, str(uuid.uuid4()))
        try:
            return await self._complete(found.consumer, found.rank, prompt, source, _PULL_S)
        except PodTimeout:
            return None

    async def _brought(self, found: _Ranks, answer: _Answer, before: float | None) -> float | None:
        """How many tokens, or bytes, the pull brought, where the counter stood at `before`; None: nobody says."""
        if answer.cached is not None:
            return answer.cached
        after = await self._pulled(found.consumer, found.rank)
        return None if before is None or after is None else after - before

    def _find(self, pair: Pair) -> _Ranks | None:
        """The two, where both are well."""
        pods = {pod.url: pod for pod in self._pods if pod.state == "ready" and not (pod.suspect or pod.stalled)}
        source, consumer = pods.get(pair.source[0]), pods.get(pair.consumer[0])
        if source is None or consumer is None or source.p2p is None or self._pods.pairs.is_deaf(pair.source):
            return None
        if pair.source[1] not in source.ranks or pair.consumer[1] not in consumer.ranks:
            return None
        return _Ranks(source, pair.source[1], source.p2p, consumer, pair.consumer[1])

    async def _complete(self, pod: Pod, rank: int, prompt: list[int], source: bytes | None, seconds: float) -> _Answer:
        body = msgspec.json.encode({"model": pod.base_model, "prompt": prompt, "max_tokens": 1, "temperature": 0})
        params = kv_transfer_params(source, None)
        if params is not None:
            body = body[:-1] + b',"kv_transfer_params":%b}' % params
        headers = {} if len(pod.ranks) == 1 else {"x-data-parallel-rank": str(rank)}
        answer = await self._api.post(pod.url, "/v1/completions", body, timeout=seconds, headers=headers)
        try:
            return msgspec.json.decode(answer, type=_Answer)
        except msgspec.DecodeError:
            return _Answer()

    async def _held(self, found: _Ranks, prompt: list[int], size: int) -> bool:
        """Whether the source's events confirm in time that it can serve the prompt."""
        keys = TokenIds("I", prompt).keys(found.source.base_model, size, None)
        publisher = Publisher(found.source.name, found.source_rank)
        deadline = self._pods.clock() + _CONFIRM_S
        while self._pods.clock() < deadline:
            cached = self._index.match({size: keys}).get(publisher)
            if cached is not None and cached.cpu >= len(prompt) - 1:
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def _pulled(self, pod: Pod, rank: int) -> float | None:
        return (await self._poller.metrics(pod.url)).pulled.get(rank)
