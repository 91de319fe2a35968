"""How events change the tree and the publishers' holdings.

Stored blocks fall into two sorts. One that the publisher already holds, in this tier or the other, is known: it gets
another bit or another copy, where it is. That must not depend on what the event says about content, because events of
the CPU tier leave out `extra_keys`. GPU events do carry them, so there the keys are compared, and where they differ
the newer event is believed and the older residency withdrawn. All other blocks are hashed from their parent's key on
and inserted.

Two engine hashes of one publisher can come out at the same key, when blocks differ in something that events don't
carry (images on the CPU tier, two adapters of one name). One bit cannot stand for both. The second gets a private key,
made with the engine's hash, and so do those after it: nothing is claimed for them, and the books stay exact.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from index.block_hash import block_keys, event_extras
from index.copies import Group
from index.events import INDEXED_KINDS, BlockRemoved, BlockStored, Tier
from index.holdings import Holdings
from index.ledger import Applied, Ledger
from index.node import Node, common_length
from index.tree import MAX_DEPTH_BLOCKS, Place, Segment, Tree
from index.waiting import Orphan


class Store:
    """Applies events of publishers to a tree."""

    def __init__(self, tree: Tree, ledger: Ledger) -> None:
        self._tree = tree
        self._ledger = ledger

    def stored(self, holdings: Holdings, event: BlockStored, applied: Applied) -> None:
        """Applies a stored event, and what waited for its blocks. O(blocks + tokens) plus the nodes touched."""
        if event.spec_kind is not None:
            holdings.kinds[event.group_idx] = event.spec_kind
        if not event.block_hashes:
            return
        if not _is_indexed(holdings, event.group_idx):
            applied.ignored_group += len(event.block_hashes)
        elif not event.block_size and not event.token_ids:
            self._placeholder(holdings, event, applied)
        elif not _is_sound(event, distinct := set(event.block_hashes)):
            applied.malformed += 1
        else:
            known = self._store(holdings, event, distinct, applied)
            if known and (holdings.orphans.blocks or len(holdings.placeholders)):
                self._adopt(holdings, known, applied)

    def removed(self, holdings: Holdings, event: BlockRemoved, applied: Applied) -> None:
        """Takes back one copy of each block, wherever it is: resident, or still waiting. O(blocks)."""
        tier, group = event.tier, event.group_idx
        at = 0
        while at < len(event.block_hashes):
            if removed := self._ledger.remove_copies(holdings, tier, group, event.block_hashes, at, applied):
                at += removed
                continue
            block_hash = event.block_hashes[at]
            at += 1
            if holdings.placeholders.cancel(tier, group, block_hash) or holdings.orphans.cancel(
                tier, group, block_hash
            ):
                applied.cancelled += 1
            elif not _is_indexed(holdings, group):
                applied.ignored_group += 1
            elif holdings.given_up[tier]:
                holdings.given_up[tier] -= 1
                applied.evicted_removed += 1
            else:
                applied.unknown_removed += 1

    def _placeholder(self, holdings: Holdings, event: BlockStored, applied: Applied) -> None:
        for block_hash in event.block_hashes:
            if block_hash in holdings.located:
                self._ledger.mark(holdings, event.tier, event.group_idx, [block_hash], applied)
            else:
                applied.placeholder_pending += 1
                applied.dropped += holdings.placeholders.add(event.tier, event.group_idx, block_hash)

    def _adopt(self, holdings: Holdings, known: list[int], applied: Applied) -> None:
        """Stores, one after the other, what waited for blocks that became known.

        Orphans that were removed while they waited are removed only when all are stored: they may be the parents of
        others.
        """
        queue = deque(self._waiting(holdings, known, applied))
        removals = []
        while queue:
            orphan = queue.popleft()
            became_known = self._store(holdings, orphan.event, set(orphan.event.block_hashes), applied)
            if became_known is None:
                continue
            if orphan.cancelled:
                removals.append(BlockRemoved(list(orphan.cancelled), orphan.event.tier, orphan.event.group_idx))
            queue.extend(self._waiting(holdings, became_known, applied))
        for removal in removals:
            self.removed(holdings, removal, applied)

    def _waiting(self, holdings: Holdings, known: list[int], applied: Applied) -> Iterator[Orphan]:
        """Takes up the placeholders of blocks that became known, and returns the orphans that waited for them."""
        for block_hash in holdings.placeholders.named_in(known):
            for tier, group in holdings.placeholders.take(block_hash):
                self._ledger.mark(holdings, tier, group, [block_hash], applied)
        for parent in holdings.orphans.waiting_for(known):
            adopted = holdings.orphans.take(parent)
            applied.adopted += sum(len(orphan.event.block_hashes) for orphan in adopted)
            yield from adopted

    def _store(self, holdings: Holdings, event: BlockStored, distinct: set[int], applied: Applied) -> list[int] | None:
        """Stores what can be; returns the hashes that became known, None if the event does not fit its parent."""
        leaf = self._leaf_before(holdings, event)
        if leaf is not None and not holdings.located.any_of(event.block_hashes, distinct):
            self._extend(holdings, leaf, event, applied)
            return event.block_hashes
        place = self._place(holdings, event)
        if place is not None and (
            place.root.block_size != event.block_size or place.depth + len(event.block_hashes) > MAX_DEPTH_BLOCKS
        ):
            applied.malformed += 1
            return None
        if holdings.located.any_of(event.block_hashes, distinct):
            return self._store_mixed(holdings, place, event, applied)
        if place is None:
            self._put_aside(holdings, event, applied)
            return []
        self._insert(holdings, place, event, applied)
        return event.block_hashes

    def _leaf_before(self, holdings: Holdings, event: BlockStored) -> Node | None:
        """The leaf that the event goes on, where that is quick to tell: the usual one, with room for its blocks."""
        leaf = holdings.recent
        if leaf is None or leaf.children or leaf.root.block_size != event.block_size:
            return None
        length = len(leaf.keys)
        if holdings.find_last(leaf, event.parent_block_hash) != length - 1:
            return None
        count = len(event.block_hashes)
        return leaf if self._tree.has_room(leaf, count) and leaf.start + length + count <= MAX_DEPTH_BLOCKS else None

    def _extend(self, holdings: Holdings, leaf: Node, event: BlockStored, applied: Applied) -> None:
        """What `_insert` does, where nothing has to be found out first."""
        extras = event_extras(event.extra_keys, event.lora_name)
        keys = block_keys(event.token_ids, event.block_size, leaf.keys[-1], extras)
        self._tree.extend(leaf, keys)
        self._ledger.append(holdings, event.tier, event.group_idx, leaf, event.block_hashes, applied)

    def _store_mixed(self, holdings: Holdings, place: Place | None, event: BlockStored, applied: Applied) -> list[int]:
        """Stores an event with known blocks among its own, stretch by stretch of equal sort."""
        became_known: list[int] = []
        at = 0
        while at < len(event.block_hashes):
            sort, end = _stretch(holdings, event.block_hashes, at)
            part = _part(event, at, end)
            if sort != _UNKNOWN:
                agreeing = self._agreeing(holdings, place, part) if sort == _KNOWN else end - at
                if agreeing < end - at:
                    self._ledger.withdraw(holdings, part.block_hashes[agreeing], applied)
                end = at + agreeing
                self._ledger.mark(holdings, event.tier, event.group_idx, part.block_hashes[:agreeing], applied)
            elif place is None:
                self._put_aside(holdings, part, applied)
            else:
                self._insert(holdings, place, part, applied)
                became_known += part.block_hashes
            before = event.block_hashes[end - 1] if end else event.parent_block_hash
            if before is not None and (after := self._ledger.after(holdings, before)) is not None:
                place = after  # looked up again even if it is the same: a withdrawal may have made two runs one
            at = end
        return became_known

    def _place(self, holdings: Holdings, event: BlockStored) -> Place | None:
        """Where the event's first block belongs; None if its parent is not known."""
        parent = event.parent_block_hash
        if parent is None:
            return self._tree.start(event.lora_name or holdings.model, event.block_size)
        return self._ledger.after(holdings, parent)

    def _put_aside(self, holdings: Holdings, event: BlockStored, applied: Applied) -> None:
        assert event.parent_block_hash is not None, "a prompt's start has a place"  # noqa: S101 - for mypy
        applied.orphaned += len(event.block_hashes)
        applied.dropped += holdings.orphans.add(event.parent_block_hash, event)

    def _insert(self, holdings: Holdings, place: Place, event: BlockStored, applied: Applied) -> None:
        """Stores blocks of which the publisher holds none yet, right after `place`."""
        extras = event_extras(event.extra_keys, event.lora_name)
        keys = block_keys(event.token_ids, event.block_size, place.key(), extras)
        path = self._tree.follow(place, keys)
        clear = _unheld_length(holdings, path)
        if clear is None:
            self._occupy(holdings, place, event, keys, path, applied)
            return
        if clear:
            head = _part(event, 0, clear)
            self._insert(holdings, place, head, applied)
            node, offset = self._ledger.locate(holdings, head.block_hashes[-1])
            place = Place(node.root, node, node.start + offset + 1)
        tail = _part(event, clear, len(keys))
        extras = event_extras(tail.extra_keys, tail.lora_name) or {}
        for number, block_hash in enumerate(tail.block_hashes):
            extras[number] = extras.get(number, b"") + block_hash.to_bytes(8, "big")
        keys = block_keys(tail.token_ids, tail.block_size, place.key(), extras)
        self._occupy(holdings, place, tail, keys, self._tree.follow(place, keys), applied)
        holdings.private.update(tail.block_hashes)
        applied.private += len(keys)

    def _occupy(
        self,
        holdings: Holdings,
        place: Place,
        event: BlockStored,
        keys: list[int],
        path: list[Segment],
        applied: Applied,
    ) -> None:
        """Takes the blocks of `keys`, of which `path` is the part that exists already."""
        path = self._tree.complete(place, keys, path)
        self._ledger.occupy(holdings, event.tier, event.group_idx, path, event.block_hashes, applied)

    def _agreeing(self, holdings: Holdings, place: Place | None, part: BlockStored) -> int:
        """How many of these known blocks, from the first on, hold what the event says, as far as it can tell."""
        if place is None or part.tier is not Tier.GPU:
            return len(part.block_hashes)
        extras = event_extras(part.extra_keys, part.lora_name)
        keys = block_keys(part.token_ids, part.block_size, place.key(), extras)
        at = 0
        for node, offset, length in self._ledger.segments(holdings, part.block_hashes):
            same = min(common_length(node.keys, offset, keys, at), length)
            at += same
            if same < length:
                break
        return at


_UNKNOWN: Final = 0
_KNOWN: Final = 1
_PRIVATE: Final = 2


def _stretch(holdings: Holdings, hashes: list[int], at: int) -> tuple[int, int]:
    """The sort of the block at `at`, and where the blocks of that sort that follow it end."""
    if not at and not holdings.private and holdings.located.all_of(hashes):
        return _KNOWN, len(hashes)
    sort = _sort(holdings, hashes[at])
    end = at + 1
    while end < len(hashes) and _sort(holdings, hashes[end]) == sort:
        end += 1
    return sort, end


def _sort(holdings: Holdings, block_hash: int) -> int:
    if block_hash not in holdings.located:
        return _UNKNOWN
    return _PRIVATE if block_hash in holdings.private else _KNOWN


def _is_indexed(holdings: Holdings, group: Group) -> bool:
    kind = holdings.kinds.get(group)
    return kind is None or kind in INDEXED_KINDS


def _is_sound(event: BlockStored, distinct: set[int]) -> bool:
    blocks = len(event.block_hashes)
    return (
        len(event.token_ids) == blocks * event.block_size
        and len(distinct) == blocks
        and event.parent_block_hash not in distinct
        and (event.extra_keys is None or len(event.extra_keys) == blocks)
    )


def _part(event: BlockStored, start: int, end: int) -> BlockStored:
    """The event for its blocks `start` … `end` - 1 alone."""
    size = event.block_size
    return BlockStored(
        event.block_hashes[start:end],
        event.block_hashes[start - 1] if start else event.parent_block_hash,
        event.token_ids[start * size : end * size],
        size,
        event.tier,
        event.lora_name,
        event.extra_keys[start:end] if event.extra_keys else None,
        event.group_idx,
        event.spec_kind,
    )


def _unheld_length(holdings: Holdings, path: list[Segment]) -> int | None:
    """How many blocks of `path` come before the first that the publisher holds; None if it holds none of them."""
    at = 0
    for segment in path:
        if segment.node in holdings.columns and (held := holdings.bits_anywhere(segment.node) & segment.mask()):
            return at + (held & -held).bit_length() - 1 - segment.offset
        at += segment.length
    return None
