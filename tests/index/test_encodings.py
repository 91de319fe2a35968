"""Frames as engines of every age publish them, made by hand: decoded, applied, and what is then known."""

import hashlib
from typing import Any, NamedTuple

import msgspec
import pytest

from index import Cached, Publisher, RadixIndex, block_keys, decode_batch, root_key, salt_extra
from index.block_hash import extra_bytes

POD = Publisher("10.0.0.1:8000", 0)
TOKENS = list(range(12))
SIZE = 4
A, B, C = 0x1111, 0x2222, 0x3333


def digest(number: int) -> bytes:
    """A whole 32-byte hash whose last 8 bytes are the number that integer hashes have."""
    return hashlib.sha256(bytes([number & 255])).digest()[:24] + number.to_bytes(8, "big")


class Engine(NamedTuple):
    """One age: how it publishes that A and B are stored, that C follows B, and that C is gone again."""

    first: object
    second: object
    removed: object
    reset: object = ("AllBlocksCleared",)
    batch: str = "ranked"
    tier: str = "gpu"
    namespace: str = "base"
    extra: bytes | None = None


def stored(*rest: Any, hashes: Any = (A, B), parent: Any = None) -> list[Any]:
    return ["BlockStored", list(hashes), parent, TOKENS[:8], SIZE, *rest]


def follows(*rest: Any, hashes: Any = (C,), parent: Any = B) -> list[Any]:
    return ["BlockStored", list(hashes), parent, TOKENS[8:], SIZE, *rest]


def mapped(event: list[Any], *, removed: bool = False, **rest: Any) -> dict[str, Any]:
    names = ["block_hashes"] if removed else ["block_hashes", "parent_block_hash", "token_ids", "block_size"]
    always = {"medium": "GPU"} if removed else {"lora_id": None, "medium": "GPU", "lora_name": None}
    return {"type": event[0], **dict(zip(names, event[1:], strict=False)), **always, **rest}


def modern(**rest: Any) -> Engine:
    """Events as maps."""
    return Engine(
        mapped(stored(), **rest),
        mapped(follows(), **rest),
        mapped(
            ["BlockRemoved", [C]], removed=True, **({"group_idx": rest["group_idx"]} if "group_idx" in rest else {})
        ),
        {"type": "AllBlocksCleared"},
    )


HYBRID = [0, "full_attention", None]
SALTED = [["salt"], None]
PICTURED = [[["picture", 2]], None]
ENGINES = {
    "vLLM 0.8, five values": Engine(stored(), follows(), ["BlockRemoved", [C]], batch="rankless"),
    "vLLM 0.8, with lora_id": Engine(stored(None), follows(None), ["BlockRemoved", [C]], batch="rankless"),
    "vLLM 0.9, ranked batches": Engine(stored(None), follows(None), ["BlockRemoved", [C]]),
    "vLLM 0.11, with medium": Engine(stored(None, "GPU"), follows(None, "GPU"), ["BlockRemoved", [C], "GPU"]),
    "an offloaded tier": Engine(stored(None, "CPU"), follows(None, "CPU"), ["BlockRemoved", [C], "CPU"], tier="cpu"),
    "hashes as bytes": Engine(
        stored(None, "GPU", hashes=(digest(A), digest(B))),
        follows(None, "GPU", hashes=(digest(C),), parent=digest(B)),
        ["BlockRemoved", [digest(C)], "GPU"],
    ),
    "a named adapter": Engine(
        stored(3, "GPU", "adapter"),
        follows(3, "GPU", "adapter"),
        ["BlockRemoved", [C], "GPU"],
        namespace="adapter",
    ),
    "a salt": Engine(
        stored(None, "GPU", None, SALTED),
        follows(None, "GPU", None, [None]),
        ["BlockRemoved", [C], "GPU"],
        extra=salt_extra("salt"),
    ),
    "an adapter and a salt": Engine(
        stored(3, "GPU", "adapter", [["adapter", "salt"], ["adapter"]]),
        follows(3, "GPU", "adapter", [["adapter"]]),
        ["BlockRemoved", [C], "GPU"],
        namespace="adapter",
        extra=salt_extra("salt"),
    ),
    "a picture": Engine(
        stored(None, "GPU", None, PICTURED),
        follows(None, "GPU", None, [None]),
        ["BlockRemoved", [C], "GPU"],
        extra=extra_bytes([["picture", 2]]),
    ),
    "groups": Engine(
        stored(None, "GPU", None, None, 0), follows(None, "GPU", None, None, 0), ["BlockRemoved", [C], "GPU", 0]
    ),
    "groups with their kind": Engine(
        stored(None, "GPU", None, None, *HYBRID),
        follows(None, "GPU", None, None, *HYBRID),
        ["BlockRemoved", [C], "GPU", 0],
    ),
    "newer values behind those known": Engine(
        stored(None, "GPU", None, None, *HYBRID, "LOCAL", {"a": 1}),
        follows(None, "GPU", None, None, *HYBRID, "LOCAL", {"a": 1}),
        ["BlockRemoved", [C], "GPU", 0, "LOCAL"],
        ["AllBlocksCleared", "GPU"],
    ),
    "vLLM 0.24, maps": modern(),
    "maps with all they can have": modern(
        extra_keys=None, group_idx=0, kv_cache_spec_kind="full_attention", kv_cache_spec_sliding_window=None
    ),
    "vLLM 0.33, tokens looked ahead at": modern(lookahead_token_ids=[9, 9, 9]),
    "maps with fields not known yet": modern(locality="LOCAL", newer=[{"a": b"\0"}]),
    "a batch that is a map": modern()._replace(batch="map"),
    "positional events in a batch that is a map": Engine(
        stored(None, "GPU"), follows(None, "GPU"), ["BlockRemoved", [C], "GPU"], batch="map"
    ),
    "SGLang, signed hashes": Engine(
        stored(None, "GPU", hashes=(A - 2**63, B - 2**63)),
        follows(None, "GPU", hashes=(C - 2**63,), parent=B - 2**63),
        ["BlockRemoved", [C - 2**63], "GPU"],
    ),
    "SGLang, host memory": Engine(
        stored(None, "CPU_TIER1"), follows(None, "CPU_TIER1"), ["BlockRemoved", [C], "CPU_TIER1"], tier="cpu"
    ),
}


def payload(engine: Engine, event: object) -> bytes:
    batches: dict[str, object] = {
        "rankless": [1.5, [event]],
        "ranked": [1.5, [event], 0],
        "map": {"type": "KVEventBatch", "ts": 1.5, "events": [event], "data_parallel_rank": 0},
    }
    return msgspec.msgpack.encode(batches[engine.batch])


class Gateway:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.index = RadixIndex()
        self.index.add_publisher(POD, "base")

    def hear(self, event: object) -> None:
        batch = decode_batch(payload(self.engine, event))
        assert not batch.errors
        applied = self.index.apply(POD, batch.events)
        assert (applied.malformed, applied.orphaned, applied.unknown_removed, applied.placeholder_pending) == (0,) * 4
        self.index.check_invariants()

    def cached_blocks(self, *, namespace: str | None = None, extra: bytes | None = None) -> Cached:
        extras = {0: extra} if extra else None
        keys = block_keys(TOKENS, SIZE, root_key(namespace or self.engine.namespace, SIZE), extras)
        found = self.index.match({SIZE: keys}).get(POD, Cached(0, 0, 0))
        return Cached(*(tokens // SIZE for tokens in found))

    def held(self) -> int:
        return getattr(self.cached_blocks(extra=self.engine.extra), self.engine.tier)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_what_an_engine_publishes_is_known(engine: Engine) -> None:
    gateway = Gateway(engine)
    held = []
    for event in (engine.first, engine.second, engine.removed, engine.reset):
        gateway.hear(event)
        held.append(gateway.held())
    assert held == [2, 3, 2, 2 if engine.tier == "cpu" else 0]


@pytest.mark.parametrize(
    "engine", [engine for engine in ENGINES.values() if engine.extra or engine.namespace != "base"]
)
def test_what_depends_on_more_than_tokens_is_not_known_as_the_base_models(engine: Engine) -> None:
    gateway = Gateway(engine)
    gateway.hear(engine.first)
    assert gateway.cached_blocks(namespace="base") == Cached(0, 0, 0)


@pytest.mark.parametrize("lora_id", [7, "a-uuid"])
def test_an_adapter_without_a_name_is_not_taken_for_the_base_model(lora_id: object) -> None:
    engine = Engine(stored(lora_id), follows(lora_id), ["BlockRemoved", [C]])
    gateway = Gateway(engine)
    gateway.hear(engine.first)
    gateway.hear(engine.second)
    assert gateway.held() == 0
    gateway.hear(engine.removed)
    assert sum(gateway.index.stats().blocks.values()) == 2


@pytest.mark.parametrize("lora_id", [None, 0])
def test_no_adapter_is_the_base_model(lora_id: object) -> None:
    engine = Engine(stored(lora_id), follows(lora_id), ["BlockRemoved", [C]])
    gateway = Gateway(engine)
    gateway.hear(engine.first)
    assert gateway.held() == 2


@pytest.mark.parametrize("medium", ["STORAGE", "CPU_TIER2"])
def test_what_lies_in_storage_is_skipped(medium: str) -> None:
    batch = decode_batch(msgspec.msgpack.encode([1.0, [stored(None, medium), ["BlockRemoved", [C], medium]]]))
    assert (batch.events, dict(batch.errors)) == ([], {"storage-tier": 2})
