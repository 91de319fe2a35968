"""Continuous batching over a paged, prefix-cached KV cache: one data-parallel rank's state and its transitions.

A step shares its token budget among the running sequences in order (one token each to those that decode, a chunk to
those that prefill), then admits from the waiting queue, first come first served. A sequence starts behind its longest
cached prefix: GPU blocks, from there blocks of the CPU tier, from there a peer's. What must be loaded is loaded beside
the steps, or waited for there where it is on its way already; the sequence then rejoins the queue's front. Out of
blocks, the youngest running sequence is put back and recomputed.

The last token is always computed, because it gives the next one. So GPU blocks are looked for only before it. A load,
however, goes on over all full blocks, as in vLLM 0.32: a prompt that it completes counts as cached to its end, although
its last token is computed once more.

A block becomes findable when the step that computes it is scheduled, reaches the CPU tier one step after it was
computed, and is announced with its step's batch. There is no clock and no I/O here.
"""

from collections import Counter, deque
from collections.abc import Callable, Container
from typing import NamedTuple

from loadgen.cache import Block, CpuTier, GpuTier
from loadgen.events import Cleared, Event, Stored
from loadgen.profile import PodProfile
from loadgen.sequence import Cached, Sequence, State


class Chunk(NamedTuple):
    """What one sequence computes in a step."""

    sequence: Sequence
    tokens: int


class Scheduler:
    """``plan`` a step, let its time pass, ``complete`` it, ``take_events``.

    ``load`` is called with each sequence whose blocks are to be loaded, and the GPU blocks and CPU blocks it hits
    already; the sequence comes back through ``loaded``. ``coming`` are the hashes of blocks that are on their way, for
    which it is called, too.
    """

    def __init__(
        self,
        profile: PodProfile,
        load: Callable[[Sequence, list[Block], int], None],
        *,
        coming: Container[bytes] = (),
        self_describing: bool = True,
        offload_prompt_only: bool = False,
    ) -> None:
        self.gpu = GpuTier(profile.gpu_blocks)
        self.cpu = CpuTier(profile.cpu_blocks)
        self.waiting: deque[Sequence] = deque()
        self.loading: set[Sequence] = set()
        self.running: list[Sequence] = []
        self.counts: Counter[str] = Counter()
        self._profile = profile
        self._load = load
        self._coming = coming
        self._self_describing = self_describing
        self._offload_prompt_only = offload_prompt_only
        self._events: list[Event] = []
        self._to_offload: list[tuple[Sequence, int, int]] = []

    def take_events(self) -> list[Event]:
        """Return what has happened to the tiers since the last call."""
        events, self._events = self._events, []
        return events

    def abort(self, sequence: Sequence) -> None:
        """Stop a sequence and free what it holds; nothing happens to one that is over."""
        match sequence.state:
            case State.WAITING:
                self.waiting.remove(sequence)
            case State.RUNNING:
                self._retire(sequence)
            case State.FINISHED | State.ABORTED:
                return
        sequence.end(State.ABORTED)
        self.counts["finished abort"] += 1

    def clear_gpu(self) -> bool:
        """Reset the GPU tier; False while a block is in use. The CPU tier stays."""
        cleared = self.gpu.clear()
        if cleared:
            self._events.append(Cleared())
        return cleared

    # -- a step --------------------------------------------------------------------------------------------------------

    def plan(self) -> list[Chunk]:
        """Decide the next step and allocate its blocks; empty when nothing can be computed."""
        budget = self._profile.token_budget
        plan: list[Chunk] = []
        preempted = False
        for sequence in list(self.running):
            tokens = min(len(sequence.tokens) - sequence.computed, budget)
            if sequence.state is not State.RUNNING or tokens == 0:
                continue
            while not (fits := self._extend(sequence, sequence.computed + tokens)):
                preempted = True
                self._preempt(youngest := self.running[-1])
                if youngest is sequence:
                    break
            if fits:
                plan.append(Chunk(sequence, tokens))
                budget -= tokens
        return plan if preempted else plan + self._admit(budget)

    def complete(self, plan: list[Chunk]) -> None:
        """Count a step as computed: emit the tokens it gave, retire what is finished."""
        for sequence, tokens in plan:
            if sequence.state is not State.RUNNING:
                continue
            sequence.computed += tokens
            emits = sequence.computed == len(sequence.tokens)
            self._queue_offload(sequence)
            if not emits:
                continue
            self.counts["generation tokens"] += 1
            if sequence.emit():
                self._retire(sequence)
                self.cpu.touch(sequence.hashes)
                self.counts[f"finished {sequence.answer.finish_reason}"] += 1
                sequence.end(State.FINISHED)

    def _admit(self, budget: int) -> list[Chunk]:
        admitted: list[Chunk] = []
        while self.waiting and budget and len(self.running) < self._profile.max_running:
            sequence = self.waiting[0]
            hits = self.gpu.match(sequence.hashes[: sequence.longest_hit])
            if not sequence.loaded and self._starts_loading(sequence, hits):
                continue
            reused = len(hits) * self._profile.block_size
            computed = min(reused, len(sequence.tokens) - 1)
            tokens = min(len(sequence.tokens) - computed, budget)
            idle_hits = sum(block.uses == 0 for block in hits)
            if self._blocks_of(computed + tokens) - len(hits) > self.gpu.free - idle_hits:
                break
            self.waiting.popleft()
            self.gpu.use(hits)
            sequence.start(hits, computed)
            self._count_admission(sequence, reused)
            self.running.append(sequence)
            self._extend(sequence, computed + tokens)
            admitted.append(Chunk(sequence, tokens))
            budget -= tokens
        return admitted

    def _starts_loading(self, sequence: Sequence, hits: list[Block]) -> bool:
        wanted = sequence.hashes[len(hits) :]
        restorable = self.cpu.match(wanted)
        missing = restorable < len(wanted)
        if not restorable and not (missing and (sequence.source is not None or wanted[0] in self._coming)):
            return False
        self.waiting.popleft()
        self.loading.add(sequence)
        sequence.state = State.LOADING
        self._load(sequence, hits, restorable)
        return True

    def _count_admission(self, sequence: Sequence, reused: int) -> None:
        if sequence.cached is not None:
            return  # it was counted before it was preempted
        host = min(sequence.landed.host, reused)
        p2p = min(sequence.landed.p2p, reused - host)
        sequence.cached = Cached(reused - host - p2p, host, p2p)
        self.counts["prompt tokens"] += sequence.prompt_tokens
        self.counts["cached"] += sum(sequence.cached)
        for source, tokens in sequence.cached._asdict().items():
            self.counts[f"cached {source}"] += tokens

    # -- blocks --------------------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> list[Block]:
        """Return ``count`` blocks, which must be free; what they held is removed."""
        blocks, removed = self.gpu.allocate(count)
        self._events += removed
        return blocks

    def loaded(self, sequence: Sequence, blocks: list[Block], first: int, restored: int, pulled: int) -> None:
        """Announce what a load brought: ``blocks`` hold the sequence's blocks from 0 on, the first ``first`` were
        there.

        Pulled blocks enter the CPU tier as well, as they do in vLLM, which pulls into it.
        """
        last = first + restored + pulled
        self._store_cpu(sequence, first + restored, last)
        for i in range(first, last):
            self.gpu.announce(blocks[i], sequence.hashes[i])
        self._announce(sequence, first, last)
        size = self._profile.block_size
        sequence.landed = Cached(host=restored * size, p2p=pulled * size)
        sequence.landed_end = last if last > first else 0

    def rejoin(self, sequence: Sequence, blocks: list[Block]) -> None:
        """End a load, however it went: give back the blocks it held, and queue its sequence unless that was aborted."""
        self.gpu.release(blocks)
        self.loading.discard(sequence)
        sequence.loaded = True
        sequence.source = None
        if sequence.state is State.LOADING:
            sequence.state = State.WAITING
            self.waiting.appendleft(sequence)

    def offload(self) -> None:
        """Bring the blocks of the last step to the CPU tier."""
        for sequence, first, last in self._to_offload:
            self._store_cpu(sequence, first, last)
        self._to_offload.clear()

    def _queue_offload(self, sequence: Sequence) -> None:
        limit = sequence.prompt_tokens if self._offload_prompt_only else sequence.computed
        full = min(limit, sequence.computed) // self._profile.block_size
        if full > sequence.offloaded:
            self._to_offload.append((sequence, sequence.offloaded, full))
            sequence.offloaded = full

    def _store_cpu(self, sequence: Sequence, first: int, last: int) -> None:
        added, removed = self.cpu.store(sequence.hashes[first:last])
        self._events += removed
        new = set(added)
        stored = [i for i in range(first, last) if sequence.hashes[i] in new]
        # One event a block, ordered by hash: a child may come before its parent, as it may in vLLM.
        for i in sorted(stored, key=sequence.hashes.__getitem__):
            self._events.append(self._cpu_event(sequence, i))

    def _cpu_event(self, sequence: Sequence, i: int) -> Stored:
        size = self._profile.block_size
        if not self._self_describing:
            return Stored([sequence.hashes[i]], None, (), 0, "CPU")
        parent = sequence.hashes[i - 1] if i else None
        return Stored(
            [sequence.hashes[i]], parent, sequence.tokens[i * size : (i + 1) * size], size, "CPU", sequence.lora
        )

    def _extend(self, sequence: Sequence, tokens: int) -> bool:
        """Give a running sequence the blocks for its first ``tokens`` tokens, and announce those that get full."""
        missing = self._blocks_of(tokens) - len(sequence.blocks)
        if missing > self.gpu.free:
            return False
        sequence.blocks += self.allocate(max(0, missing))
        full = tokens // self._profile.block_size
        for i in range(sequence.announced, full):
            self.gpu.announce(sequence.blocks[i], sequence.hashes[i])
        self._announce(sequence, sequence.announced, full)
        sequence.announced = max(full, sequence.announced)
        return True

    def _announce(self, sequence: Sequence, first: int, last: int) -> None:
        if first < last:
            size = self._profile.block_size
            parent = sequence.hashes[first - 1] if first else None
            tokens = sequence.tokens[first * size : last * size]
            extras = sequence.event_extra_keys(first, last)
            self._events.append(Stored(sequence.hashes[first:last], parent, tokens, size, "GPU", sequence.lora, extras))

    def _preempt(self, sequence: Sequence) -> None:
        self._retire(sequence)
        sequence.state = State.WAITING
        sequence.loaded = False
        sequence.landed_end = 0
        self.waiting.appendleft(sequence)
        self.counts["preemptions"] += 1

    def _retire(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.gpu.release(sequence.blocks)
        sequence.blocks = []

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._profile.block_size)
