"""The same measurement of Dynamo's RadixTree: `PUBLISHERS BLOCKS WAY` → JSON. Runs in the peer's own environment.

The tree takes events as JSON with the content hash of every block, which its callers compute from the event's tokens;
that hashing counts for `frames`, where ours hashes too, and not for `apply`. Making the JSON counts nowhere. The tree
works on a thread of its own, so every timed part ends with a lookup, which waits for it; CPU time is the process's.
"""

import gc
import json
import sys
import time
from collections.abc import Iterable
from typing import Any

from dynamo.llm import RadixTree, compute_block_hash_for_seq  # type: ignore[import-not-found]

from tests.bench.clock import median_us, resident_bytes, stay_on_one_core
from tests.bench.workload import BLOCK_TOKENS, WAYS, Store, Way, Workload, workload

_EVENTS_AT_A_TIME = 16
_RUNS = 40
_NOBODYS_BLOCK = 1


def event(data: dict[str, Any]) -> bytes:
    return json.dumps({"event_id": 0, "data": data, "dp_rank": 0}, separators=(",", ":")).encode()


def stored(store: Store, contents: list[int]) -> bytes:
    blocks = [
        {"block_hash": block_hash, "tokens_hash": content}
        for block_hash, content in zip(store.hashes, contents, strict=True)
    ]
    return event({"stored": {"parent_hash": store.parent, "blocks": blocks}})


def apply_all(tree: Any, events: Iterable[tuple[int, bytes]]) -> float:
    """CPU seconds."""
    began = time.process_time()
    for worker, payload in events:
        tree.apply_event(worker, payload)
    tree.find_matches([_NOBODYS_BLOCK])
    return time.process_time() - began


def ingested(tree: Any, work: Workload, at_a_time: int) -> dict[str, float]:
    gc.collect()
    memory = resident_bytes()
    hashing = apply = 0.0
    for at in range(0, len(work.stores), at_a_time):
        part = work.stores[at : at + at_a_time]
        tokens = [store.tokens.tolist() for store in part]
        began = time.process_time()
        contents = [compute_block_hash_for_seq(ids, BLOCK_TOKENS) for ids in tokens]
        hashing += time.process_time() - began
        apply += apply_all(
            tree, [(store.publisher, stored(store, hashes)) for store, hashes in zip(part, contents, strict=True)]
        )
    gc.collect()
    memory = resident_bytes() - memory
    return {
        "apply": apply / work.blocks * 1e6,
        "frames": len(work.stores) / (hashing + apply),
        "memory": memory / work.blocks,
    }


def looked_up(tree: Any, work: Workload) -> dict[str, float]:
    prompts = [tokens.tolist() for tokens in work.lookups["miss"]]
    found = {"hash": median_us(lambda tokens: compute_block_hash_for_seq(tokens, BLOCK_TOKENS), prompts, _RUNS)}
    for kind, arrays in work.lookups.items():
        keys = [compute_block_hash_for_seq(tokens.tolist(), BLOCK_TOKENS) for tokens in arrays]
        assert bool(tree.find_matches(keys[0]).scores) == (kind != "miss")
        if kind == "shared":
            assert list(tree.find_matches(keys[0]).scores.values()) == [work.shared_blocks] * work.publishers
        found[f"match.{kind}"] = median_us(tree.find_matches, keys, _RUNS)
    return found


def evicted(tree: Any, work: Workload) -> dict[str, float]:
    stores = work.evictions()
    half = len(stores) // 2
    by_store = [(store.publisher, store.hashes) for store in stores[:half]]
    one_by_one = [(store.publisher, [each]) for store in stores[half:] for each in reversed(store.hashes)]
    return {"evict": removal(tree, by_store), "evict.single": removal(tree, one_by_one)}


def removal(tree: Any, evictions: list[tuple[int, list[int]]]) -> float:
    events = [(worker, event({"removed": {"block_hashes": hashes}})) for worker, hashes in evictions]
    return apply_all(tree, events) / sum(len(hashes) for _, hashes in evictions) * 1e6


def removed(tree: Any, work: Workload) -> dict[str, float]:
    pods = set(work.removed_pods())
    held = sum(len(store.hashes) for store in work.stores if store.publisher in pods)
    held -= sum(len(store.hashes) for store in work.evictions() if store.publisher in pods)
    began = time.process_time()
    for worker in pods:
        tree.remove_worker(worker)
    tree.find_matches([_NOBODYS_BLOCK])
    return {"remove_pod": (time.process_time() - began) / held * 1e6}


def measure(work: Workload, way: Way) -> dict[str, float]:
    tree = RadixTree()
    found = ingested(tree, work, len(work.stores) if way.queued else _EVENTS_AT_A_TIME)
    return found if way.only_ingest else found | looked_up(tree, work) | evicted(tree, work) | removed(tree, work)


if __name__ == "__main__":
    way = WAYS[sys.argv[3]]
    if way.one_core:
        stay_on_one_core()
    sys.stdout.write(json.dumps(measure(workload(int(sys.argv[1]), int(sys.argv[2])), way)))
