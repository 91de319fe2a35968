"""The tiers against models that keep a list in the order of use and answer by scanning."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loadgen.sim import spans
from loadgen.sim.tiers import CpuTier, GpuTier, Stretch
from tests.loadgen.sim.pods import in_order, users


class Held(NamedTuple):
    keys: list[int]
    end: int


def chain(family: int, own: int, shared: int, more: int) -> list[int]:
    """Keys of a sequence that shares its first blocks with its family."""
    return [1000 * family + at for at in range(shared)] + [
        100_000 * (own + 1) + 1000 * family + shared * 10 + at for at in range(more)
    ]


CHAINS = st.builds(chain, st.integers(0, 2), st.integers(0, 3), st.integers(0, 6), st.integers(0, 6))


def named(keys: Sequence[int], stretches: Sequence[Stretch]) -> list[int]:
    """The keys of stretches, none of which could be one with the next."""
    assert all(end < begin for (_, end), (begin, _) in pairwise(stretches))
    assert all(begin < end for begin, end in stretches)
    return [key for begin, end in stretches for key in keys[begin:end]]


class Machine(RuleBasedStateMachine):
    """Spans longer than `short` are not joined."""

    short = 256

    def __init__(self) -> None:
        super().__init__()
        self._usual = spans._SHORT
        spans._SHORT = self.short  # type: ignore[misc]

    def teardown(self) -> None:
        spans._SHORT = self._usual  # type: ignore[misc]


class GpuMachine(Machine):
    @initialize(capacity=st.integers(1, 18))
    def begin(self, capacity: int) -> None:
        self.tier = GpuTier(capacity)
        self.uses: Counter[int] = Counter()
        self.idle: list[int] = []  # the first one goes first
        self.held: list[Held] = []

    def room(self) -> int:
        return self.tier.capacity - len(self.uses) - self.tier.unnamed

    @rule(keys=CHAINS)
    def take(self, keys: list[int]) -> None:
        if sum(key not in self.uses for key in keys) > self.room():
            return
        new = self.tier.take(keys, 0, len(keys))
        assert named(keys, new) == [key for key in keys if key not in self.uses and key not in self.idle]
        self.uses.update(keys)
        self.idle = [key for key in self.idle if key not in keys]
        self.held.append(Held(keys, len(keys)))
        self.shrink(0)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 100))
    def release(self, which: int) -> None:
        keys, end = self.held.pop(which % len(self.held))
        self.tier.release(keys, end)
        for key in reversed(keys):
            self.uses[key] -= 1
            if not self.uses[key]:
                del self.uses[key]
                self.idle.append(key)

    @rule(blocks=st.integers(-3, 3))
    def use_without_names(self, blocks: int) -> None:
        if self.tier.unnamed + blocks >= 0 and blocks <= self.room():
            self.tier.unnamed += blocks
            self.shrink(0)

    @rule(more=st.integers(0, 4))
    def shrink(self, more: int) -> None:
        count = max(
            0, min(len(self.idle), len(self.idle) + len(self.uses) + self.tier.unnamed + more - self.tier.capacity)
        )
        assert self.tier.shrink(more) == self.idle[:count][::-1]
        del self.idle[:count]

    @rule(keys=CHAINS, first=st.integers(0, 6))
    def look(self, keys: list[int], first: int) -> None:
        there = [key in self.uses or key in self.idle for key in keys[first:]]
        assert self.tier.held(keys, first, len(keys)) == [*there, False].index(False)
        assert self.tier.idle_among(keys, len(keys)) == sum(key in self.idle for key in keys)

    @invariant()
    def agrees(self) -> None:
        assert self.tier.free == self.room() >= 0
        assert in_order(self.tier) == self.idle
        assert self.tier.idle == len(self.idle)
        assert users(self.tier) == dict(self.uses)
        assert self.tier.used + len(self.idle) <= self.tier.capacity


class CpuMachine(Machine):
    @initialize(capacity=st.integers(0, 16))
    def begin(self, capacity: int) -> None:
        self.tier = CpuTier(capacity)
        self.blocks: list[int] = []  # the first one goes first

    @rule(keys=CHAINS, first=st.integers(0, 6))
    def store(self, keys: list[int], first: int) -> None:
        first = min(first, len(keys))
        coming = keys[first:]
        new, gone = self.tier.store(keys, first, len(keys))
        if len(coming) > self.tier.capacity:
            assert (new, gone) == ([], [])
            return
        assert named(keys, new) == [key for key in coming if key not in self.blocks]
        self.blocks = [key for key in self.blocks if key not in coming] + coming[::-1]
        over = max(0, len(self.blocks) - self.tier.capacity)
        assert gone == self.blocks[:over][::-1]
        assert not set(gone) & set(coming)
        del self.blocks[:over]

    @rule(keys=CHAINS, first=st.integers(0, 6))
    def touch(self, keys: list[int], first: int) -> None:
        self.tier.touch(keys, first, len(keys))
        touched = [key for key in keys[first:] if key in self.blocks]
        self.blocks = [key for key in self.blocks if key not in touched] + touched[::-1]

    @rule(keys=CHAINS, first=st.integers(0, 6))
    def look(self, keys: list[int], first: int) -> None:
        there = [key in self.blocks for key in keys[first:]]
        assert self.tier.held(keys, first, len(keys)) == [*there, False].index(False)

    @invariant()
    def agrees(self) -> None:
        assert in_order(self.tier) == self.blocks
        assert len(self.tier) <= self.tier.capacity


class GpuMachineWithShortSpans(GpuMachine):
    short = 1


class CpuMachineWithShortSpans(CpuMachine):
    short = 1


TestGpuTier = GpuMachine.TestCase
TestCpuTier = CpuMachine.TestCase
TestGpuTierWithShortSpans = GpuMachineWithShortSpans.TestCase
TestCpuTierWithShortSpans = CpuMachineWithShortSpans.TestCase


def test_of_a_sequence_the_tail_goes_first() -> None:
    tier = GpuTier(4)
    tier.take([1, 2, 3], 0, 3)
    tier.release([1, 2, 3], 3)
    assert tier.shrink(2) == [3]
    assert tier.shrink(3) == [2]
    cpu = CpuTier(3)
    cpu.store([1, 2, 3], 0, 3)
    assert cpu.store([7, 8], 0, 2) == ([(0, 2)], [2, 3])


def test_what_is_forgotten_is_not_there() -> None:
    gpu, cpu = GpuTier(4), CpuTier(4)
    gpu.take([1, 2], 0, 2)
    cpu.store([1, 2], 0, 2)
    gpu.clear()
    cpu.clear()
    assert (gpu.used, gpu.free, gpu.held([1], 0, 1)) == (0, 4, 0)
    assert (len(cpu), cpu.held([1], 0, 1)) == (0, 0)


def test_what_many_share_is_not_moved_by_each_of_them() -> None:
    shared = list(range(1000))
    tier = CpuTier(10_000)
    spans = set()
    for session in range(4):
        own = [10_000 * (session + 1) + at for at in range(500)]
        tier.store(shared + own, 0, 1500)
        spans |= {id(tier._spans._of[key]) for key in shared}
    assert len(spans) == 1
