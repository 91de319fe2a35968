"""KV-cache events and the two forms vLLM has published them in.

"map" is vLLM 0.24 and later: an event is a map tagged by ``type``; the keys up to ``lora_name`` are always there, those
after it only when they differ from their default. "array" is what came before (and what SGLang sends): positional,
trailing defaults left out. A batch is [timestamp, events, data-parallel rank] in both.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from loadgen.hashing import as_int

Encoding: TypeAlias = Literal["map", "array"]
HashMode: TypeAlias = Literal["int", "bytes"]
Medium: TypeAlias = Literal["GPU", "CPU"]

# The simulated model has one group of layers, all with full attention.
_GROUP: Final = 0
_KIND: Final = "full_attention"
# Elements of the array forms that are sent even when all after them are defaults.
_STORED_REQUIRED, _REMOVED_REQUIRED = 5, 2


class Lora(NamedTuple):
    """An adapter as events name it."""

    id: int
    name: str


class Stored(NamedTuple):
    """Blocks that are cached from now on: consecutive, the first one's parent given (None: the root).

    ``extra_keys``: one entry per block, or None where the publisher gives none. Without ``token_ids`` it is a
    placeholder, which says of its one block nothing but the hash.
    """

    hashes: list[bytes]
    parent: bytes | None
    token_ids: Sequence[int]
    block_size: int
    medium: Medium
    lora: Lora | None = None
    extra_keys: list[tuple[object, ...] | None] | None = None


class Removed(NamedTuple):
    """Blocks that are no longer cached in that tier, one entry per copy."""

    hashes: list[bytes]
    medium: Medium


class Cleared(NamedTuple):
    """The GPU tier was reset; the CPU tier was not."""


Event: TypeAlias = Stored | Removed | Cleared


class EventEncoder:
    """Encodes batches of one rank."""

    def __init__(self, encoding: Encoding, hash_mode: HashMode, rank: int) -> None:
        self._as_event = _as_map if encoding == "map" else _as_array
        self._as_hash: Callable[[bytes], bytes | int] = as_int if hash_mode == "int" else bytes
        self._rank = rank

    def encode(self, timestamp: float, events: Sequence[Event]) -> bytes:
        """Return one batch's payload."""
        wire = [self._as_event(_fields(event, self._as_hash)) for event in events]
        return msgspec.msgpack.encode([timestamp, wire, self._rank])


def _fields(event: Event, as_hash: Callable[[bytes], bytes | int]) -> dict[str, Any]:
    """All fields of the event in vLLM's order, its type first."""
    if isinstance(event, Cleared):
        return {"type": "AllBlocksCleared"}
    hashes = [as_hash(h) for h in event.hashes]
    if isinstance(event, Removed):
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": event.medium, "group_idx": _GROUP}
    placeholder = not event.token_ids
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None if event.parent is None else as_hash(event.parent),
        "token_ids": list(event.token_ids),
        "block_size": event.block_size,
        "lora_id": event.lora.id if event.lora else None,
        "medium": event.medium,
        "lora_name": event.lora.name if event.lora else None,
        "extra_keys": event.extra_keys,
        "group_idx": _GROUP,
        "kv_cache_spec_kind": None if placeholder else _KIND,
        "kv_cache_spec_sliding_window": None,
    }


_OPTIONAL: Final = ("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window")


def _as_map(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None or key not in _OPTIONAL}


def _as_array(fields: dict[str, Any]) -> list[Any]:
    values = list(fields.values())
    required = {"BlockStored": _STORED_REQUIRED, "BlockRemoved": _REMOVED_REQUIRED}.get(fields["type"], 1)
    while len(values) > required and values[-1] is None:
        values.pop()
    return values
