"""What the index is driven with: the KV events of a fleet, and prompts to look up.

Every publisher holds one prompt that all of them hold; the others it holds begin with the same system prompt and then
differ from everything. Blocks are announced in stores of 64, those of different publishers in turn, as they arrive at a
gateway. Only the standard library is used, because the peer's process makes the same work in an environment of its own;
a seed makes it the same work.
"""

import random
from array import array
from itertools import zip_longest
from typing import Final, NamedTuple

BLOCK_TOKENS: Final = 16
STORE_BLOCKS: Final = 64
PROMPT_BLOCKS: Final = 2048  # 32K tokens
SYSTEM_BLOCKS: Final = 512
VOCABULARY: Final = 128_000
EVICTED_SHARE: Final = 0.1
REMOVED_PODS: Final = 4
_SEED: Final = 1
_LOOKUPS: Final = 16


class Store(NamedTuple):
    """Consecutive blocks that a publisher has cached, following the block `parent` (None: the prompt's start)."""

    publisher: int
    parent: int | None
    hashes: list[int]
    tokens: "array[int]"


class Way(NamedTuple):
    """How the workload is driven; `queued`: all stores before the first lookup, else few at a time."""

    one_core: bool
    queued: bool
    only_ingest: bool


WAYS: Final = {
    "full": Way(one_core=True, queued=False, only_ingest=False),
    "free": Way(one_core=False, queued=False, only_ingest=True),
    "queued": Way(one_core=False, queued=True, only_ingest=True),
    "queued.core": Way(one_core=True, queued=True, only_ingest=True),
}
"""By the name of what they add to a row's name."""


class Workload(NamedTuple):
    """`lookups` are prompts of 2,048 blocks by kind: `shared`, which all publishers hold; `one`, of which all hold the
    system prompt and one holds more; `miss`, which nobody holds.
    """

    publishers: int
    blocks: int
    stores: list[Store]
    lookups: "dict[str, list[array[int]]]"

    @property
    def shared_blocks(self) -> int:
        """How many blocks of the shared prompt every publisher holds."""
        return min(self.blocks // self.publishers, PROMPT_BLOCKS)

    def evictions(self) -> list[Store]:
        """The tenth of the stores that came last, newest first: a prompt is evicted from its end."""
        return self.stores[: -max(1, int(len(self.stores) * EVICTED_SHARE)) - 1 : -1]

    def removed_pods(self) -> range:
        """The publishers that leave."""
        return range(min(REMOVED_PODS, self.publishers))


def workload(publishers: int, blocks: int) -> Workload:
    """About `blocks` blocks, `blocks // publishers` on each publisher. O(blocks)."""
    rng = random.Random(_SEED)
    tokens, hashes = _content(rng, PROMPT_BLOCKS)
    system = tokens[: SYSTEM_BLOCKS * BLOCK_TOKENS]
    queues: list[list[Store]] = []
    one: list[array[int]] = []
    for publisher in range(publishers):
        left = blocks // publishers
        shared = min(left, PROMPT_BLOCKS)
        queue = _stores(publisher, None, hashes[:shared], tokens)
        left -= shared
        while left:
            more = min(left, PROMPT_BLOCKS - SYSTEM_BLOCKS)
            own_tokens, own_hashes = _content(rng, more)
            queue += _stores(publisher, hashes[SYSTEM_BLOCKS - 1], own_hashes, own_tokens)
            if len(one) < _LOOKUPS:
                one.append(_filled(rng, system + own_tokens))
            left -= more
        queues.append(queue)
    stores = [store for turn in zip_longest(*queues) for store in turn if store is not None]
    miss = [_content(rng, PROMPT_BLOCKS)[0] for _ in range(_LOOKUPS)]
    lookups = {"shared": [tokens], "one": one or [tokens], "miss": miss}
    return Workload(publishers, sum(len(store.hashes) for store in stores), stores, lookups)


def _content(rng: random.Random, blocks: int) -> "tuple[array[int], list[int]]":
    drawn = array("I", rng.randbytes(blocks * BLOCK_TOKENS * array("I").itemsize))
    return array("I", [token % VOCABULARY for token in drawn]), [rng.getrandbits(64) for _ in range(blocks)]


def _filled(rng: random.Random, tokens: "array[int]") -> "array[int]":
    """The prompt continued to its full length, as the next turn of a conversation does."""
    return tokens + _content(rng, PROMPT_BLOCKS - len(tokens) // BLOCK_TOKENS)[0]


def _stores(publisher: int, parent: int | None, hashes: list[int], tokens: "array[int]") -> list[Store]:
    return [
        Store(
            publisher,
            hashes[at - 1] if at else parent,
            hashes[at : at + STORE_BLOCKS],
            tokens[at * BLOCK_TOKENS : min(at + STORE_BLOCKS, len(hashes)) * BLOCK_TOKENS],
        )
        for at in range(0, len(hashes), STORE_BLOCKS)
    ]
