"""The proof: each rank pulls a small prompt from one neighbour, by the names that a gateway would use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from config.addresses import join_address
from gateway.checks.finding import Finding
from gateway.checks.look import PodUnderCheck, RankUnderCheck
from gateway.direct import Pulled, fresh_prompt, pull
from gateway.errors import PodError

_BLOCKS: Final = 8
_USUAL_BLOCK: Final = 16
_OFFLOADED_S: Final = 3.0
_PAUSES_S: Final = (0.1, 1.0, 3.0)
_HUNG_S: Final = 5.0
"""A small pull that took so long and brought nothing met a deadline of the engine: once is enough."""

_WHY: Final = (
    "p2p has to be the very host and port of the source's secondary_tiers; model path, block size, PYTHONHASHSEED, data"
    " type, tensor parallelism and engine version have to be the same"
)


class Pair(NamedTuple):
    """Who pulls from whom."""

    consumer: RankUnderCheck
    source: RankUnderCheck


def pairs(fleet: Sequence[PodUnderCheck]) -> Iterator[Pair]:
    """Each rank with one of another pod of its model: a ring, so each is both. O(ranks)."""
    for place, pod in enumerate(fleet):
        peers = fleet[place - 1].ranks
        if pod is not fleet[place - 1] and peers:
            for number, rank in enumerate(pod.ranks):
                yield Pair(rank, peers[number % len(peers)])


async def try_all(ready: Sequence[Pair], model: str, at_once: int) -> list[Finding]:
    """So many at once, in their order. Every pull is bounded by the pods' deadline."""
    places = asyncio.Semaphore(at_once)

    async def attempt(pair: Pair) -> Finding:
        async with places:
            return await _try(pair, model)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(pair)) for pair in ready]
    return [task.result() for task in tasks]


async def _try(pair: Pair, model: str) -> Finding:
    consumer, source = pair.consumer.facts, pair.source.facts
    if (missing := _missing(pair)) is not None:
        message = f"no test pull: {missing}"
        return Finding("FAIL", "pull", consumer.label, message, "see above", source.label)
    try:
        pulled = await _pull(pair, model)
    except PodError as error:
        message = f"the test pull failed: {error.message}"
        return Finding("FAIL", "pull", consumer.label, message, f"look at both pods' logs; {_WHY}", source.label)
    took = f"{1000 * pulled.answer.seconds:.0f} ms"
    if pulled.happened:
        bytes_ = "" if pulled.moved.bytes is None else f", {pulled.moved.bytes:,.0f} bytes"
        message = f"pulled {pulled.tokens} tokens{bytes_} in {took}"
        return Finding("ok", "pull", consumer.label, message, peer=source.label)
    message = f"told to pull from {join_address(*(source.p2p or ('', 0)))}, it pulled nothing, in {took}"
    return Finding("FAIL", "pull", consumer.label, message, _WHY, source.label)


def _missing(pair: Pair) -> str | None:
    """What a pull would only wait for, up to a minute."""
    for rank in (pair.source, pair.consumer):
        if rank.facts.failed:
            return f"{rank.facts.label} does not answer"
    # A port that only this host does not reach, the consumer may.
    if pair.source.facts.p2p is None or pair.source.facts.refused is not None:
        return f"nothing serves pulls of {pair.source.facts.label}"
    return None


async def _pull(pair: Pair, model: str) -> Pulled:
    """The first one that brings something, or the last one."""
    source, stream = pair.source, pair.source.stream
    blocks = max(_BLOCKS, source.facts.prompt_blocks, pair.consumer.facts.prompt_blocks)
    tokens = blocks * (source.facts.block_size or _USUAL_BLOCK) + 1
    for pause in _PAUSES_S:
        prompt = fresh_prompt(tokens)
        trail = None if stream is None else stream.told.follow(prompt)
        await source.pod.complete(model, prompt)
        if stream is not None and trail is not None:
            told = stream.told
            await stream.until(lambda told=told, trail=trail: told.offloaded(trail) >= blocks, _OFFLOADED_S)  # type: ignore[misc]
        await asyncio.sleep(pause)
        pulled = await pull(source.pod, pair.consumer.pod, model, prompt)
        if pulled.happened or pulled.answer.seconds > _HUNG_S:
            break
    return pulled
