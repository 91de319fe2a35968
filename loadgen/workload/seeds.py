"""Names of texts: the seeds that pieces have, in 0 … 2**64 - 1."""

import struct
from typing import Final

from xxhash import xxh3_64_intdigest

from loadgen.workload import Piece

_seed_bytes: Final = struct.Struct("<Q").pack


def text_seed(kind: str, number: int, seed: int = 0) -> int:
    """The seed of the `number`-th text of a kind; another `seed` gives other texts."""
    return xxh3_64_intdigest(_seed_bytes(number), xxh3_64_intdigest(kind.encode(), seed))


def answer_seed(number: int) -> int:
    """The seed of the answer to the request of that number, which a piece with that `answer_of` has."""
    return text_seed("answer", number)


def answer_piece(number: int, tokens: int) -> Piece:
    """The answer to the request of that number, as a part of later prompts."""
    return Piece(answer_seed(number), tokens, "assistant", number)
