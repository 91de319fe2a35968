"""How much of a prompt each publisher holds.

Three lengths are asked for, each contiguous from block 0: `gpu` and `cpu`, held in that tier, and `any`, what the
engine will really reuse. vLLM looks the prompt up in its GPU cache first and continues in the offloaded tier where that
ends; a GPU block behind the first GPU hole is not used. So `any` is the GPU length g plus the CPU blocks from block g
on.

A prompt that many pods hold is the usual one: a system prompt, a document, a conversation that moved. So publishers
are not walked one by one but in groups that have come equally far. At each run, those of a group who hold all of it go
on together, those who hold nothing of it stop together, and only the others are looked at singly.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from index.events import Tier
from index.holdings import Holdings, Publisher
from index.node import trailing_ones
from index.tree import Step, Tree


class Cached(NamedTuple):
    """Contiguous cached tokens from the prompt's start."""

    gpu: int
    cpu: int
    any: int


_GPU: Final = Tier.GPU
_CPU: Final = Tier.CPU

_START: Final = itemgetter(1)

_Holders = set[Holdings] | frozenset[Holdings]

_Group = tuple[int, _Holders]
"""A depth, and who got there and no further."""


def match(tree: Tree, prompts: Mapping[int, Sequence[int]]) -> dict[Publisher, Cached]:
    """See `RadixIndex.match`. Where a publisher has blocks of several sizes, each of its lengths is the longest."""
    found: dict[Publisher, Cached] = {}
    for block_size, keys in prompts.items():
        several = bool(found)
        for cached, group in _groups(tree, block_size, keys):
            for holdings in group:
                publisher = holdings.publisher
                if several and (other := found.get(publisher)) is not None:  # of another size
                    found[publisher] = Cached(*map(max, cached, other))
                else:
                    found[publisher] = cached
    return found


def _groups(tree: Tree, block_size: int, keys: Sequence[int]) -> list[tuple[Cached, _Holders]]:
    """Those who hold the first block in some tier, grouped by what they hold."""
    steps = tree.steps(keys)
    if not steps:
        return []
    first = steps[0][0]
    for node, _, _ in steps:
        if node.held[_CPU]:
            return _of_both_tiers(steps, block_size)
    held, whole = first.held[_GPU], first.whole(_GPU)
    alike = len(whole) == len(held)  # all have all of the first run, as usual, and then no set is made
    if alike and len(steps) == 1:
        tokens = steps[0][2] * block_size
        return [(Cached(tokens, 0, tokens), whole)]
    reached = _reached(steps, _GPU, whole if alike else set(held), 0)
    return [(Cached(gpu * block_size, 0, gpu * block_size), group) for gpu, group in reached if gpu]


def _of_both_tiers(steps: list[Step], block_size: int) -> list[tuple[Cached, _Holders]]:
    holders, length = steps[0][0].held, steps[-1][2]
    everybody: _Holders = {*holders[_GPU], *holders[_CPU]}
    in_cpu = _reached(steps, _CPU, everybody, 0)
    depths = {holdings: depth for depth, group in in_cpu for holdings in group} if len(in_cpu) > 1 else {}
    found: list[tuple[Cached, _Holders]] = []
    for gpu, group in _reached(steps, _GPU, everybody, 0):
        for cpu, equal in _parted(group, depths) if depths else [(in_cpu[0][0], group)]:
            if not gpu and not cpu:
                continue
            ends = _reached(steps, _CPU, equal, gpu) if cpu < gpu < length else [(max(gpu, cpu), equal)]
            for reused, holders_of_it in ends:
                found.append((Cached(gpu * block_size, cpu * block_size, reused * block_size), holders_of_it))
    return found


def _parted(group: _Holders, depths: Mapping[Holdings, int]) -> Iterable[_Group]:
    """A group, by how far its members get elsewhere."""
    parted: dict[int, set[Holdings]] = {}
    for holdings in group:
        parted.setdefault(depths[holdings], set()).add(holdings)
    return parted.items()


def _reached(steps: list[Step], tier: Tier, group: _Holders, depth: int) -> list[_Group]:
    """How far the group gets from `depth` on without a gap in the tier, in groups of equal depth."""
    found: list[_Group] = []
    for node, start, end in steps[bisect_right(steps, depth, key=_START) - 1 :] if depth else steps:
        whole = node.whole(tier)
        if group <= whole:
            depth = end
            continue
        held, rest = node.held[tier], group - whole
        onward = set(group - rest)
        if stopped := rest.difference(held):
            found.append((depth, stopped))
        parted: dict[int, set[Holdings]] = {}
        for holdings in rest - stopped:
            reached = min(depth + trailing_ones(held[holdings] >> depth - start), end)
            parted.setdefault(reached, set()).add(holdings)
        onward |= parted.pop(end, set())
        found += parted.items()
        if not onward:
            return found
        group, depth = onward, end
    found.append((depth, group))
    return found
