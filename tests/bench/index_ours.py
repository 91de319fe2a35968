"""One measurement of the index in a process of its own, for its memory to be told: `PUBLISHERS BLOCKS WAY` → JSON."""

import gc
import sys
import time

import msgspec

from index import BlockRemoved, Event, Publisher, RadixIndex, Tier, block_keys, decode_batch, root_key
from tests.bench.clock import median_us, resident_bytes, stay_on_one_core
from tests.bench.workload import BLOCK_TOKENS, PROMPT_BLOCKS, WAYS, Store, Way, Workload, workload

_MODEL = "bench-model"
_FRAMES_AT_A_TIME = 16  # about what a subscriber takes in its slice of time; not where all are queued
_GROUP = 0  # of the layers with full attention
_RUNS = 40


def measure(work: Workload, way: Way) -> dict[str, float]:
    """Every measure by name."""
    publishers = [Publisher(f"10.0.{number >> 8}.{number & 255}:8000", 0) for number in range(work.publishers)]
    frames = [(publishers[store.publisher], frame(store)) for store in work.stores]
    index = RadixIndex()
    for publisher in publishers:
        index.add_publisher(publisher, _MODEL)
    found = ingested(index, frames, work.blocks, len(frames) if way.queued else _FRAMES_AT_A_TIME)
    if way.only_ingest:
        return found
    return found | looked_up(index, work) | evicted(index, publishers, work) | removed(index, publishers, work)


def frame(store: Store) -> bytes:
    """A store as a vLLM pod publishes it."""
    event = {
        "type": "BlockStored",
        "block_hashes": store.hashes,
        "parent_block_hash": store.parent,
        "token_ids": store.tokens.tolist(),
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(store.hashes),
        "group_idx": _GROUP,
        "kv_cache_spec_kind": "full_attention",
    }
    return msgspec.msgpack.encode([0.0, [event], 0])


def ingested(index: RadixIndex, frames: list[tuple[Publisher, bytes]], blocks: int, at_a_time: int) -> dict[str, float]:
    """Frames → index: what decoding and applying cost, and what stays in memory."""
    gc.collect()
    memory = resident_bytes()
    decode = apply = 0.0
    for at in range(0, len(frames), at_a_time):
        part = frames[at : at + at_a_time]
        began = time.process_time()
        batches = [(publisher, decode_batch(payload).events) for publisher, payload in part]
        decoded = time.process_time()
        for publisher, events in batches:
            index.apply(publisher, events)
        apply += time.process_time() - decoded
        decode += decoded - began
    gc.collect()
    memory = resident_bytes() - memory
    assert index.stats().blocks[Tier.GPU] == blocks
    return {
        "apply": apply / blocks * 1e6,
        "frames": len(frames) / (decode + apply),
        "memory": memory / blocks,
    }


def looked_up(index: RadixIndex, work: Workload) -> dict[str, float]:
    """Hashing and matching a prompt of 32K tokens."""
    root = root_key(_MODEL, BLOCK_TOKENS)
    prompts = work.lookups["miss"]
    found = {"hash": median_us(lambda tokens: block_keys(tokens, BLOCK_TOKENS, root), prompts, _RUNS)}
    for kind, prompts in work.lookups.items():
        keys = [{BLOCK_TOKENS: block_keys(tokens, BLOCK_TOKENS, root)} for tokens in prompts]
        assert all(len(chain[BLOCK_TOKENS]) == PROMPT_BLOCKS for chain in keys)
        assert bool(index.match(keys[0])) == (kind != "miss")
        if kind == "shared":
            held = [cached.any for cached in index.match(keys[0]).values()]
            assert held == [work.shared_blocks * BLOCK_TOKENS] * work.publishers
        found[f"match.{kind}"] = median_us(index.match, keys, _RUNS)
    return found


def evicted(index: RadixIndex, publishers: list[Publisher], work: Workload) -> dict[str, float]:
    """Blocks that leave as a full cache makes room: by stores, and one by one from the end, as vLLM tells it."""
    stores = work.evictions()
    half = len(stores) // 2
    by_store: list[tuple[Publisher, list[Event]]] = [
        (publishers[store.publisher], [BlockRemoved(store.hashes, Tier.GPU, _GROUP)]) for store in stores[:half]
    ]
    one_by_one: list[tuple[Publisher, list[Event]]] = [
        (publishers[store.publisher], [BlockRemoved([each], Tier.GPU, _GROUP) for each in reversed(store.hashes)])
        for store in stores[half:]
    ]
    return {"evict": _removal(index, by_store), "evict.single": _removal(index, one_by_one)}


def _removal(index: RadixIndex, batches: list[tuple[Publisher, list[Event]]]) -> float:
    """Per block, µs."""
    before = index.stats().blocks[Tier.GPU]
    began = time.process_time()
    for publisher, events in batches:
        index.apply(publisher, events)
    used = time.process_time() - began
    return used / (before - index.stats().blocks[Tier.GPU]) * 1e6


def removed(index: RadixIndex, publishers: list[Publisher], work: Workload) -> dict[str, float]:
    """Pods that leave with all they hold."""
    before = index.stats().blocks[Tier.GPU]
    began = time.process_time()
    for number in work.removed_pods():
        index.remove_pod(publishers[number].pod)
    used = time.process_time() - began
    return {"remove_pod": used / (before - index.stats().blocks[Tier.GPU]) * 1e6}


if __name__ == "__main__":
    way = WAYS[sys.argv[3]]
    if way.one_core:
        stay_on_one_core()
    measured = measure(workload(int(sys.argv[1]), int(sys.argv[2])), way)
    sys.stdout.write(msgspec.json.encode(measured).decode())
