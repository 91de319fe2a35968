"""How much of a prompt each publisher holds.

Three lengths are asked for, each contiguous from block 0: `gpu` and `cpu`, held in that tier, and `any`, what the
engine will really reuse. vLLM looks the prompt up in its GPU cache first and continues in the offloaded tier where that
ends; a GPU block behind the first GPU hole is not used. So `any` is the GPU length g plus the CPU blocks from block g
on.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from index.events import Tier
from index.holdings import Holdings, Publisher
from index.node import ones, trailing_ones
from index.tree import Segment, Tree


class Cached(NamedTuple):
    """Contiguous cached tokens from the prompt's start."""

    gpu: int
    cpu: int
    any: int


class _Step(NamedTuple):
    """One run of a prompt's path: who holds what of it in a tier, its part of the prompt as a bit set, its depth."""

    held: Mapping[Holdings, int]
    mask: int
    start: int


def match(tree: Tree, prompts: Mapping[int, Sequence[int]]) -> dict[Publisher, Cached]:
    """See `RadixIndex.match`. Where a publisher has blocks of several sizes, each of its lengths is the longest."""
    found: dict[Publisher, Cached] = {}
    for block_size, keys in prompts.items():
        path = tree.path(keys)
        length = sum(segment.length for segment in path)
        gpu_steps, cpu_steps = _steps(path, Tier.GPU), _steps(path, Tier.CPU)
        for holdings in _holders(path):
            gpu = _contiguous(gpu_steps, holdings)
            cpu = _contiguous(cpu_steps, holdings)
            if not gpu and not cpu:
                continue
            reused = _continued(cpu_steps, holdings, gpu) if cpu < gpu < length else max(gpu, cpu)
            cached = Cached(gpu * block_size, cpu * block_size, reused * block_size)
            if other := found.get(holdings.publisher):
                cached = Cached(*map(max, cached, other))
            found[holdings.publisher] = cached
    return found


def _steps(path: list[Segment], tier: Tier) -> list[_Step]:
    return [_Step(node.held[tier], ones(length), node.start) for node, _, length in path]


def _holders(path: list[Segment]) -> Iterable[Holdings]:
    """Who holds anything in the first run; no one else can hold a prefix."""
    return path[0].node.held[Tier.GPU].keys() | path[0].node.held[Tier.CPU].keys() if path else ()


def _contiguous(steps: list[_Step], holdings: Holdings) -> int:
    """How many blocks of the path, from the first on, the publisher holds without a gap."""
    depth = 0
    for held, mask, start in steps:
        bits = held.get(holdings, 0)
        if bits != mask and bits & mask != mask:
            return start + trailing_ones(bits & mask)
        depth = start + mask.bit_length()
    return depth


def _continued(steps: list[_Step], holdings: Holdings, depth: int) -> int:
    """The depth up to which the publisher holds every block from `depth` on, in the tier of `steps`."""
    first = bisect_right(steps, depth, key=attrgetter("start")) - 1
    for held, mask, start in steps[first:]:
        skipped = depth - start
        missing = (mask & ~held.get(holdings, 0)) >> skipped
        if missing:
            return depth + trailing_ones(~missing)
        depth = start + mask.bit_length()
    return depth
