"""Pods of which one is always chosen and another holds prompts; and what the gateway says of pulls between them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gateway.pairs import Pair
from loadgen.pod import SimulatedPod
from tests.gateway.fleet import (
    SMALL,
    Answer,
    Front,
    ids,
    name,
    serving,
    simulated,
    spec,
    until,
    warm,
)

# Engines that wait for their peers for ever, as far as a test goes.
PATIENT = msgspec.structs.replace(
    SMALL, pull_handshake_deadline_s=60.0, pull_lookup_deadline_s=60.0, pull_fetch_deadline_s=60.0
)
COMPUTES = {"labels": {"does": "compute"}}
"""Of a pod: it is chosen, whoever holds what."""
FLOOR_S, CAP_S = 0.2, 0.4
PULLING: dict[str, Any] = {
    "placement": {"scorers": [], "filters": [{"type": "label", "key": "does", "values": ["compute"]}]},
    "p2p": {"deadline_floor": FLOOR_S, "deadline_cap": CAP_S, "breaker": {"cooldown": 60.0}},
    "poll": {"interval": 0.05},
}
PROMPTS = range(10)


def merged(sections: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Sections of a configuration, and what is different in them."""
    return {**sections, **{key: {**sections.get(key, {}), **value} for key, value in more.items()}}


HEALTH = merged(PULLING, {"p2p": {"port_probe_interval": 0.1, "breaker": {"cooldown": 0.2, "max_cooldown": 0.4}}})
"""With breakers that soon look again."""


@asynccontextmanager
async def served(*entries: Any, holder: SimulatedPod, **sections: Any) -> AsyncIterator[Front]:
    async with serving(entries, **merged(HEALTH, sections)) as front:
        for salt in PROMPTS:
            await warm(holder, ids(200, salt))
        await front.settled(holder)
        yield front


@asynccontextmanager
async def pair(**sections: Any) -> AsyncIterator[tuple[Front, SimulatedPod, SimulatedPod]]:
    """A consumer, which is always chosen, and a peer that holds some prompts."""
    async with (
        simulated(2, profile=PATIENT) as (consumer, holder),
        served(spec(consumer, **COMPUTES), spec(holder), holder=holder, **sections) as front,
    ):
        yield front, consumer, holder


async def reason(front: Front, salt: int) -> str:
    return str((await front.explain(ids(200, salt)))["source_reason"])


async def streamed(front: Front, salt: int, **fields: Any) -> Answer:
    return await front.complete(ids(200, salt), stream=True, **fields)


async def breakers(front: Front) -> list[tuple[str, str | None, str]]:
    rows = (await front.get("/pods")).json["breakers"]
    return [(row["source"], row["consumer"], row["reason"]) for row in rows]


def fail(front: Front, source: Any, consumer: Any) -> None:
    """As if a pull had been late."""
    front.parts.fleet._pulls.tried(Pair((source.url, 0), (consumer.url, 0)), "late")


async def is_named(front: Front, salt: int) -> bool:
    return await reason(front, salt) == "named"


async def polled(front: Front, pod: SimulatedPod, times: int) -> None:
    """Return when it has been, so often."""
    before = await front.metric("polls_total", pod=name(pod), result="ok")

    async def enough() -> bool:
        return await front.metric("polls_total", pod=name(pod), result="ok") >= before + times

    await until(enough)
