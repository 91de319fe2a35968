from array import array
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.events import AllBlocksCleared, Batch, BlockRemoved, BlockStored, DecodeError, Tier, decode_batch

STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}
PLAIN = BlockStored([11, 12], None, array("I", [1, 2, 3, 4]), 2)
PLACEHOLDER = {**STORED, "block_hashes": [11], "token_ids": [], "block_size": 0, "medium": "CPU"}


def decode(*events: object) -> Batch:
    return decode_batch(msgspec.msgpack.encode([1.5, list(events), 3]))


def test_a_modern_batch_is_decoded() -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [11], "medium": "CPU", "group_idx": 1}
    batch = decode(STORED, removed, {"type": "AllBlocksCleared"})
    assert batch == Batch(1.5, 3, [PLAIN, BlockRemoved([11], Tier.CPU, 1), AllBlocksCleared()], Counter())


def test_all_that_the_index_uses_is_taken_over() -> None:
    batch = decode(
        STORED
        | {
            "parent_block_hash": 10,
            "medium": "CPU",
            "lora_name": "adapter",
            "extra_keys": [["adapter", "salt"], None],
            "group_idx": 2,
            "kv_cache_spec_kind": "full_attention",
            "kv_cache_spec_sliding_window": None,
            "lookahead_token_ids": [9],
        }
    )
    assert batch.events == [
        BlockStored(
            [11, 12],
            10,
            array("I", [1, 2, 3, 4]),
            2,
            Tier.CPU,
            "adapter",
            [["adapter", "salt"], None],
            2,
            "full_attention",
        )
    ]


def test_positional_events_are_decoded_with_and_without_their_defaults() -> None:
    batch = decode(
        ["BlockStored", [11, 12], None, [1, 2, 3, 4], 2],
        ["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, None, "CPU", "a", None, 1, "mla_attention", None, "newer"],
        ["BlockRemoved", [11]],
        ["BlockRemoved", [11], "CPU", 1, "newer"],
        ["AllBlocksCleared"],
    )
    assert batch.events == [
        PLAIN,
        BlockStored([11, 12], 10, array("I", [1, 2, 3, 4]), 2, Tier.CPU, "a", None, 1, "mla_attention"),
        BlockRemoved([11]),
        BlockRemoved([11], Tier.CPU, 1),
        AllBlocksCleared(),
    ]
    assert not batch.errors


def test_a_batch_without_rank_and_one_as_a_map_are_decoded() -> None:
    assert decode_batch(msgspec.msgpack.encode([1, [STORED]])) == Batch(1.0, None, [PLAIN], Counter())
    as_map = {"ts": 2.0, "events": [STORED], "data_parallel_rank": 1, "newer": 0}
    assert decode_batch(msgspec.msgpack.encode(as_map)) == Batch(2.0, 1, [PLAIN], Counter())


def test_trailing_values_of_a_newer_batch_are_ignored() -> None:
    assert decode_batch(msgspec.msgpack.encode([1.0, [STORED], 0, "newer"])).events == [PLAIN]
    assert decode_batch(msgspec.msgpack.encode([1.0, [STORED], "zero"])) == Batch(1.0, None, [PLAIN], Counter())


def test_hashes_in_all_three_forms_look_alike() -> None:
    number = 2**64 - 5
    digest = b"\x01" * 24 + number.to_bytes(8, "big")
    for form in (number, -5, digest):
        batch = decode(STORED | {"block_hashes": [form, 12], "parent_block_hash": form}, ["BlockRemoved", [form]])
        stored, removed = batch.events
        assert isinstance(stored, BlockStored)
        assert isinstance(removed, BlockRemoved)
        assert (stored.block_hashes, stored.parent_block_hash) == ([number, 12], number)
        assert removed.block_hashes == [number]


def test_a_missing_medium_is_the_gpu() -> None:
    without = {name: value for name, value in STORED.items() if name != "medium"}
    assert decode(STORED | {"medium": None}, without).events == [PLAIN, PLAIN]


def test_storage_is_skipped_and_an_unknown_medium_counted() -> None:
    batch = decode(STORED | {"medium": "STORAGE"}, STORED | {"medium": "TAPE"}, ["BlockRemoved", [1], ""], STORED)
    assert batch.events == [PLAIN]
    assert batch.errors == {"storage-tier": 1, "unknown-medium": 2}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"type": "BlockMoved"}, "unknown-kind"),
        ({"block_hashes": [1]}, "unknown-kind"),
        (["BlockMoved", [1]], "unknown-kind"),
        ([1, 2], "unknown-kind"),
        ([], "malformed"),
        (None, "malformed"),
        (7, "malformed"),
        (msgspec.Raw(b"\x81\xa4type\xa1\xff"), "malformed"),
        (["BlockStored", [1], None, [1]], "malformed-stored"),
        (STORED | {"block_hashes": "none"}, "malformed-stored"),
        (STORED | {"block_hashes": ["x", 1]}, "malformed-stored"),
        (STORED | {"block_hashes": [b"", 1]}, "malformed-stored"),
        (STORED | {"parent_block_hash": [1]}, "malformed-stored"),
        (STORED | {"token_ids": [1, 2, 3, -1]}, "malformed-stored"),
        (STORED | {"token_ids": [1, 2, 3, 2**32]}, "malformed-stored"),
        (STORED | {"token_ids": [1, 2, 3]}, "malformed-stored"),
        (STORED | {"block_size": 0}, "malformed-stored"),
        (STORED | {"block_size": -2}, "malformed-stored"),
        (STORED | {"block_size": 2**30}, "malformed-stored"),
        (STORED | {"extra_keys": [None]}, "malformed-stored"),
        (STORED | {"extra_keys": ["salt", None]}, "malformed-stored"),
        (STORED | {"token_ids": [1], "group_idx": 0, "kv_cache_spec_kind": "full_attention"}, "malformed-stored"),
        ({"type": "BlockRemoved"}, "malformed-removed"),
        (["BlockRemoved"], "malformed-removed"),
        (["BlockRemoved", [1], 5], "malformed-removed"),
    ],
)
def test_a_bad_event_costs_itself_only(bad: object, reason: str) -> None:
    batch = decode(STORED, bad, {"type": "AllBlocksCleared"})
    assert batch.events == [PLAIN, AllBlocksCleared()]
    assert batch.errors == {reason: 1}


def test_a_placeholder_is_no_error() -> None:
    assert decode(PLACEHOLDER).events == [BlockStored([11], None, array("I"), 0, Tier.CPU)]
    assert decode(PLACEHOLDER | {"token_ids": [1]}).errors == {"malformed-stored": 1}


def test_groups_that_skip_blocks_may_publish_more_tokens_than_blocks() -> None:
    skipping = STORED | {"block_hashes": [12], "group_idx": 1}
    assert len(decode(skipping | {"kv_cache_spec_kind": "sliding_window"}).events) == 1
    assert len(decode(skipping).events) == 1


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x93", b"\xc0", b"\x91\x01", msgspec.msgpack.encode([None, [], 0]), msgspec.msgpack.encode({})],
)
def test_a_payload_that_is_no_batch_raises_decode_error(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_batch(payload)


def test_deep_nesting_is_an_error_of_its_event() -> None:
    deep = msgspec.Raw(b"\x91" * 100_000 + b"\xc0")
    assert set(decode_or_error(msgspec.msgpack.encode([1.0, [deep, STORED]]))) <= {"malformed", "undecodable"}


def decode_or_error(payload: bytes) -> Counter[str]:
    try:
        return decode_batch(payload).errors
    except DecodeError:
        return Counter(["undecodable"])


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(scalars, inner, max_size=3))
kinds = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])
maps = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    kinds,
    st.dictionaries(st.sampled_from(sorted(STORED)), values) | st.just(STORED),
)
arrays = st.builds(lambda kind, rest: [kind, *rest], kinds, st.lists(values, max_size=12))


@settings(deadline=None)
@given(st.binary())
def test_any_bytes_are_a_batch_or_an_error(payload: bytes) -> None:
    decode_or_error(payload)


@settings(deadline=None)
@given(st.tuples(values, st.lists(maps | arrays | values, max_size=4), values))
def test_any_msgpack_is_a_batch_or_an_error(content: tuple[Any, ...]) -> None:
    decode_or_error(msgspec.msgpack.encode(content))


@settings(deadline=None)
@given(st.lists(maps | arrays | values, max_size=4), st.integers(0, 300), st.binary(min_size=1, max_size=3))
def test_a_damaged_batch_is_a_batch_or_an_error(events: list[object], at: int, damage: bytes) -> None:
    payload = bytearray(msgspec.msgpack.encode([1.0, [STORED, *events], 0]))
    at %= len(payload)
    payload[at : at + len(damage)] = damage
    decode_or_error(bytes(payload))


@settings(deadline=None)
@given(st.lists(maps | arrays, max_size=5))
def test_every_event_is_decoded_or_counted(events: list[object]) -> None:
    batch = decode(*events)
    assert len(batch.events) + batch.errors.total() == len(events)


def test_a_memoryview_is_decoded_like_bytes() -> None:
    payload = msgspec.msgpack.encode([1.0, [STORED], 0])
    assert decode_batch(memoryview(payload)) == decode_batch(payload)
