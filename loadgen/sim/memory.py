"""What a modelled pod does to its tiers for a sequence, and the events that tell of it."""

from math import ceil

from index import BlockRemoved, BlockStored, Event, Tier
from loadgen.profile import PodProfile
from loadgen.sim.sequence import Reused, Sequence
from loadgen.sim.tiers import CpuTier, GpuTier, Stretch


class Memory:
    """`answered`: tokens of answers that are under way, whose blocks are counted by their sum."""

    def __init__(self, profile: PodProfile) -> None:
        self.gpu = GpuTier(profile.gpu_blocks)
        self.cpu = CpuTier(profile.cpu_blocks)
        self.answered = 0
        self._size = profile.block_size
        self._events: list[Event] = []
        self._offloads: list[tuple[Sequence, int, int]] = []

    @property
    def room(self) -> int:
        """GPU blocks to be had; below 0 where answers have grown over what there is."""
        return self.gpu.free - self.answered // self._size

    @property
    def room_tokens(self) -> int:
        """Tokens that answers can grow by before memory is short."""
        return max(0, self.room) * self._size

    @property
    def usage(self) -> float:
        """Share of the GPU's blocks in use, 0 … 1."""
        return min(1.0, 1.0 - self.room / self.gpu.capacity)

    def take_events(self) -> list[Event]:
        """What has happened since the last call."""
        events, self._events = self._events, []
        return events

    def hold(self, sequence: Sequence, end: int) -> None:
        """Hold the first `end` blocks, which are on the GPU."""
        more = end - sequence.named
        if more > 0:
            self.gpu.take(sequence.keys, sequence.named, end)
            spared = min(more, sequence.blocks - sequence.named)
            self.gpu.unnamed -= spared
            sequence.blocks += more - spared
            sequence.named = end

    def reserve(self, sequence: Sequence, tokens: int) -> None:
        """Hold blocks for its first tokens, for which there is room."""
        blocks = ceil(tokens / self._size)
        self.gpu.unnamed += blocks - sequence.blocks
        sequence.blocks = blocks
        self._make_room()

    def extend(self, sequence: Sequence, tokens: int) -> bool:
        """Give a sequence the blocks for its first tokens, of which those that get full can be found from now on."""
        blocks, full = max(ceil(tokens / self._size), sequence.blocks), tokens // self._size
        if blocks > sequence.blocks and blocks - sequence.blocks > self.room:
            return False
        self.gpu.unnamed += (blocks - full) - (sequence.blocks - sequence.named)
        new = self.gpu.take(sequence.keys, sequence.named, full)
        self._tell(sequence, new, Tier.GPU)
        sequence.named, sequence.blocks = full, blocks
        self._make_room()
        return True

    def free(self, sequence: Sequence) -> None:
        """Let go of all that a sequence holds; what has a key stays to be found."""
        self.gpu.unnamed -= sequence.blocks - sequence.named
        self.gpu.release(sequence.keys, sequence.named)
        sequence.named = sequence.blocks = 0
        self._make_room()  # answers may have grown over what there is

    def answer(self, tokens: int) -> None:
        """Answers have so many tokens more."""
        self.answered += tokens
        self._make_room()

    def finish(self, sequence: Sequence, answered: int) -> None:
        """An answer has ended, of whose tokens so many were counted: its blocks get their keys.

        Its last token was not computed, because nothing came after it.
        """
        self.answered -= answered
        full = (len(sequence.tokens) - 1) // self._size
        self.gpu.unnamed -= sequence.blocks - sequence.named
        new = self.gpu.take(sequence.keys, sequence.named, full)
        self._tell(sequence, new, Tier.GPU)
        sequence.named = sequence.blocks = full
        self.offload_later(sequence, full)
        self.free(sequence)

    def loaded(self, sequence: Sequence, restored: int, pulled: int) -> None:
        """Blocks have come into those that it reserved; pulled ones through the CPU tier, where they stay."""
        first, middle = sequence.named, sequence.named + restored
        end = middle + pulled
        self._store(sequence, middle, end)
        self.cpu.touch(sequence.keys, 0, middle)
        self.gpu.unnamed -= end - first
        new = self.gpu.take(sequence.keys, first, end)
        self._tell(sequence, new, Tier.GPU)
        sequence.named = end
        sequence.landed = Reused(0, restored * self._size, pulled * self._size)
        sequence.landed_end = end if end > first else 0
        self._make_room()

    def found_again(self, sequence: Sequence) -> int:
        """Hold what is on the GPU by now; returns how many blocks the CPU tier has of those behind."""
        size, keys = self._size, sequence.keys
        self.hold(sequence, self.gpu.held(keys, 0, (sequence.prompt - 1) // size))
        return self.cpu.held(keys, sequence.named, sequence.prompt // size)

    def offload_later(self, sequence: Sequence, full: int) -> None:
        """The first `full` blocks are computed, and reach the CPU tier by `offload`."""
        if full > sequence.offloaded:
            self._offloads.append((sequence, sequence.offloaded, full))
            sequence.offloaded = full

    def offload(self) -> None:
        """What was computed reaches the CPU tier."""
        for sequence, first, end in self._offloads:
            self._store(sequence, first, end)
            if sequence.over:
                self.cpu.touch(sequence.keys, 0, first)
        self._offloads.clear()

    def _store(self, sequence: Sequence, first: int, end: int) -> None:
        new, gone = self.cpu.store(sequence.keys, first, end)
        if gone:
            self._events.append(BlockRemoved(gone, Tier.CPU))
        self._tell(sequence, new, Tier.CPU)

    def _make_room(self) -> None:
        gone = self.gpu.shrink(self.answered // self._size)
        if gone:
            self._events.append(BlockRemoved(gone, Tier.GPU))

    def _tell(self, sequence: Sequence, new: list[Stretch], tier: Tier) -> None:
        """These of its blocks are new in the tier."""
        size, keys = self._size, sequence.keys
        for first, end in new:
            parent = keys[first - 1] if first else None
            tokens = sequence.tokens[first * size : end * size]
            self._events.append(BlockStored(keys[first:end], parent, tokens, size, tier))
