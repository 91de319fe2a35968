"""What a rank's events tell: of a prompt that is followed through its tiers, and of how much these hold. Pure.

A prompt's blocks are recognised by their tokens where they are announced for the GPU, and from there on by the engine's
hashes: the CPU tier may name blocks by nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from index import BlockRemoved, BlockStored, DecodeError, Tier, decode_batch
from index.events import INDEXED_KINDS

_REMEMBERED: Final = 200_000
"""Hashes of the CPU tier, while a prompt is followed: a busy pod offloads some ten thousand blocks a second."""


class Trail:
    """A prompt that is followed. `stored`: the hashes of its blocks on the GPU, with those of its answer."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = list(prompt)
        self.stored: list[int] = []
        self.block_size: int | None = None
        self.first: BlockStored | None = None
        """The event that announced its first block."""

    def observe(self, event: BlockStored) -> None:
        """An event of the GPU tier. O(a block's tokens)."""
        if not _whole(event) or not event.block_size:
            return
        size = event.block_size
        if event.parent_block_hash is None:
            if not self.stored and list(event.token_ids[:size]) == self._prompt[:size]:
                self.first, self.block_size = event, size
                self.stored += event.block_hashes
        elif self.stored and event.parent_block_hash == self.stored[-1]:
            self.stored += event.block_hashes


def _whole(event: BlockStored) -> bool:
    """Whether the group that it speaks of keeps all of a prefix."""
    return event.spec_kind in INDEXED_KINDS or (event.spec_kind is None and event.group_idx is None)


class Told:
    """A rank's live events since the subscription."""

    def __init__(self) -> None:
        self.batches = 0
        self.unusable: Counter[str] = Counter()
        self._trails: list[Trail] = []
        self._offloaded: dict[int, bool] = {}  # hash → whether it was described

    def follow(self, prompt: Sequence[int]) -> Trail:
        """Look out for this prompt from now on."""
        trail = Trail(prompt)
        self._trails.append(trail)
        return trail

    def apply(self, payload: bytes) -> None:
        """A batch. O(blocks + tokens)."""
        self.batches += 1
        try:
            batch = decode_batch(payload)
        except DecodeError:
            self.unusable["undecodable"] += 1
            return
        self.unusable += batch.errors
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._stored(event)

    def _stored(self, event: BlockStored) -> None:
        if event.tier is Tier.GPU:
            for trail in self._trails:
                trail.observe(event)
        elif len(self._offloaded) < _REMEMBERED:
            for block_hash in event.block_hashes:
                # Groups that keep only parts of a prefix are never described, and may share the hash.
                self._offloaded[block_hash] = bool(event.token_ids) or self._offloaded.get(block_hash, False)

    def offloaded(self, trail: Trail) -> int:
        """How many of its blocks are in the CPU tier, which may take several as one. O(its blocks)."""
        return max((i + 1 for i, block_hash in enumerate(trail.stored) if block_hash in self._offloaded), default=0)

    def described(self, trail: Trail) -> bool:
        """Whether the CPU tier's events said what its blocks hold. O(its blocks)."""
        return all(self._offloaded.get(block_hash, True) for block_hash in trail.stored)


class Occupancy:
    """How much a rank has held in its CPU tier, by the events of a replay. `whole`: since the engine started."""

    def __init__(self) -> None:
        self.whole = False
        self.evicted = False
        self.most = 0
        self._held: set[int] = set()
        self._any = False

    def apply(self, number: int, payload: bytes) -> None:
        """A batch and its sequence number. O(blocks)."""
        if not self._any:
            self._any, self.whole = True, number == 0
        try:
            events = decode_batch(payload).events
        except DecodeError:
            return
        for event in events:
            if isinstance(event, BlockStored) and event.tier is Tier.CPU:
                self._held.update(event.block_hashes)
                self.most = max(self.most, len(self._held))
            elif isinstance(event, BlockRemoved) and event.tier is Tier.CPU:
                self.evicted = True
                self._held.difference_update(event.block_hashes)

    @property
    def blocks(self) -> int | None:
        """What the tier has room for; None: it was never seen to be full, or not from the beginning."""
        return self.most if self.evicted and self.whole else None
