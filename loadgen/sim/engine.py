"""A modelled pod: continuous batching over two tiers, as `loadgen.scheduler` does it block by block, in few events.

A step shares its token budget among those that decode (a token each), those that prefill (a chunk each), and what can
be admitted. Steps in which something prefills happen one by one. Where all that runs decodes, nothing changes from step
to step but the lengths, so many steps happen at once: until the first of them ends, memory gets short, or somebody
comes; who comes in between waits for the end of the step that is under way. So what a run costs to simulate depends on
its requests, and hardly on how many tokens they answer.

Blocks of answers are counted by their sum, and get their keys when the answer ends. A preempted sequence, the youngest,
begins anew, and what it had answered is part of its prompt.
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import ceil, sqrt
from typing import Final

from index import Event
from loadgen.profile import PodProfile
from loadgen.sim.clock import Clock, Timer
from loadgen.sim.memory import Memory
from loadgen.sim.sequence import Reused, Sequence
from loadgen.sim.timing import Chunk, Timing

_MOST_STEPS: Final = 1 << 20  # at once; answers are shorter
_ALMOST_A_STEP: Final = 1e-9


class Engine:
    """`publish` gets events and in how many seconds they are told; `load` gets sequences that have blocks to load, with
    how many the CPU tier has of them, and they return by `rejoin`, not before it has returned.
    """

    def __init__(
        self,
        clock: Clock,
        profile: PodProfile,
        timing: Timing,
        publish: Callable[[list[Event], float], None],
        load: Callable[[Sequence, int], None],
    ) -> None:
        self.memory = Memory(profile)
        self.preemptions = 0
        self.computed_tokens = 0
        self._clock = clock
        self._profile = profile
        self._timing = timing
        self._publish = publish
        self._load = load
        self._waiting: deque[Sequence] = deque()
        self._loaded: deque[Sequence] = deque()  # they hold the blocks of their prompts, and are admitted first
        self._loading: set[Sequence] = set()
        self._prefilling: list[Sequence] = []
        self._decoding: list[tuple[int, int, Sequence]] = []  # a heap, by the step that is its last
        self._context = 0  # tokens of all that decode, their answers included
        self._steps = 0  # in which something decoded
        self._ages = count()
        self._timer: Timer | None = None  # of the end of what is under way
        self._phase: tuple[float, int] | None = None  # when steps without a prefill began, and how many they are

    @property
    def waiting(self) -> int:
        """Sequences that wait for room or for a load."""
        return len(self._waiting) + len(self._loaded) + len(self._loading)

    @property
    def running(self) -> int:
        """Sequences that take part in steps."""
        return len(self._prefilling) + len(self._decoding)

    def step_ends(self) -> float:
        """When it can answer a peer, which it does between steps."""
        if self._timer is None:
            return self._clock.now
        return self._timer.when if self._phase is None else self._boundary(*self._phase)[1]

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ValueError for one that can never run."""
        if len(sequence.tokens) > self.memory.gpu.capacity * self._profile.block_size:
            raise ValueError(f"{len(sequence.tokens)} tokens are more than the GPU's blocks hold")
        self._waiting.append(sequence)
        self._attend()

    def rejoin(self, sequence: Sequence) -> None:
        """What could be loaded is here."""
        self._loading.discard(sequence)
        if sequence.over:
            self.memory.free(sequence)
        else:
            sequence.loaded = True
            sequence.source = None
            self._loaded.append(sequence)
        self._attend()

    def abort(self, sequence: Sequence) -> None:
        """Its client has left. O(what waits or runs)."""
        if sequence.over:
            return
        sequence.over = True
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._loaded or sequence in self._prefilling:
            (self._loaded if sequence in self._loaded else self._prefilling).remove(sequence)
            self.memory.free(sequence)
        elif sequence not in self._loading:
            self._leave_decoding(sequence)
            self.memory.free(sequence)
        self._attend()

    def stop(self) -> list[Sequence]:
        """It ends, with all it held; returns what was under way."""
        lost = [
            *self._waiting,
            *self._loading,
            *self._loaded,
            *self._prefilling,
            *(entry[2] for entry in self._decoding),
        ]
        for sequence in lost:
            sequence.over = True
        if self._timer is not None:
            self._timer.cancel()
        return lost

    # Steps.

    def _attend(self) -> None:
        """There is something to do: at once where nothing is under way, else at the end of the step that is."""
        if self._timer is None:
            self._step()
        elif self._phase is not None:
            began, steps = self._phase
            done, ends = self._boundary(began, steps)
            if done < steps:
                self._timer.cancel()
                self._begin_phase(began, done, ends)

    def _step(self) -> None:
        """Begin the next step, or many of them."""
        self._timer = self._phase = None
        self.memory.offload()
        chunks = self._plan()
        now, seconds = self._clock.now, 0.0
        if chunks:
            seconds = self._timing.step_s(chunks, len(self._decoding), self._context, self.memory.usage)
            self._timer = self._clock.at(now + seconds, lambda: self._end_mixed(chunks))
        elif self._decoding:
            seconds = self._seconds_of(1)
            steps = max(1, min(self._decoding[0][0] - self._steps, _MOST_STEPS, self._steps_in_memory()))
            self._begin_phase(now, steps, now + self._seconds_of(steps))
        if events := self.memory.take_events():
            self._publish(events, seconds)

    def _plan(self) -> list[Chunk]:
        budget = self._profile.token_budget - len(self._decoding)
        chunks: list[Chunk] = []
        for sequence in self._prefilling:
            tokens = min(sequence.prompt - sequence.computed, budget)
            if tokens <= 0:
                continue
            if not self.memory.extend(sequence, sequence.computed + tokens):
                self._preempt()
                chunks = [chunk for chunk in chunks if chunk.sequence in self._prefilling]
                return chunks if chunks or self._decoding else self._plan()
            chunks.append(Chunk(sequence, tokens))
            budget -= tokens
        while (queue := self._loaded or self._waiting) and budget > 0 and self.running < self._profile.max_running:
            chunk = self._admitted(queue, budget)
            if chunk is None:
                break
            if chunk.tokens:
                chunks.append(chunk)
                budget -= chunk.tokens
        return chunks

    def _admitted(self, queue: deque[Sequence], budget: int) -> Chunk | None:
        """The first chunk of what is first; one of 0 tokens where it is to load before, None where it finds no room.

        The last token is always computed, so that on the GPU only what is before it is looked for, but where a load
        ended. A load has the blocks of its whole prompt from the start, so none waits for what another one holds.
        """
        sequence = queue[0]
        memory, size = self.memory, self._profile.block_size
        full = sequence.prompt // size
        hits = memory.gpu.held(sequence.keys, 0, sequence.landed_end or (sequence.prompt - 1) // size)
        if not sequence.loaded and hits < full:
            restorable = memory.cpu.held(sequence.keys, hits, full)
            if restorable or sequence.source is not None:
                if ceil(sequence.prompt / size) - hits > memory.room - memory.gpu.idle_among(sequence.keys, hits):
                    return None
                queue.popleft()
                self._loading.add(sequence)
                memory.hold(sequence, hits)
                memory.reserve(sequence, sequence.prompt)
                self._load(sequence, restorable)
                return Chunk(sequence, 0)
        computed = min(hits * size, sequence.prompt - 1)
        tokens = min(sequence.prompt - computed, budget)
        missing = ceil((computed + tokens) / size) - max(hits, sequence.blocks)
        if missing > 0 and missing > memory.room - memory.gpu.idle_among(sequence.keys, hits):
            return None
        queue.popleft()
        if sequence.reused is None:
            cpu = min(sequence.landed.cpu, hits * size)
            pulled = min(sequence.landed.pulled, hits * size - cpu)
            sequence.reused = Reused(hits * size - cpu - pulled, cpu, pulled)
        memory.hold(sequence, hits)
        sequence.computed = computed
        sequence.admitted = next(self._ages)
        self._prefilling.append(sequence)
        memory.extend(sequence, computed + tokens)
        return Chunk(sequence, tokens)

    def _end_mixed(self, chunks: list[Chunk]) -> None:
        """The end of a step in which something prefilled."""
        self._advance(1)
        for sequence, tokens in chunks:
            if sequence not in self._prefilling:
                continue
            sequence.computed += tokens
            self.computed_tokens += tokens
            self.memory.offload_later(sequence, sequence.computed // self._profile.block_size)
            if sequence.computed == sequence.prompt:
                self._prefilling.remove(sequence)
                self._begin_answer(sequence)
        self._step()

    def _begin_answer(self, sequence: Sequence) -> None:
        if sequence.output > 1:
            self._context += sequence.prompt + 1
            self.memory.answered += 1
            sequence.last_step = self._steps + sequence.output - 1
            heappush(self._decoding, (sequence.last_step, sequence.admitted, sequence))
            sequence.first()
        else:
            sequence.over = True
            self.memory.finish(sequence)
            sequence.first()
            sequence.ended()

    def _begin_phase(self, began: float, steps: int, ends: float) -> None:
        self._phase = (began, steps)
        self._timer = self._clock.at(ends, lambda: self._end_phase(steps))

    def _end_phase(self, steps: int) -> None:
        self._phase = None
        self._advance(steps)
        self._step()

    def _advance(self, steps: int) -> None:
        """So many steps have ended: what decodes has a token more by each, and some have their last."""
        if not self._decoding:
            return
        self._steps += steps
        self._context += steps * len(self._decoding)
        self.memory.answered += steps * len(self._decoding)
        while self._decoding and self._decoding[0][0] <= self._steps:
            _, _, sequence = heappop(self._decoding)
            self._forget_answer(sequence)
            sequence.over = True
            self.memory.finish(sequence)
            sequence.ended()
        while self.memory.room < 0 and self._preempt():
            pass

    def _leave_decoding(self, sequence: Sequence) -> None:
        self._decoding = [entry for entry in self._decoding if entry[2] is not sequence]
        heapify(self._decoding)
        self._forget_answer(sequence)

    def _forget_answer(self, sequence: Sequence) -> None:
        answered = self._answered(sequence)
        self._context -= sequence.prompt + answered
        self.memory.answered -= answered

    def _answered(self, sequence: Sequence) -> int:
        """Tokens that a decoding sequence has answered."""
        return sequence.output - (sequence.last_step - self._steps)

    def _preempt(self) -> bool:
        """The youngest begins anew; False where there is none."""
        youngest = max(self._decoding, key=lambda entry: entry[1])[2] if self._decoding else None
        if self._prefilling and (youngest is None or self._prefilling[-1].admitted > youngest.admitted):
            sequence = self._prefilling.pop()
        elif youngest is not None:
            sequence, answered = youngest, self._answered(youngest)
            self._leave_decoding(sequence)
            sequence.prompt += answered
            sequence.output -= answered
            sequence.first = _nothing
        else:
            return False
        self.memory.free(sequence)
        sequence.computed, sequence.loaded, sequence.landed_end = 0, False, 0
        self._waiting.appendleft(sequence)
        self.preemptions += 1
        return True

    # Many steps at once.

    def _steps_in_memory(self) -> int:
        return max(0, self.memory.room) * self._profile.block_size // len(self._decoding)

    def _seconds_of(self, steps: int) -> float:
        first, more = self._pace()
        return steps * first + more * steps * (steps - 1) / 2

    def _pace(self) -> tuple[float, float]:
        """How long the next step takes, and by how much each takes longer than the one before."""
        decodes = len(self._decoding)
        return (
            self._timing.step_s((), decodes, self._context, self.memory.usage),
            self._timing.growth_s(decodes),
        )

    def _boundary(self, began: float, steps: int) -> tuple[int, float]:
        """How many of the steps have ended when the one under way does, and when that is.

        After i steps first·i + more·i·(i - 1)/2 seconds have passed; solved for i.
        """
        passed = self._clock.now - began
        first, more = self._pace()
        if more:
            half, linear = more / 2, first - more / 2
            ended = (sqrt(linear * linear + 4 * half * passed) - linear) / (2 * half)
        else:
            ended = passed / first
        done = min(steps, max(1, ceil(ended - _ALMOST_A_STEP)))
        return done, began + self._seconds_of(done)


def _nothing() -> None:
    return
