"""The exact record of which pod holds which KV blocks.

Why a tree of runs with bit sets, and neither a hash map from block to pods nor a trie of blocks: a prompt of a hundred
thousand tokens is thousands of blocks but only a few runs, since prompts diverge in few places. A lookup compares a run
in O(log of its length) and answers, for each publisher, how much of it is held by arithmetic on one int; it costs
runs * holders, not blocks * holders. A publisher's removals touch only its own bits, and forgetting a pod costs what it
held.

The parts: `tree` (runs, splits), `node` (bit sets, comparison), `holdings` (per publisher), `locations` (from hash to
run), `scratch` (memory for that), `copies` (counts behind a bit), `waiting` (orphans, placeholders), `ledger` (bit,
place and count of a block), `store` (events), `removals` (many as one), `match` (lookup), `bound` (what to give up),
`residency` (one publisher as a record), `check` (invariants). `snapshot` builds on these.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from index.bound import Leaves, tail
from index.check import check_bound, check_invariants
from index.events import AllBlocksCleared, BlockStored, Event, Tier
from index.holdings import Holdings, Publisher
from index.ledger import Applied, Ledger
from index.match import Cached, match
from index.removals import joined_removals
from index.residency import Residency, check, export, restore
from index.scratch import Scratches
from index.store import Store
from index.tree import Tree

__all__ = ["Applied", "Cached", "IndexStats", "Publisher", "RadixIndex"]

MAX_RUN_BLOCKS: Final = 1024
"""Longest run. Each flip of a bit copies the run's bit set, 128 bytes at this length; longer runs would make stores and
removals slower, and shorter ones lookups."""

ORPHAN_LIMIT_BLOCKS: Final = 4096
"""Per publisher: orphans resolve within a batch or, after a gap, rarely; at 16 tokens a block this is about 1 MB."""

PLACEHOLDER_LIMIT_BLOCKS: Final = 16384
"""Per publisher: offloaded blocks whose content an event may still tell; about 4 MB."""


class IndexStats(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the index. `blocks` counts residencies per tier, over all publishers."""

    publishers: int
    nodes: int
    blocks: dict[Tier, int]
    orphans: int
    placeholders: int
    evicted: int = 0
    """Residencies given up so far to stay within the bound."""
    table_bytes: int = 0
    """Memory of the tables from hash to run, the larger part of all."""


class RadixIndex:
    """Which publisher holds which blocks in which tier, by content."""

    def __init__(
        self,
        *,
        max_run_blocks: int = MAX_RUN_BLOCKS,
        orphan_limit_blocks: int = ORPHAN_LIMIT_BLOCKS,
        placeholder_limit_blocks: int = PLACEHOLDER_LIMIT_BLOCKS,
        max_blocks: int | None = None,
    ) -> None:
        """`max_blocks` bounds the residencies, summed over publishers and tiers; what is over goes, coldest first."""
        self._max_blocks = max_blocks
        self._leaves = Leaves()
        self._resident = 0  # residencies, kept only for the bound
        self._evicted = 0
        self._tree = Tree(max_run_blocks, self._leaves if max_blocks is not None else None)
        self._ledger = Ledger(self._tree)
        self._store = Store(self._tree, self._ledger)
        self._scratches = Scratches()
        self._publishers: dict[Publisher, Holdings] = {}
        self._orphan_limit = orphan_limit_blocks
        self._placeholder_limit = placeholder_limit_blocks

    def add_publisher(self, publisher: Publisher, model: str) -> None:
        """Makes the publisher known; `model` is the namespace of its blocks without LoRA adapter.

        Idempotent; another model than before means another engine, and clears what was known.
        """
        holdings = self._publishers.get(publisher)
        if holdings is not None:
            if holdings.model == model:
                return
            self._forget(holdings)
        self._publishers[publisher] = Holdings(
            publisher,
            model,
            orphan_limit=self._orphan_limit,
            placeholder_limit=self._placeholder_limit,
            scratches=self._scratches,
        )

    def apply(self, publisher: Publisher, events: Iterable[Event]) -> Applied:
        """Applies events in order and says what became of them; never raises on content.

        Events of a publisher that is not (or no longer) known are ignored and counted: they come from the queue of a
        removed pod. O(blocks + tokens) plus, per split, the holders of the run.
        """
        applied = Applied()
        holdings = self._publishers.get(publisher)
        if holdings is None:
            applied.unknown_publisher = sum(1 for _ in events)
            return applied
        if self._max_blocks is None:
            self._apply(holdings, events, applied)
            return applied
        self._tree.clock += 1
        self._resident -= sum(holdings.blocks)
        self._apply(holdings, events, applied)
        self._resident += sum(holdings.blocks)
        applied.evicted = self._keep_bound(self._max_blocks)
        return applied

    def _apply(self, holdings: Holdings, events: Iterable[Event], applied: Applied) -> None:
        for event in joined_removals(events):
            if isinstance(event, BlockStored):
                self._store.stored(holdings, event, applied)
            elif isinstance(event, AllBlocksCleared):
                self._ledger.clear(holdings, Tier.GPU)
                applied.cleared += 1
            else:
                self._store.removed(holdings, event, applied)

    def match(self, prompts: Mapping[int, Sequence[int]]) -> dict[Publisher, Cached]:
        """How many tokens of a prompt each publisher holds; those that hold nothing are absent.

        `prompts` maps block sizes to the prompt's chained keys at that size (`block_keys` from `root_key`).
        O(runs * (log(run) + holders)).
        """
        self._tree.clock += 1
        return match(self._tree, prompts)

    def block_sizes(self, namespace: str) -> tuple[int, ...]:
        """The block sizes, ascending, in which blocks of the namespace are held. O(1), but after one came or went."""
        return self._tree.block_sizes(namespace)

    def clear(self, publisher: Publisher, tier: Tier | None = None) -> None:
        """Forgets what the publisher holds in a tier; in all tiers, with all it said and all that waits, if None.

        O(what it holds).
        """
        holdings = self._publishers.get(publisher)
        if holdings is None:
            return
        if tier is not None:
            self._resident -= holdings.blocks[tier]
            self._ledger.clear(holdings, tier)
            return
        self._forget(holdings)
        self.add_publisher(publisher, holdings.model)

    def remove_pod(self, pod: str) -> None:
        """Forgets the pod, with all its ranks. O(publishers + what it holds)."""
        for publisher, holdings in list(self._publishers.items()):
            if publisher.pod == pod:
                self._forget(holdings)

    def publishers(self) -> tuple[Publisher, ...]:
        """Who is known, in the order of becoming so."""
        return tuple(self._publishers)

    def export(self, publisher: Publisher) -> Residency | None:
        """What the publisher holds, as a record; None if it is not known. O(what it holds)."""
        holdings = self._publishers.get(publisher)
        return export(holdings) if holdings else None

    def restore(self, record: Residency) -> None:
        """Makes the publisher of a record hold what the record says, instead of what was known of it.

        Raises RecordError, and changes nothing, if the record contradicts itself. O(record + what was known).
        """
        check(record)
        publisher = Publisher(record.pod, record.rank)
        if publisher in self._publishers:
            self._forget(self._publishers[publisher])
        self.add_publisher(publisher, record.model)
        restore(self._tree, self._publishers[publisher], record)
        self._resident += sum(self._publishers[publisher].blocks)
        if self._max_blocks is not None:
            self._keep_bound(self._max_blocks)

    def blocks(self, publisher: Publisher) -> dict[Tier, int]:
        """Resident blocks per tier; 0 for an unknown publisher."""
        holdings = self._publishers.get(publisher)
        return {tier: holdings.blocks[tier] if holdings else 0 for tier in Tier}

    def stats(self) -> IndexStats:
        """Sizes of the whole. O(publishers)."""
        every = self._publishers.values()
        return IndexStats(
            publishers=len(every),
            nodes=len(self._tree.nodes),
            blocks={tier: sum(holdings.blocks[tier] for holdings in every) for tier in Tier},
            orphans=sum(holdings.orphans.blocks for holdings in every),
            placeholders=sum(len(holdings.placeholders) for holdings in every),
            evicted=self._evicted,
            table_bytes=sum(holdings.located.table_bytes for holdings in every),
        )

    def check_invariants(self) -> None:
        """Raises AssertionError where the record contradicts itself. O(all blocks)."""
        check_invariants(self._tree, self._publishers.values())
        if self._max_blocks is not None:
            check_bound(self._tree, self._publishers.values(), self._resident, self._max_blocks)

    def _keep_bound(self, max_blocks: int) -> int:
        """Gives up what is over the bound; returns how many residencies. O(what goes + log(leaves))."""
        before = self._resident
        while (excess := self._resident - max_blocks) > 0:
            node = self._leaves.coldest()
            self._resident -= self._ledger.give_up(node, tail(node, excess))
        evicted = before - self._resident
        self._evicted += evicted
        return evicted

    def _forget(self, holdings: Holdings) -> None:
        self._resident -= sum(holdings.blocks)
        for tier in Tier:
            self._ledger.clear(holdings, tier)
        del self._publishers[holdings.publisher]
