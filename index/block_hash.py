"""Keys of KV blocks, made from token ids alone.

A block's key is the xxh3-64 digest of its token ids, seeded with the key of the block before it; the first block is
seeded with a root key made of the namespace (LoRA adapter, else base model) and the block size. Equal keys therefore
mean equal prefixes up to and including that block, whichever engine published it and whatever hash or hash seed that
engine uses. The digest is not cryptographic: a collision costs a misjudged placement, never a wrong answer, because
the engine looks its blocks up by its own hash.

What distinguishes blocks of equal tokens (images, cache salt, prompt embeddings) is appended to the block's token
bytes. Those have a fixed width, so the sum is unambiguous.
"""

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

_TOKEN_BYTES = 4
_AT_ONCE = 64
_LITTLE_ENDIAN = sys.byteorder == "little"


def root_key(namespace: str, block_size: int) -> int:
    """The seed of a first block; `namespace` is the LoRA adapter's name if there is one, else the base model's."""
    return xxh3_64_intdigest(namespace.encode(), block_size)


def block_keys(
    tokens: "Sequence[int] | array[int]",
    block_size: int,
    root: int,
    extras: Mapping[int, bytes] | None = None,
) -> list[int]:
    """Chained keys of the full blocks of `tokens`; a partial last block has none.

    `root` is a root key, or the key of the block that `tokens` follow. `extras` holds, by block number within
    `tokens`, what a block holds besides its tokens. Ids outside 0 … 2**32 - 1 raise `struct.error`. Linear in tokens.
    """
    width = block_size * _TOKEN_BYTES
    count = len(tokens) // block_size
    data = _packed(tokens, count * block_size)
    key = root
    if extras:
        chunks = [data[at : at + width] for at in range(0, len(data), width)]
        for block, extra in extras.items():
            if block < count:
                chunks[block] += extra
        return [key := xxh3_64_intdigest(chunk, key) for chunk in chunks]
    if count <= _AT_ONCE:
        return [key := xxh3_64_intdigest(chunk, key) for chunk in _blocks(width, count).unpack(data)]
    rest = width * (count % _AT_ONCE)
    many = _blocks(width, _AT_ONCE).iter_unpack(data[: len(data) - rest])
    keys = [key := xxh3_64_intdigest(chunk, key) for chunks in many for chunk in chunks]
    keys += [
        key := xxh3_64_intdigest(chunk, key) for (chunk,) in _blocks(width, 1).iter_unpack(data[len(data) - rest :])
    ]
    return keys


@lru_cache(maxsize=4 * _AT_ONCE)
def _blocks(width: int, count: int) -> struct.Struct:
    """Takes `count` blocks of `width` bytes apart at once, which is quicker than one after the other."""
    return struct.Struct(f"{width}s" * count)


def extra_bytes(values: Sequence[Any]) -> bytes:
    """The canonical form of what a block holds besides tokens: its values in the order vLLM publishes them.

    That order is `(identifier, offset)` pairs of the media that touch the block, the cache salt, prompt-embedding
    digests.
    """
    return msgspec.msgpack.encode(list(values))


def salt_extra(cache_salt: str) -> bytes:
    """What a request's `cache_salt` adds to its first block, where the block holds no media as well."""
    return extra_bytes([cache_salt])


class Media(NamedTuple):
    """What is no text in a prompt: `length` tokens from `offset` on stand for it."""

    identifier: str
    offset: int
    length: int


def media_extras(media: Sequence[Media], block_size: int, cache_salt: str | None) -> dict[int, bytes]:
    """`extras` of a prompt's blocks: of each block the media that touch it, with where they begin seen from its start.

    `media` lie one behind the other. O(blocks that they touch). As in vLLM (`v1/core/kv_cache_utils.py`, 0.32).
    """
    values: dict[int, list[Any]] = {}
    for identifier, offset, length in media:
        for block in range(offset // block_size, (offset + length - 1) // block_size + 1):
            values.setdefault(block, []).append((identifier, offset - block * block_size))
    if cache_salt:
        values.setdefault(0, []).append(cache_salt)
    return {block: extra_bytes(found) for block, found in values.items()}


def event_extras(extra_keys: Sequence[Any] | None, lora_name: str | None) -> dict[int, bytes] | None:
    """`extras` of a stored event's blocks from its `extra_keys`; the LoRA name is left out, being in the root key."""
    if not extra_keys or extra_keys.count(None) == len(extra_keys):
        return None
    extras = {}
    for block, values in enumerate(extra_keys):
        if not values:
            continue
        rest = values[1:] if lora_name is not None and values[0] == lora_name else values
        if rest:
            extras[block] = extra_bytes(rest)
    return extras or None


def _packed(tokens: "Sequence[int] | array[int]", length: int) -> bytes:
    whole = tokens if len(tokens) == length else tokens[:length]
    if isinstance(whole, array) and whole.typecode == "I" and whole.itemsize == _TOKEN_BYTES and _LITTLE_ENDIAN:
        return whole.tobytes()
    return struct.pack(f"<{length}I", *whole)
