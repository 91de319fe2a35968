"""Removals that follow each other, taken together."""

from collections.abc import Iterable, Iterator

from index.events import BlockRemoved, Event


def joined_removals(events: Iterable[Event]) -> Iterable[Event]:
    """The same events, removals of one tier and group that follow each other made one.

    vLLM frees a sequence's blocks from its last to its first and announces each in an event of its own. Joined from the
    last event to the first they lie side by side as in their run, and are taken out together. Removals commute.
    """
    listed = list(events)
    return _joined_neighbours(listed) if len(listed) > 1 else listed


def _joined_neighbours(events: list[Event]) -> Iterator[Event]:
    removals: list[BlockRemoved] = []
    for event in events:
        removal = event if isinstance(event, BlockRemoved) else None
        if removals and not (removal and _same_place(removal, removals[0])):
            yield _joined(removals)
            removals = []
        if removal:
            removals.append(removal)
        else:
            yield event
    if removals:
        yield _joined(removals)


def _same_place(one: BlockRemoved, other: BlockRemoved) -> bool:
    return one.tier == other.tier and one.group_idx == other.group_idx


def _joined(removals: list[BlockRemoved]) -> BlockRemoved:
    if len(removals) == 1:
        return removals[0]
    hashes = [block_hash for event in reversed(removals) for block_hash in event.block_hashes]
    return BlockRemoved(hashes, removals[0].tier, removals[0].group_idx)
