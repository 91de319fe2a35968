"""Block hashes as vLLM computes them.

A full block's hash covers its tokens and, through its parent's hash, everything before them: h_i = H((h_{i-1} or NONE,
token ids, extra keys or None)), NONE = H(seed as str), H = SHA-256 over the pickle (protocol 5) or the canonical CBOR
of its argument. Equal hashes on two pods therefore mean equal prefixes, if both have the same seed.
"""

import hashlib
import pickle
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

ExtraKeys: TypeAlias = tuple[tuple[object, ...], ...]
HashAlgo: TypeAlias = Literal["sha256", "sha256_cbor"]

# What vLLM uses as the seed when PYTHONHASHSEED is not set.
DEFAULT_SEED: Final = "vllm-none-hash"
_UINT64: Final = (1 << 64) - 1


def _sha256(value: object) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def _sha256_cbor(value: object) -> bytes:
    return hashlib.sha256(cbor(value)).digest()


_ALGORITHMS: Final[dict[str, Callable[[object], bytes]]] = {"sha256": _sha256, "sha256_cbor": _sha256_cbor}


def cbor(value: object) -> bytes:
    """Encode None, unsigned integers, bytes, text and sequences of them as canonical CBOR (RFC 8949, 4.2.1)."""
    match value:
        case None:
            return b"\xf6"
        case int() if value >= 0:
            return _cbor_head(0, value)
        case bytes():
            return _cbor_head(2, len(value)) + value
        case str():
            text = value.encode()
            return _cbor_head(3, len(text)) + text
        case tuple() | list():
            return _cbor_head(4, len(value)) + b"".join(map(cbor, value))
    raise TypeError(f"no CBOR form for {type(value).__name__}")


def _cbor_head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes([major << 5 | argument])
    for info, width in ((24, 1), (25, 2), (26, 4)):
        if argument < 1 << 8 * width:
            return bytes([major << 5 | info]) + argument.to_bytes(width, "big")
    return bytes([major << 5 | 27]) + argument.to_bytes(8, "big")


class BlockHasher:
    """Chains block hashes of one pod: ``none`` is the root's hash, ``extend`` adds the blocks that have become full."""

    def __init__(self, block_size: int, *, seed: str | None, algo: HashAlgo = "sha256") -> None:
        self.block_size = block_size
        self.algo = algo
        self._hash = _ALGORITHMS[algo]
        self.none = self._hash(DEFAULT_SEED if seed is None else seed)

    def extend(
        self, hashes: list[bytes], tokens: Sequence[int], extras: Callable[[int], ExtraKeys | None] | None = None
    ) -> None:
        """Append to ``hashes`` the 32-byte hash of every full block of ``tokens`` that it lacks.

        ``extras`` gives the extra keys of block i, None for a block without any.
        """
        for i in range(len(hashes), len(tokens) // self.block_size):
            ids = tuple(tokens[i * self.block_size : (i + 1) * self.block_size])
            parent = hashes[-1] if hashes else self.none
            hashes.append(self._hash((parent, ids, extras(i) if extras is not None else None)))


def as_int(block_hash: bytes) -> int:
    """Fold a hash to the uint64 that vLLM publishes by default: its last 8 bytes, big endian."""
    return int.from_bytes(block_hash, "big") & _UINT64
