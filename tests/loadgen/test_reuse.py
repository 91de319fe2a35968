"""What a request reports as cached, held against vLLM 0.32's rule: the GPU is searched for at most prompt - 1 tokens,
what comes after it, the CPU tier and then a peer, for all full blocks.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, combinations, count

import aiohttp
import msgspec
import pytest

from loadgen.hashing import BlockHasher
from loadgen.pod import SimulatedPod
from loadgen.profile import PodProfile
from loadgen.sequence import Sequence, State
from tests.loadgen.clients import cached, complete
from tests.loadgen.test_scheduler import PROFILE, Harness, sequential

BLOCK = 32
FAST = PodProfile(block_size=BLOCK, speed=1000)
NO_CPU_TIER = msgspec.structs.replace(FAST, cpu_blocks=0)
SMALL = PodProfile(block_size=4, gpu_blocks=8192, speed=1_000_000)
# 4,000 tokens are 125 whole blocks; the others end within a block, or one token behind it.
LENGTHS = (3999, 4000, 4001, 4010)


def rule(
    gpu: Collection[object],
    cpu: Collection[object],
    peer: Collection[object],
    blocks: Iterable[object],
    tokens: int,
    size: int = BLOCK,
) -> tuple[int, int, int]:
    """Tokens reused from each source, block by block; ``blocks`` names those of the sequence, in order."""
    reused = [0, 0, 0]
    source = 0
    for end, block in zip(range(size, tokens + 1, size), blocks, strict=False):
        if source == 0 and not (block in gpu and end <= tokens - 1):
            source = 1
        if source == 1 and block not in cpu:
            source = 2
        if source == 2 and block not in peer:
            break
        reused[source] += size
    return reused[0], reused[1], reused[2]


async def counted(http: aiohttp.ClientSession, pod: SimulatedPod) -> tuple[int, int, int]:
    """Return what the pod's metrics say was reused: from its GPU, its CPU tier and its peers."""
    async with http.get(f"{pod.url}/metrics") as response:
        page = await response.text()
    by_source = {
        source: float(line.rpartition(" ")[2])
        for line in page.splitlines()
        for source in ("device", "host", "p2p")
        if line.startswith("vllm:prompt_tokens_cached_by_source_total") and f'source="{source}"' in line
    }
    return int(by_source["device"]), int(by_source["host"]), int(by_source["p2p"])


@pytest.mark.parametrize("tokens", LENGTHS)
async def test_what_only_the_gpu_holds_ends_before_the_last_token(http: aiohttp.ClientSession, tokens: int) -> None:
    prompt, held = sequential(0, tokens), range(tokens // BLOCK)
    async with SimulatedPod(profile=NO_CPU_TIER) as pod:
        await complete(http, pod, prompt)
        reported = cached(await complete(http, pod, prompt))
        assert await counted(http, pod) == rule(held, (), (), held, tokens)
    assert reported == {3999: 3968, 4000: 3968, 4001: 4000, 4010: 4000}[tokens]


@pytest.mark.parametrize("tokens", LENGTHS)
async def test_what_the_cpu_tier_holds_is_reused_to_its_end(http: aiohttp.ClientSession, tokens: int) -> None:
    prompt, held = sequential(0, tokens), range(tokens // BLOCK)
    async with SimulatedPod(profile=FAST) as pod:
        await complete(http, pod, prompt)
        assert pod.clear_gpu()
        reported = cached(await complete(http, pod, prompt))
        assert await counted(http, pod) == rule((), held, (), held, tokens)
    assert reported == {3999: 3968, 4000: 4000, 4001: 4000, 4010: 4000}[tokens]


@pytest.mark.parametrize("tokens", LENGTHS)
async def test_the_cpu_tier_gives_the_last_block_that_the_gpu_holds_too(
    http: aiohttp.ClientSession, tokens: int
) -> None:
    prompt, held = sequential(0, tokens), range(tokens // BLOCK)
    async with SimulatedPod(profile=FAST) as pod:
        await complete(http, pod, prompt)
        reported = cached(await complete(http, pod, prompt))
        assert await counted(http, pod) == rule(held, held, (), held, tokens)
    assert reported == {3999: 3968, 4000: 4000, 4001: 4000, 4010: 4000}[tokens]


@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("warm", [0, 1600, 4096], ids=["cold", "half warm", "warm"])
async def test_a_pull_brings_the_prompt_to_its_end(http: aiohttp.ClientSession, tokens: int, warm: int) -> None:
    prompt, held = sequential(0, tokens), range(tokens // BLOCK)
    async with SimulatedPod(profile=FAST) as source, SimulatedPod(profile=NO_CPU_TIER) as consumer:
        await complete(http, source, prompt)
        await complete(http, consumer, prompt[:warm] or [7])
        reported = cached(await complete(http, consumer, prompt, kv_transfer_params=source.kv_source("id")))
        assert await counted(http, consumer) == rule(held[: warm // BLOCK], (), held, held, tokens)
    assert reported == {3999: 3968, 4000: 4000, 4001: 4000, 4010: 4000}[tokens]


def subsets(blocks: int) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(range(blocks), size) for size in range(blocks + 1))


def seed(pod: SimulatedPod, hashes: list[bytes], gpu: Iterable[int], cpu: Iterable[int]) -> None:
    """Let a pod hold these of the blocks."""
    scheduler = pod.engines[0].scheduler
    for i in gpu:
        (block,), _ = scheduler.gpu.allocate(1)
        scheduler.gpu.announce(block, hashes[i])
        scheduler.gpu.release([block])
    scheduler.cpu.store([hashes[i] for i in cpu])


@pytest.mark.parametrize("tokens", [11, 12, 13])
async def test_every_mix_of_blocks_in_every_tier_is_reported_by_the_rule(
    http: aiohttp.ClientSession, tokens: int
) -> None:
    full, prompts, hasher = tokens // 4, count(step=100), BlockHasher(4, seed="0")
    async with SimulatedPod(profile=SMALL) as source, SimulatedPod(profile=SMALL) as consumer:
        for gpu in subsets(full):
            for cpu in subsets(full):
                for peer in range(full + 1):
                    prompt = sequential(next(prompts), tokens)
                    hashes: list[bytes] = []
                    hasher.extend(hashes, prompt)
                    seed(source, hashes, (), range(peer))
                    seed(consumer, hashes, gpu, cpu)
                    before = consumer.engines[0].scheduler.counts.copy()
                    params = source.kv_source("id") if peer else None
                    reported = cached(await complete(http, consumer, prompt, kv_transfer_params=params))
                    delta = consumer.engines[0].scheduler.counts - before
                    by_source = delta["cached device"], delta["cached host"], delta["cached p2p"]
                    assert by_source == rule(gpu, cpu, range(peer), range(full), tokens, 4), (gpu, cpu, peer)
                    assert reported == sum(by_source)


@pytest.mark.parametrize("cpu_blocks", [0, 100], ids=["GPU only", "GPU and CPU"])
@pytest.mark.parametrize("others", [17, 18, 19, 20])
@pytest.mark.parametrize("tokens", [15, 16, 17])
def test_a_request_put_back_reuses_by_the_rule_again_and_is_reported_once(
    tokens: int, others: int, cpu_blocks: int
) -> None:
    harness = Harness(msgspec.structs.replace(PROFILE, cpu_blocks=cpu_blocks))
    scheduler = harness.scheduler

    def due(sequence: Sequence) -> tuple[int, int, int]:
        tiers = scheduler.gpu.hashes(), scheduler.cpu.hashes(), ()
        return rule(*tiers, sequence.hashes, len(sequence.tokens), 4)

    harness.submit(sequential(0, tokens), 12)
    harness.drain()
    other = harness.submit(sequential(50, others), 12)
    again = harness.submit(sequential(0, tokens), 12)
    reported = due(again)
    while not scheduler.counts["preemptions"]:
        assert harness.step()
    assert again in scheduler.waiting
    scheduler.abort(other)
    scheduler.offload()
    length, resumed = len(again.tokens), due(again)
    while again.state is not State.RUNNING:
        assert harness.step()
    assert harness.plan == [(again, max(1, length - sum(resumed)))]
    assert again.loaded == (resumed[1] > 0)
    harness.drain()
    assert again.tokens[tokens:] == again.answer.token_ids
    assert again.cached == reported
    assert tuple(scheduler.counts[f"cached {source}"] for source in ("device", "host", "p2p")) == reported
