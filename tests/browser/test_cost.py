"""What ten open pages cost the gateway, in processor time: as a share of a core, under a light load."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.gateway.fleet import QUEUE_ONLY, ids, simulated, spec, text_body
from tests.gateway.test_command import ready, started

PAGES = 10
SPAN_S = 10.0
ROUNDS = 3  # of a span without pages and one with them, so that a machine that gets slower tells on both
PAUSE_S = 0.1  # between requests
MOST = 0.02  # of a core

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processor time is read from /proc"),
]


def processor_s(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(http: aiohttp.ClientSession, url: str) -> None:
    number = 0
    while True:
        number += 1
        body = text_body(ids(400, salt=number % 20), stream=True, max_tokens=20)
        async with http.post(f"{url}/v1/completions", json=body) as answer:
            await answer.read()
        await asyncio.sleep(PAUSE_S)


async def looks(http: aiohttp.ClientSession, url: str, seen: list[bytes]) -> None:
    """One page, as the gateway sees it."""
    async with http.get(f"{url}/ui/events") as answer:
        assert answer.status == 200
        while piece := await answer.content.readuntil(b"\n\n"):
            seen.append(piece)


@asynccontextmanager
async def beside(*work: Any) -> AsyncIterator[None]:
    """Done for as long as the context lasts; a fault of it fails the test."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
        assert not [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_ten_pages_cost_less_than_a_fiftieth_of_a_core(tmp_path: Path) -> None:
    without = with_them = 0.0
    seen: list[bytes] = []
    async with AsyncExitStack() as stack:
        pods = await stack.enter_async_context(simulated(3))
        config = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "pods": [spec(pod) for pod in pods],
            "placement": QUEUE_ONLY,
            "p2p": {"min_cached_token_delta": 64},
            "access_log": {"enabled": False},
        }
        file = tmp_path / "gateway.yaml"
        file.write_bytes(msgspec.json.encode(config))
        process, url = await stack.enter_async_context(started("--config", str(file)))
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)))
        await ready(http, url)
        await stack.enter_async_context(beside(load(http, url)))
        await asyncio.sleep(1)
        for _ in range(ROUNDS):
            began = processor_s(process.pid)
            await asyncio.sleep(SPAN_S)
            between = processor_s(process.pid)
            async with beside(*(looks(http, url, seen) for _ in range(PAGES))):
                await asyncio.sleep(SPAN_S)
                with_them += processor_s(process.pid) - between
            without += between - began
    span = ROUNDS * SPAN_S
    print(f"without pages {without / span:.2%} of a core, with {PAGES} of them {with_them / span:.2%}")
    assert len(seen) > 0.8 * PAGES * span
    assert (with_them - without) / span < MOST
