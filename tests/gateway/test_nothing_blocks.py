import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from blockbuster import BlockBuster, BlockingError, blockbuster_ctx

from gateway.pods import PodTable
from tests.gateway.fleet import MODEL, QUEUE_ONLY, Front, fleet, ids, text_body, warm


@pytest.fixture
def blockbuster() -> Iterator[BlockBuster]:
    """Make every blocking call that our code leads to an error."""
    with blockbuster_ctx(["gateway", "index", "scorers", "config"]) as blockbuster:
        yield blockbuster


async def stream(front: Front, number: int) -> bytes:
    prompt = ids(300, salt=number % 3) if number % 2 else "a text of some length " * (number + 1)
    body = text_body(prompt, stream=True, max_tokens=20)
    return (await front.post("/v1/completions", body)).body


async def chat(front: Front, number: int) -> bytes:
    turns = [{"role": "user", "content": f"question {number}"}]
    return (await front.post("/v1/chat/completions", {"model": MODEL, "messages": turns})).body


async def look(front: Front) -> None:
    """Everything that an operator may ask for."""
    for path in ("/pods", "/metrics", "/ready", "/health", "/v1/models", "/nowhere"):
        await front.get(path)
    await front.explain(ids(300))


@pytest.mark.usefixtures("blockbuster")
async def test_nothing_blocks_the_loop_while_requests_events_polls_and_faults_pass() -> None:
    sections: dict[str, Any] = {"placement": QUEUE_ONLY, "poll": {"interval": 0.02}, "limits": {"attempts": 2}}
    async with fleet(3, **sections) as (front, pods):
        for salt in range(3):
            await warm(pods[0], ids(300, salt=salt))
        pods[1].fail_next(503, 3)
        answers = await asyncio.gather(
            *(stream(front, number) for number in range(24)), *(chat(front, number) for number in range(8))
        )
        assert sum(b"[DONE]" in answer for answer in answers) == 24
        await look(front)
        await pods[2].restart()
        await front.until_ready(3)
        await asyncio.gather(*(stream(front, number) for number in range(12)))
        await front.settled(*pods)
        await front.idle()
        assert await front.metric("task_failures_total") == 0
        assert await front.metric("requests_total", status="500") == 0


@pytest.mark.usefixtures("blockbuster")
async def test_what_would_block_is_seen() -> None:
    def slow_clock() -> float:
        time.sleep(0.001)
        return 0.0

    table = PodTable([], max_load_age=1, clock=slow_clock)
    with pytest.raises(BlockingError):
        table.serving(MODEL)
