"""What one publisher holds, as a record that stands by itself: for snapshots.

A record has the publisher's part of the tree: the runs it holds blocks of and those that lead there, parents before
children. It names runs by their number in the record and blocks by key and engine hash, so it can be put into any
index, whatever is there already and however its runs are cut. Orphans and placeholders are not in it: they wait for
events that replay brings again, and without replay they would wait in vain.
"""

from array import array
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

import msgspec

from index.copies import Group
from index.events import Tier
from index.holdings import HASH_BYTES, Holdings, members
from index.node import Node, ones
from index.tree import MAX_DEPTH_BLOCKS, Place, Tree

_TOP: Final = -1


class RecordError(ValueError):
    """A record that contradicts itself."""


class Run(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Blocks that follow the run number `parent`, or start prompts of a namespace where that is -1.

    `keys` and `hashes` are packed 8-byte numbers in the machine's order, one per block; `gpu` and `cpu` are bit sets,
    little-endian. `hashes` may end with the last held block, and counts only where a bit is set.
    """

    parent: int
    namespace: str
    block_size: int
    keys: bytes
    gpu: bytes
    cpu: bytes
    hashes: bytes


class Residency(msgspec.Struct, array_like=True, kw_only=True):
    """All a publisher holds; `counts` are its copies beyond the usual, as (tier, group, hash, difference)."""

    pod: str
    rank: int
    model: str
    kinds: list[tuple[Group, str]]
    usual: Group
    groups: list[Group]
    counts: list[tuple[Tier, Group, int, int]]
    private: bytes
    runs: list[Run]


def export(holdings: Holdings) -> Residency:
    """The publisher's record. O(what it holds), most of it copies of whole runs."""
    usual, groups, counts = holdings.copies.dump()
    return Residency(
        pod=holdings.publisher.pod,
        rank=holdings.publisher.rank,
        model=holdings.model,
        kinds=list(holdings.kinds.items()),
        usual=usual,
        groups=groups,
        counts=counts,
        private=array("Q", sorted(holdings.private)).tobytes(),
        runs=list(_runs(holdings)),
    )


def _runs(holdings: Holdings) -> Iterator[Run]:
    leading: set[Node] = set()
    for node in holdings.columns:
        parent = node.parent
        while parent is not None and parent not in leading:
            leading.add(parent)
            parent = parent.parent
    numbers: dict[Node | None, int] = {None: _TOP}
    for node in sorted(leading | holdings.columns.keys(), key=attrgetter("start")):
        gpu, cpu = holdings.bits(Tier.GPU, node), holdings.bits(Tier.CPU, node)
        length = (gpu | cpu).bit_length()
        keys = node.keys if node in leading else node.keys[:length]
        root = node.root
        yield Run(
            numbers[node.parent],
            "" if node.parent else root.namespace,
            root.block_size,
            keys.tobytes(),
            _bytes(gpu),
            _bytes(cpu),
            bytes(holdings.columns[node][: length * HASH_BYTES]) if length else b"",
        )
        numbers[node] = len(numbers) - 1


def check(record: Residency) -> None:
    """Raises RecordError if the record contradicts itself. O(record)."""
    children = Counter(run.parent for run in record.runs)
    tops: set[tuple[int, bytes]] = set()
    ends: list[int] = []
    held: tuple[set[int], set[int]] = set(), set()
    for number, run in enumerate(record.runs):
        _require(_TOP <= run.parent < number, "a run comes before its parent")
        length, rest = divmod(len(run.keys), HASH_BYTES)
        _require(length > 0 and not rest, "a run is cut off")
        is_top = run.parent == _TOP
        ends.append(length if is_top else ends[run.parent] + length)
        _require(ends[-1] <= MAX_DEPTH_BLOCKS, "a run is too deep")
        _require(is_top or run.block_size == record.runs[run.parent].block_size, "a run does not fit its parent")
        _require((run.parent, run.keys[:HASH_BYTES]) not in tops, "two runs begin alike")
        tops.add((run.parent, run.keys[:HASH_BYTES]))
        reach = max(_bits(run.gpu).bit_length(), _bits(run.cpu).bit_length())
        _require(reach <= length and len(run.hashes) == reach * HASH_BYTES, "bits and blocks disagree")
        _require(reach == length or number in children, "a run ends behind what is held")
        hashes = array("Q", run.hashes)
        both = set(members(hashes, _bits(run.gpu) | _bits(run.cpu)))
        _require(len(both) == (_bits(run.gpu) | _bits(run.cpu)).bit_count(), "a hash is there twice")
        _require(both.isdisjoint(held[0]) and both.isdisjoint(held[1]), "a hash is there twice")
        for tier, bits in zip(Tier, (run.gpu, run.cpu), strict=True):
            held[tier].update(members(hashes, _bits(bits)))
    _require(len(record.private) % HASH_BYTES == 0, "private blocks are cut off")
    _require(all(h in held[0] or h in held[1] for h in array("Q", record.private)), "a private block is not held")
    _require(all(h in held[tier] for tier, _, h, _ in record.counts), "copies are counted of a block not held")
    groups = {group for _, group, _, _ in record.counts}
    _require(groups <= set(record.groups), "copies are counted of a group not named")


def restore(tree: Tree, holdings: Holdings, record: Residency) -> None:
    """Puts the contents of a record that was checked into holdings that are empty. O(record)."""
    holdings.kinds.update(record.kinds)
    ends: list[Place] = []
    for run in record.runs:
        keys = array("Q", run.keys).tolist()
        start = tree.start(run.namespace, run.block_size) if run.parent == _TOP else _now(ends[run.parent])
        at = 0
        for segment in tree.reach(start, keys):
            mask = ones(segment.length)
            gpu, cpu = _bits(run.gpu) >> at & mask, _bits(run.cpu) >> at & mask
            if gpu | cpu:
                hashes = array("Q", run.hashes[at * HASH_BYTES : (at + segment.length) * HASH_BYTES])
                holdings.place(segment.node, segment.offset, hashes, gpu | cpu)
                holdings.hold(Tier.GPU, segment.node, gpu << segment.offset)
                holdings.hold(Tier.CPU, segment.node, cpu << segment.offset)
            at += segment.length
        node, offset, length = segment
        ends.append(Place(node.root, node, node.start + offset + length))
    holdings.private.update(array("Q", record.private))
    holdings.copies.load(record.usual, record.groups, record.counts)


def _now(place: Place) -> Place:
    """The place again, after what came since may have split its run."""
    root, node, depth = place
    while node is not None and depth > node.end:
        node = node.cont
    return Place(root, node, depth)


def _bits(packed: bytes) -> int:
    return int.from_bytes(packed, "little")


def _bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _require(condition: bool, otherwise: str) -> None:  # noqa: FBT001 - an assertion that is always on
    if not condition:
        raise RecordError(otherwise)
