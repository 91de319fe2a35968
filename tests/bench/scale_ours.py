"""What one lookup, and one pod's removal, cost in an index of a given size: `BLOCKS` → JSON, in a process of its own.

Eight pods; each holds the prompt that all hold and then prompts of its own, which begin with the first quarter of that.
"""

import random
import sys
import time
from array import array
from collections.abc import Iterator
from typing import Final

import msgspec

from index import BlockStored, Publisher, RadixIndex, Tier, block_keys, root_key
from tests.bench.clock import median_us, stay_on_one_core
from tests.bench.workload import BLOCK_TOKENS, PROMPT_BLOCKS, STORE_BLOCKS, SYSTEM_BLOCKS

_MODEL: Final = "bench-model"
_PODS: Final = 8
_LOOKUPS: Final = 16
_RUNS: Final = 80


class _Prompt(msgspec.Struct):
    tokens: "array[int]"
    hashes: list[int]


def measure(blocks: int) -> dict[str, float]:
    """Every measure by name: µs."""
    rng = random.Random(1)
    publishers = [Publisher(f"10.0.0.{number}:8000", 0) for number in range(_PODS)]
    index = RadixIndex()
    common = _prompt(rng, PROMPT_BLOCKS)
    own: list[array[int]] = []
    for publisher in publishers:
        index.add_publisher(publisher, _MODEL)
        left = blocks // _PODS
        index.apply(publisher, _stores(None, common, min(left, PROMPT_BLOCKS)))
        left -= min(left, PROMPT_BLOCKS)
        while left:
            prompt = _prompt(rng, min(left, PROMPT_BLOCKS - SYSTEM_BLOCKS))
            left -= len(prompt.hashes)
            index.apply(publisher, _stores(common.hashes[SYSTEM_BLOCKS - 1], prompt, len(prompt.hashes)))
            if len(prompt.hashes) == PROMPT_BLOCKS - SYSTEM_BLOCKS and len(own) < _LOOKUPS:
                own.append(common.tokens[: SYSTEM_BLOCKS * BLOCK_TOKENS] + prompt.tokens)
    assert index.stats().blocks[Tier.GPU] == blocks // _PODS * _PODS
    root = root_key(_MODEL, BLOCK_TOKENS)
    found = {
        "match.shared": [common.tokens],
        "match.one": own,
        "match.miss": [_prompt(rng, PROMPT_BLOCKS).tokens for _ in range(_LOOKUPS)],
    }
    times = {
        name: median_us(index.match, [{BLOCK_TOKENS: block_keys(each, BLOCK_TOKENS, root)} for each in prompts], _RUNS)
        for name, prompts in found.items()
    }
    began = time.process_time()
    index.remove_pod(publishers[0].pod)
    return times | {"remove_pod": (time.process_time() - began) / (blocks // _PODS) * 1e6}


def _prompt(rng: random.Random, blocks: int) -> _Prompt:
    tokens, hashes = array("I"), array("Q")
    tokens.frombytes(rng.randbytes(blocks * BLOCK_TOKENS * tokens.itemsize))
    hashes.frombytes(rng.randbytes(blocks * hashes.itemsize))
    return _Prompt(tokens, hashes.tolist())


def _stores(parent: int | None, prompt: _Prompt, blocks: int) -> Iterator[BlockStored]:
    for at in range(0, blocks, STORE_BLOCKS):
        end = min(at + STORE_BLOCKS, blocks)
        hashes = prompt.hashes[at:end]
        yield BlockStored(hashes, parent, prompt.tokens[at * BLOCK_TOKENS : end * BLOCK_TOKENS], BLOCK_TOKENS)
        parent = hashes[-1]


if __name__ == "__main__":
    stay_on_one_core()
    sys.stdout.write(msgspec.json.encode(measure(int(sys.argv[1]))).decode())
