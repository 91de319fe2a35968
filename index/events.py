"""From the bytes of a KV event batch to the events the index applies.

Two encodings are in the field. vLLM since 0.24 sends every event as a map with its kind under "type"; older vLLM and
SGLang send a positional array, kind first, with trailing defaults left out. A batch is an array `[ts, events, rank]`
(rank absent in old versions) or a map. Newer fields and unknown keys are ignored in both.

A pod's events are input from outside: any bytes give a `Batch` or a `DecodeError`. What makes the batch unreadable as
a whole raises; an event that cannot be used costs itself only and is counted in `Batch.errors` by reason. The usual
batch (all maps, all well-formed) is decoded in one typed pass; only if that fails is it taken apart event by event.
"""

import enum
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

INDEXED_KINDS: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of KV-cache group whose blocks a prefix needs from the first to the last; the others keep only parts of it."""

_U64: Final = (1 << 64) - 1
_MAX_BLOCK_SIZE: Final = 1 << 20
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError, TypeError)


class Tier(enum.IntEnum):
    """Where in a pod a block lies."""

    GPU = 0
    CPU = 1


class BlockStored(Struct):
    """Blocks that follow `parent_block_hash` (None: they start a prompt) and are now in `tier`.

    `token_ids` empty with `block_size` 0 is a placeholder: it names blocks without saying what they hold. `extra_keys`
    holds, per block, what it depends on besides tokens. Hashes are unsigned 64-bit numbers, tokens 32-bit ones; decoded
    tokens come as `array("I")`, a ninth of a list's memory.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: Sequence[int]
    block_size: int
    tier: Tier = Tier.GPU
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    spec_kind: str | None = None


class BlockRemoved(Struct):
    """One copy of each of these blocks left `tier`."""

    block_hashes: list[int]
    tier: Tier = Tier.GPU
    group_idx: int | None = None


class AllBlocksCleared(Struct):
    """The GPU tier was emptied."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(Struct):
    """One message of a publisher; `errors` counts, by reason, the events of the batch that are not in `events`."""

    ts: float
    rank: int | None
    events: list[Event]
    errors: Counter[str]


class DecodeError(ValueError):
    """A payload that is no event batch."""


_Hash = Annotated[int, Meta(ge=0)]
_BlockSize = Annotated[int, Meta(ge=0, le=_MAX_BLOCK_SIZE)]
_Extras = list[list[Any] | None] | None


class _Stored(Struct, tag="BlockStored", gc=False):
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: list[int]
    block_size: _BlockSize
    lora_id: Any = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: _Extras = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _Removed(Struct, tag="BlockRemoved", gc=False):
    block_hashes: list[_Hash]
    medium: str | None = None
    group_idx: int | None = None


class _Cleared(Struct, tag="AllBlocksCleared", gc=False):
    pass


_Wire = _Stored | _Removed | _Cleared


class _TypedBatch(Struct, array_like=True, gc=False):
    ts: float
    events: list[_Wire]
    rank: int | None = None


class _RawBatch(Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    rank: Any = None


class _RawMapBatch(Struct):
    events: list[msgspec.Raw]
    ts: float = 0.0
    data_parallel_rank: Any = None


_typed: Final = msgspec.msgpack.Decoder(_TypedBatch)
_raw: Final = msgspec.msgpack.Decoder(_RawBatch)
_raw_map: Final = msgspec.msgpack.Decoder(_RawMapBatch)
_anything: Final = msgspec.msgpack.Decoder()

_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
"""Order of the values that follow the tag in the positional encoding."""

_SHAPES: Final[dict[str, tuple[str, type[_Wire]]]] = {
    "BlockStored": ("malformed-stored", _Stored),
    "BlockRemoved": ("malformed-removed", _Removed),
    "AllBlocksCleared": ("malformed-cleared", _Cleared),
}

_TIERS: Final[dict[str | None, Tier]] = {
    None: Tier.GPU,
    "GPU": Tier.GPU,
    "CPU": Tier.CPU,
    "CPU_TIER1": Tier.CPU,  # SGLang's name for host memory
}
_SKIPPED: Final = {"STORAGE": "storage-tier", "CPU_TIER2": "storage-tier"}  # the latter is SGLang's


class _Unusable(Exception):
    """Why an event is left out of its batch; never leaves this module."""


def decode_batch(payload: bytes | memoryview) -> Batch:
    """Decodes the payload frame of one event message; raises only `DecodeError`. Linear in its size."""
    try:
        typed = _typed.decode(payload)
    except _UNREADABLE:
        return _decode_apart(payload)
    batch = Batch(typed.ts, typed.rank, [], Counter())
    for wire in typed.events:
        _collect(batch, wire)
    return batch


def _decode_apart(payload: bytes | memoryview) -> Batch:
    batch, events = _raw_batch(payload)
    for event in events:
        try:
            wire = _read(event)
        except _Unusable as reason:
            batch.errors[str(reason)] += 1
        else:
            _collect(batch, wire)
    return batch


def _raw_batch(payload: bytes | memoryview) -> tuple[Batch, list[msgspec.Raw]]:
    try:
        array = _raw.decode(payload)
        ts, events, rank = array.ts, array.events, array.rank
    except _UNREADABLE:
        try:
            map_ = _raw_map.decode(payload)
        except _UNREADABLE as error:
            raise DecodeError(str(error)) from error
        ts, events, rank = map_.ts, map_.events, map_.data_parallel_rank
    return Batch(ts, rank if isinstance(rank, int) else None, [], Counter()), events


def _read(raw: msgspec.Raw) -> _Wire:
    """One event in either encoding."""
    try:
        event = _anything.decode(raw)
    except _UNREADABLE as error:
        raise _Unusable("malformed") from error
    if isinstance(event, list) and event:
        kind = event[0]
    elif isinstance(event, dict):
        kind = event.get("type")
    else:
        raise _Unusable("malformed")
    if not isinstance(kind, str) or kind not in _SHAPES:
        raise _Unusable("unknown-kind")
    fields = event if isinstance(event, dict) else dict(zip(_FIELDS[kind], event[1:], strict=False))
    reason, shape = _SHAPES[kind]
    try:
        return msgspec.convert(_with_folded_hashes(fields), shape)
    except _UNREADABLE as error:
        raise _Unusable(reason) from error


def _with_folded_hashes(fields: dict[str, Any]) -> dict[str, Any]:
    folded = {name: value for name, value in fields.items() if name != "type"}
    if isinstance(hashes := folded.get("block_hashes"), list):
        folded["block_hashes"] = [_fold(block_hash) for block_hash in hashes]
    if "parent_block_hash" in folded:
        folded["parent_block_hash"] = _fold(folded["parent_block_hash"])
    return folded


def _fold(block_hash: object) -> object:
    """One form for the three a hash comes in: unsigned, signed, and the digest whose last 8 bytes the others are."""
    if isinstance(block_hash, bytes) and block_hash:
        return int.from_bytes(block_hash[-8:], "big")
    if isinstance(block_hash, int):
        return block_hash & _U64
    return block_hash


def _collect(batch: Batch, wire: _Wire) -> None:
    """Appends the event to its batch, or counts why not."""
    if isinstance(wire, _Cleared):
        batch.events.append(AllBlocksCleared())
        return
    tier = _TIERS.get(wire.medium)
    if tier is None:
        batch.errors[_SKIPPED.get(wire.medium or "", "unknown-medium")] += 1
    elif isinstance(wire, _Removed):
        batch.events.append(BlockRemoved(wire.block_hashes, tier, wire.group_idx))
    elif not _is_consistent(wire) or (token_ids := _tokens(wire.token_ids)) is None:
        batch.errors["malformed-stored"] += 1
    else:
        batch.events.append(
            BlockStored(
                wire.block_hashes,
                wire.parent_block_hash,
                token_ids,
                wire.block_size,
                tier,
                wire.lora_name or _unnamed(wire.lora_id),
                wire.extra_keys,
                wire.group_idx,
                wire.kv_cache_spec_kind,
            )
        )


def _unnamed(lora_id: object) -> str | None:
    """A namespace for an adapter of which an old engine says a number only.

    No request asks for it by that, so nothing is claimed; but its blocks must not pass for the base model's.
    """
    return f"lora_id={lora_id}" if lora_id else None


def _tokens(ids: list[int]) -> "array[int] | None":
    """The ids packed; None where one is out of range."""
    try:
        return array("I", ids)
    except OverflowError:
        return None


def _is_consistent(wire: _Stored) -> bool:
    """Whether tokens and extra keys fit the blocks, as far as the event alone tells.

    Groups that skip blocks rightly publish more tokens than blocks. Where an event names its group but not the
    group's kind, only the index, which remembers the kind, can tell.
    """
    blocks = len(wire.block_hashes)
    if not wire.block_size:
        return not wire.token_ids
    if wire.extra_keys is not None and len(wire.extra_keys) != blocks:
        return False
    if wire.kv_cache_spec_kind in INDEXED_KINDS or (wire.kv_cache_spec_kind is None and wire.group_idx is None):
        return len(wire.token_ids) == blocks * wire.block_size
    return True
