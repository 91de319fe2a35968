"""One pod, asked for all that bears on pulls. What it is given to compute is small: a check may run beside traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import zmq.asyncio

from config.schema import Poll
from gateway.checks.facts import PodFacts, RankFacts
from gateway.checks.stream import Stream, replayed, subscribed
from gateway.checks.told import Occupancy, Trail
from gateway.direct import REFUSED, DirectPod, connection_refused, fresh_prompt
from gateway.errors import PodError, PodRejected
from gateway.poller import EventSource, Poller
from gateway.upstream import PodApi, decoded

_PROMPT_BLOCKS: Final = 2
_USUAL_BLOCK: Final = 16
_LARGEST_BLOCK: Final = 512  # of larger ones a prompt would not be small any more
_ANNOUNCED_S: Final = 3.0
"""Events of a step come with its answer, or some milliseconds later; what is offloaded, a step later."""

_TRIES: Final = 2

_LONG_PROMPT: Final = 512
"""Tokens for a pod whose CPU tier takes so many blocks as one that a short prompt fills none."""


class PodUnderCheck:
    """A pod, its ranks and their event streams. `ranks` is empty where the pod is not reachable."""

    def __init__(self, facts: PodFacts) -> None:
        self.facts = facts
        self.ranks: list[RankUnderCheck] = []


class RankUnderCheck:
    """What asks a rank, and what listens to it; None: nothing does."""

    def __init__(self, pod: DirectPod, facts: RankFacts, stream: Stream | None) -> None:
        self.pod = pod
        self.facts = facts
        self.stream = stream


class Looker:
    """Asks pods. One prompt is the same for all of them, so that their hashes can be compared."""

    def __init__(
        self, api: PodApi, poll: Poll, context: zmq.asyncio.Context, stack: AsyncExitStack, *, timeout: float
    ) -> None:
        self._api = api
        self._poller = Poller(api, poll)
        self._quick = poll.timeout
        self._context = context
        self._stack = stack
        self._timeout = timeout
        self._common = fresh_prompt(_PROMPT_BLOCKS * _LARGEST_BLOCK)  # of which each takes as much as it needs

    async def look(self, pod: DirectPod) -> PodUnderCheck:
        """All that can be seen of a pod."""
        facts = PodFacts(url=pod.url)
        seen = PodUnderCheck(facts)
        try:
            await pod.get("/health", self._quick)
            facts.models = await pod.models(self._quick)
            facts.version = await self._version(pod)
            await self._identify(pod, facts)
            sources = await self._poller.event_sources(pod.spec)
        except PodError as error:
            facts.unreachable = error.message
            return seen
        if facts.model is not None:
            seen.ranks = [await self._rank(pod, facts, facts.model, *each) for each in _ranks(pod, sources)]
            facts.ranks = [rank.facts for rank in seen.ranks]
        return seen

    async def _version(self, pod: DirectPod) -> str | None:
        try:
            told = decoded(await pod.get("/version", self._quick), dict[str, Any], pod.url).get("version")
        except PodRejected:
            return None
        return told if isinstance(told, str) else None

    async def _identify(self, pod: DirectPod, facts: PodFacts) -> None:
        """What the pod says it has to share with its peers, where it has the endpoint."""
        try:
            facts.identity = decoded(await pod.get("/kv/identity", self._quick), dict[str, Any], pod.url)
        except PodRejected as error:
            facts.identity_problem = error.message if error.offered else ""
        except PodError as error:
            facts.identity_problem = error.message

    async def _rank(
        self, pod: DirectPod, about: PodFacts, model: str, rank: int | None, source: EventSource | None
    ) -> RankUnderCheck:
        label = pod.url if rank is None else f"{pod.url} rank {rank}"
        asked = DirectPod(self._api, pod.spec, pod.p2p, timeout=self._timeout, rank=rank)
        facts = RankFacts(label=label, rank=rank or 0, p2p=asked.p2p)
        stream = None
        if source is not None:
            facts.endpoint = source.events
            stream = await self._stack.enter_async_context(subscribed(self._context, source))
            facts.problem, facts.stream = stream.problem, "unreachable" if stream.problem else "silent"
        if asked.p2p is not None:
            problem = await connection_refused(asked.p2p)
            facts.refused, facts.unreached = (problem, None) if problem == REFUSED else (None, problem)
        seen = RankUnderCheck(asked, facts, None if facts.problem else stream)
        try:
            await self._ask(seen, model, about)
        except PodError as error:
            facts.failed = error.message
        if source is not None and facts.stream == "arriving":
            occupancy = Occupancy()
            facts.replay = await replayed(self._context, source, occupancy)
            facts.occupancy = occupancy if facts.replay == "answers" else None
        return seen

    async def _ask(self, rank: RankUnderCheck, model: str, about: PodFacts) -> None:
        """Have it answer a fresh prompt, which is followed through its tiers, and then what all pods are given."""
        facts = rank.facts
        cache = await rank.pod.cache_info()
        facts.block_size, facts.gpu_blocks = cache.block_size, cache.gpu_blocks
        block = min(cache.block_size or _USUAL_BLOCK, _LARGEST_BLOCK)
        chunk = _chunk(about, block)
        blocks = _PROMPT_BLOCKS * (chunk or block) // block
        for _ in range(_TRIES):
            # A chunk of answer, and more: of its last token there is no KV yet.
            if await self._announced(rank, model, blocks, block, answer=(chunk or block) + 2):
                break
        longer = _LONG_PROMPT // block
        if facts.trail is not None and facts.trail.stored and not facts.offloaded and longer > blocks:
            facts.coarse = _fits(about, _LONG_PROMPT + 1)
            if facts.coarse:
                await self._announced(rank, model, longer, block, answer=1)
        await self._compared(rank, model, self._common[: _PROMPT_BLOCKS * block])

    async def _announced(self, rank: RankUnderCheck, model: str, blocks: int, block: int, *, answer: int) -> bool:
        """Have it answer a prompt of so many blocks; False: it was not announced, though somebody listens."""
        # Its own: by what all pods are given, another pod's events could pass for this one's.
        prompt = fresh_prompt(blocks * block)
        trail = None if rank.stream is None else rank.stream.told.follow(prompt)
        await rank.pod.complete(model, prompt, max_tokens=answer)
        return rank.stream is None or trail is None or await self._followed(rank, rank.stream, model, trail, blocks)

    async def _compared(self, rank: RankUnderCheck, model: str, prompt: list[int]) -> None:
        """Have it announce what all pods announce; asked once more, it has something to reuse."""
        facts, stream = rank.facts, rank.stream
        await rank.pod.complete(model, prompt)
        again = await rank.pod.complete(model, prompt)
        facts.tells_cached = again.cached_tokens is not None
        if stream is not None and facts.stream == "arriving":
            trail = stream.told.follow(prompt)
            await stream.until(lambda: trail.first is not None, _ANNOUNCED_S)
            facts.common = trail.first
            facts.unusable = stream.told.unusable.total()

    async def _followed(self, rank: RankUnderCheck, stream: Stream, model: str, trail: Trail, blocks: int) -> bool:
        """Whether the prompt was announced."""
        facts, told = rank.facts, stream.told
        facts.trail, facts.prompt_blocks = trail, blocks
        enough = blocks - 1 if facts.coarse else blocks  # else its answer, too
        await stream.until(lambda: len(trail.stored) > enough, _ANNOUNCED_S)
        if trail.stored:
            await self._settled(rank, stream, model, lambda: told.offloaded(trail) > enough)
        facts.offloaded, facts.described = told.offloaded(trail), told.described(trail)
        if trail.stored:
            facts.stream = "arriving"
        return bool(trail.stored)

    async def _settled(self, rank: RankUnderCheck, stream: Stream, model: str, met: Callable[[], bool]) -> None:
        """Wait; an engine with nothing to do may tell the rest only with its next step, so it gets one."""
        if not await stream.until(met, _ANNOUNCED_S / 2):
            await rank.pod.complete(model, fresh_prompt(_USUAL_BLOCK))
            await stream.until(met, _ANNOUNCED_S)


def _chunk(about: PodFacts, block: int) -> int | None:
    """How many tokens its CPU tier takes as one; None: it does not tell, or too many for a small prompt."""
    told = (about.identity or {}).get("offload_block_size")
    if not isinstance(told, int) or not block <= told <= _LARGEST_BLOCK or told % block:
        return None
    return told if _fits(about, (_PROMPT_BLOCKS + 1) * told + 2) else None


def _fits(about: PodFacts, tokens: int) -> bool:
    limit = about.models[0].max_model_len if about.models else None
    return limit is None or tokens <= limit


def _ranks(pod: DirectPod, sources: Sequence[EventSource]) -> list[tuple[int | None, EventSource | None]]:
    """Each rank with where its events are; a pod with one rank is not told which one is meant."""
    by_rank = {source.rank: source for source in sources}
    ranks = sorted(by_rank.keys() | set(range(pod.spec.data_parallel_size)))
    return [(rank if len(ranks) > 1 else None, by_rank.get(rank)) for rank in ranks]


async def look_at_all(looker: Looker, pods: Sequence[DirectPod], at_once: int) -> list[PodUnderCheck]:
    """So many at once, in their order."""
    places = asyncio.Semaphore(at_once)

    async def look(pod: DirectPod) -> PodUnderCheck:
        async with places:
            return await looker.look(pod)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(look(pod)) for pod in pods]
    return [task.result() for task in tasks]
