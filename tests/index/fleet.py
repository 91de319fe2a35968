"""Publishers of prompts written as letters, a block each, in an index that is checked after every step."""

from typing import Any

from xxhash import xxh3_64_intdigest

from index.block_hash import block_keys, root_key
from index.events import BlockRemoved, BlockStored, Event, Tier
from index.radix import Applied, Cached, Publisher, RadixIndex

SIZE = 4
A, A1, B = Publisher("a:8000", 0), Publisher("a:8000", 1), Publisher("b:8000", 0)
MISSING = Cached(0, 0, 0)


def tokens(contents: str) -> list[int]:
    """Block contents are letters: one block each."""
    return [ord(letter) for letter in contents for _ in range(SIZE)]


def hashes(contents: str, start: int = 0) -> list[int]:
    """The engine's hashes of a prompt's blocks from number `start` on; equal prefixes have equal hashes."""
    return [xxh3_64_intdigest(contents[:end].encode()) for end in range(start + 1, len(contents) + 1)]


def stored(contents: str, start: int = 0, **fields: Any) -> BlockStored:
    parent = hashes(contents[:start])[-1] if start else None
    return BlockStored(hashes(contents, start), parent, tokens(contents[start:]), SIZE, **fields)


def removed(*prompts: str, tier: Tier = Tier.GPU, group: int | None = None) -> BlockRemoved:
    """A removal of the last block of each prompt."""
    return BlockRemoved([hashes(prompt)[-1] for prompt in prompts], tier, group)


def placeholder(prompt: str, tier: Tier = Tier.CPU, group: int | None = None) -> BlockStored:
    return BlockStored([hashes(prompt)[-1]], None, [], 0, tier, group_idx=group)


class Fleet:
    """An index of three publishers, checked after every step."""

    def __init__(self, **limits: int) -> None:
        self.index = RadixIndex(**limits)
        for publisher in (A, A1, B):
            self.index.add_publisher(publisher, "base")

    def apply(self, *events: Event, publisher: Publisher = A) -> Applied:
        applied = self.index.apply(publisher, events)
        self.index.check_invariants()
        return applied

    def cached(self, prompt: str, publisher: Publisher = A, **key: Any) -> Cached:
        """Cached blocks, not tokens."""
        found = self.matches(prompt, **key).get(publisher, MISSING)
        return Cached(*(length // SIZE for length in found))

    def matches(self, prompt: str, namespace: str = "base", extra: bytes | None = None) -> dict[Publisher, Cached]:
        keys = block_keys(tokens(prompt), SIZE, root_key(namespace, SIZE), {0: extra} if extra else None)
        return self.index.match({SIZE: keys})
