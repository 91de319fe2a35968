"""Requests that want at once what one of them pulls."""

import asyncio

import msgspec

from tests.gateway.fleet import ids, name, simulated, spec
from tests.gateway.pulling import COMPUTES, PATIENT, served


async def test_requests_at_once_join_the_pull_of_the_first_whose_blocks_move_once() -> None:
    slow = msgspec.structs.replace(PATIENT, pull_fixed_ms=100.0)
    async with (
        simulated(2, profile=slow) as (consumer, holder),
        served(spec(consumer, **COMPUTES), spec(holder), holder=holder) as front,
    ):
        answers = await asyncio.gather(*(front.complete(ids(200)) for _ in range(4)))
        assert {(answer.pod, answer.source, answer.cached) for answer in answers} == {(consumer.url, holder.url, 192)}
        assert await front.metric("pulls_total", outcome="named") == 4
        assert await front.metric("joined_pulls_total", source=name(holder)) == 3
        assert await front.metric("pulled_tokens_total", source=name(holder)) == 192
        await front.idle()
        assert (await front.row(consumer))["joined"] == 0
        assert len(front.parts.pods.coming) == 0
        assert (await front.complete(ids(200))).source is None  # it is there by now
