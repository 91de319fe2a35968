import asyncio
import socket
import time
from typing import Any

import aiohttp
import msgspec
import pytest

from loadgen.pod import SimulatedPod
from loadgen.profile import PodProfile
from loadgen.pulls import parse_source
from tests.loadgen.clients import cached, complete, published, residents, until

# Computing 2,000 tokens takes 400 ms, pulling them 20 ms.
SLOW_PREFILL = PodProfile(prefill_us_per_token=200.0, step_fixed_ms=0.1, pull_fixed_ms=1.0, pull_us_per_token=10.0)
FAST = msgspec.structs.replace(SLOW_PREFILL, speed=1000)
PROMPT = list(range(5000, 7000))


def device_host_p2p(pod: SimulatedPod) -> tuple[int, int, int]:
    counts = pod.engines[0].scheduler.counts
    return counts["cached device"], counts["cached host"], counts["cached p2p"]


async def test_a_pull_moves_blocks_and_beats_recomputing(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=SLOW_PREFILL) as source, SimulatedPod(profile=SLOW_PREFILL) as consumer:
        started = time.monotonic()
        computed = await complete(http, source, PROMPT, max_tokens=8)
        recompute_s = time.monotonic() - started
        started = time.monotonic()
        pulled = await complete(http, consumer, PROMPT, max_tokens=8, kv_transfer_params=source.kv_source("id"))
        pull_s = time.monotonic() - started
        assert cached(pulled) == 2000
        assert device_host_p2p(consumer) == (0, 0, 2000)
        assert pulled["choices"][0]["text"] == computed["choices"][0]["text"]
        assert pull_s < recompute_s / 2


async def test_pulled_blocks_land_in_both_tiers_and_are_announced(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST) as source, SimulatedPod(profile=FAST) as consumer:
        await complete(http, source, PROMPT)
        await complete(http, consumer, PROMPT, kv_transfer_params=source.kv_source("id"))
        assert consumer.cached_blocks() == source.cached_blocks()
        events = await published(consumer)
        assert len(residents(events, "GPU")) == len(residents(events, "CPU")) == 125
        assert residents(events, "GPU") == residents(await published(source), "GPU")
        assert cached(await complete(http, consumer, PROMPT)) == 2000


async def test_only_what_the_source_has_is_pulled(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST) as source, SimulatedPod(profile=FAST) as consumer:
        await complete(http, source, PROMPT[:800])
        await complete(http, consumer, PROMPT[:160])
        assert cached(await complete(http, consumer, PROMPT, kv_transfer_params=source.kv_source("id"))) == 800
        assert device_host_p2p(consumer) == (160, 0, 640)


async def test_a_warm_up_request_pulls_the_prefix_it_names(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST) as source, SimulatedPod(profile=FAST) as consumer:
        await complete(http, source, PROMPT)
        await complete(http, consumer, PROMPT[: 16 * 50 + 1], kv_transfer_params=source.kv_source("id"))
        assert device_host_p2p(consumer) == (0, 0, 800)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_dead_port_means_recomputing(http: aiohttp.ClientSession) -> None:
    params = {"remote_kv_source": {"kv_request_id": "x", "remote_host": "127.0.0.1", "remote_port": free_port()}}
    async with SimulatedPod(profile=FAST) as consumer:
        assert cached(await complete(http, consumer, PROMPT, kv_transfer_params=params)) == 0


async def test_a_source_killed_in_the_middle_means_recomputing(http: aiohttp.ClientSession) -> None:
    slow_link = msgspec.structs.replace(FAST, pull_us_per_token=10_000_000.0)
    async with SimulatedPod(profile=slow_link) as source, SimulatedPod(profile=FAST) as consumer:
        await complete(http, source, PROMPT)
        pull = asyncio.create_task(complete(http, consumer, PROMPT, kv_transfer_params=source.kv_source("id")))
        await until(lambda: consumer.engines[0].scheduler.gpu.usage > 0)
        await source.kill()
        assert cached(await pull) == 0
        assert consumer.engines[0].scheduler.gpu.usage == 0


async def test_a_stalled_source_is_given_up_at_the_handshake_deadline(http: aiohttp.ClientSession) -> None:
    hasty = msgspec.structs.replace(FAST, pull_handshake_deadline_s=0.05)
    async with SimulatedPod(profile=FAST) as source, SimulatedPod(profile=hasty) as consumer:
        await complete(http, source, PROMPT)
        source.stall()
        assert cached(await complete(http, consumer, PROMPT, kv_transfer_params=source.kv_source("id"))) == 0


@pytest.mark.parametrize(
    "different",
    [{"seed": "1"}, {"root": "/models/other"}, {"profile": msgspec.structs.replace(FAST, block_size=32)}],
    ids=["seed", "model", "block size"],
)
async def test_pods_that_differ_refuse_each_other(http: aiohttp.ClientSession, different: dict[str, Any]) -> None:
    async with SimulatedPod(profile=FAST) as source, SimulatedPod(**({"profile": FAST} | different)) as consumer:
        await complete(http, source, PROMPT)
        assert cached(await complete(http, consumer, PROMPT, kv_transfer_params=source.kv_source("id"))) == 0


async def test_a_source_called_by_another_name_refuses(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST) as source, SimulatedPod(profile=FAST) as consumer:
        await complete(http, source, PROMPT)
        params = source.kv_source("id")
        params["remote_kv_source"]["remote_host"] = "localhost"
        assert cached(await complete(http, consumer, PROMPT, kv_transfer_params=params)) == 0


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"remote_kv_source": None},
        {"remote_kv_sources": {"kv_request_id": "x", "remote_host": "h", "remote_port": 1}},
        {"remote_kv_source": {"remote_host": "h", "remote_port": 1}},
        {"remote_kv_source": {"kv_request_id": "x", "host": "h", "remote_port": 1}},
        {"remote_kv_source": {"kv_request_id": "x", "remote_host": "h", "remote_port": 0}},
    ],
)
def test_a_misspelt_source_is_no_source(params: object) -> None:
    assert parse_source(params) is None


async def test_each_rank_serves_its_own_blocks(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST, ranks=2) as source, SimulatedPod(profile=FAST) as consumer:
        body = {"prompt": PROMPT, "max_tokens": 1}
        async with http.post(f"{source.url}/v1/completions", json=body, headers={"x-data-parallel-rank": "1"}):
            pass
        assert cached(await complete(http, consumer, PROMPT, kv_transfer_params=source.kv_source("a", rank=0))) == 0
        await consumer.restart()
        assert cached(await complete(http, consumer, PROMPT, kv_transfer_params=source.kv_source("b", rank=1))) == 2000


async def test_a_deferred_request_does_not_hold_up_the_others(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST) as source, SimulatedPod(profile=FAST) as consumer:
        await complete(http, source, PROMPT)
        source.stall()
        pull = asyncio.create_task(complete(http, consumer, PROMPT, kv_transfer_params=source.kv_source("id")))
        await until(lambda: len(consumer.engines[0].scheduler.loading) == 1)
        await complete(http, consumer, [1, 2, 3])
        source.resume()
        assert cached(await pull) == 2000


async def test_a_pull_that_came_to_nothing_looks_at_the_gpu_again(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST) as source, SimulatedPod(profile=FAST) as consumer:
        await complete(http, consumer, PROMPT[:160])
        source.stall()
        pull = asyncio.create_task(complete(http, consumer, PROMPT, kv_transfer_params=source.kv_source("id")))
        await until(lambda: len(consumer.engines[0].scheduler.loading) == 1)
        await complete(http, consumer, PROMPT[:800])
        await source.kill()
        assert cached(await pull) == 800


async def test_a_client_that_leaves_ends_its_pull(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST) as source, SimulatedPod(profile=FAST) as consumer:
        await complete(http, source, PROMPT)
        source.stall()
        pull = asyncio.create_task(complete(http, consumer, PROMPT, kv_transfer_params=source.kv_source("id")))
        await until(lambda: len(consumer.engines[0].scheduler.loading) == 1)
        pull.cancel()
        await until(lambda: not consumer.engines[0].scheduler.loading)
        assert consumer.requests[-1].outcome == "aborted"
        assert consumer.engines[0].waiting == 0


async def test_a_stranger_on_the_p2p_port_is_dismissed(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST) as source:
        for frame in (
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x01\xc1",
            b"\x00\x00\x00\x01\xc0",
            b"\x00\x00\x00\x09GET / HTTP",
        ):
            reader, writer = await asyncio.open_connection(source.p2p_host, source.p2p_port)
            writer.write(frame)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        assert source.alive
