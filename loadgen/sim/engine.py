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
from collections.abc import Sequence as Run
from itertools import count
from math import ceil

from index import Event
from loadgen.profile import PodProfile
from loadgen.sim.clock import Clock, Timer
from loadgen.sim.decoding import Decoding
from loadgen.sim.memory import Memory
from loadgen.sim.phase import Phase
from loadgen.sim.sequence import Sequence
from loadgen.sim.timing import Chunk, Timing


class Engine:
    """`publish` gets events and in how many seconds they are told; `load` gets sequences that have blocks to load, with
    how many the CPU tier has of them, and they return by `rejoin`, not before it has returned; `coming` tells whether
    a block of a sequence, by its place in it, is on its way for another one, which is something to load, too.
    """

    def __init__(
        self,
        clock: Clock,
        profile: PodProfile,
        timing: Timing,
        publish: Callable[[list[Event], float], None],
        load: Callable[[Sequence, int], None],
        coming: Callable[[Sequence, int], bool],
    ) -> None:
        self.memory = Memory(profile)
        self.preemptions = 0
        self.computed_tokens = 0
        self._clock = clock
        self._profile = profile
        self._timing = timing
        self._publish = publish
        self._load = load
        self._coming = coming
        self._waiting: deque[Sequence] = deque()
        self._loaded: deque[Sequence] = deque()  # they hold the blocks of their prompts, and are admitted first
        self._loading: dict[Sequence, None] = {}
        self._prefilling: list[Sequence] = []
        self._decoding = Decoding()
        self._ages = count()
        self._timer: Timer | None = None  # of the end of what is under way
        self._phase: Phase | None = None  # what is under way, where nothing prefills
        self._asking: list[Callable[[], None]] = []

    @property
    def waiting(self) -> int:
        """Sequences that wait for room or for a load."""
        return len(self._waiting) + len(self._loaded) + len(self._loading)

    @property
    def running(self) -> int:
        """Sequences that take part in steps."""
        return len(self._prefilling) + len(self._decoding)

    def between_steps(self, call: Callable[[], None]) -> None:
        """Call when it is not computing: at once, or at the end of the step that is under way, or of it all.

        In the call the next step has begun, so that who asks again waits for the end of that one.
        """
        if self._timer is None:
            call()
        else:
            self._asking.append(call)
            self._attend()

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ValueError for one that can never run."""
        if len(sequence.tokens) > self.memory.gpu.capacity * self._profile.block_size:
            raise ValueError(f"{len(sequence.tokens)} tokens are more than the GPU's blocks hold")
        self._waiting.append(sequence)
        self._attend()

    def rejoin(self, sequences: Run[Sequence]) -> None:
        """What could be loaded for them is here."""
        for sequence in sequences:
            self._loading.pop(sequence, None)
            if sequence.over:
                self.memory.free(sequence)
            else:
                sequence.loaded = True
                sequence.source = None
                self._loaded.append(sequence)
        self._attend()

    def abort(self, sequence: Sequence) -> None:
        """Its client has left. What it loads arrives all the same, and holds its blocks until then, as in vLLM.

        Nothing happens to one that is over, or was not submitted. O(what waits or runs).
        """
        if sequence.over:
            return
        sequence.over = True
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._loading:
            sequence.left()
        elif sequence in self._loaded or sequence in self._prefilling:
            (self._loaded if sequence in self._loaded else self._prefilling).remove(sequence)
            self.memory.free(sequence)
        elif any(each is sequence for each in self._decoding):
            self.memory.answer(-self._decoding.remove(sequence))
            self.memory.free(sequence)
        self._attend()

    def stop(self) -> list[Sequence]:
        """It ends; returns what was under way. Whom it owes an answer are called; nothing may be submitted any more."""
        lost = [*self._waiting, *self._loading, *self._loaded, *self._prefilling, *self._decoding]
        for sequence in lost:
            sequence.over = True
        for each in (self._waiting, self._loading, self._loaded, self._prefilling, self._decoding):
            each.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._phase = None
        self._answer_peers()
        return lost

    # Steps.

    def _attend(self) -> None:
        """There is something to do: at once where nothing is under way, else at the end of the step that is."""
        phase = self._phase
        if self._timer is None:
            self._step()
        elif phase is not None and phase.steps > 1:
            self._timer.cancel()
            ended = phase.under_way(self._clock.now) - 1
            self._advance(ended)
            self._begin(Phase(phase.end_of(ended), 1, phase.first + ended * phase.more, 0.0))

    def _step(self) -> None:
        """Begin the next step, or many of them."""
        self._timer = self._phase = None
        self.memory.offload()
        chunks = self._plan()
        now, seconds = self._clock.now, 0.0
        if chunks:
            seconds = self._pace(chunks)
            self._timer = self._clock.at(now + seconds, lambda: self._end_mixed(chunks))
        elif self._decoding:
            seconds = self._pace(())
            in_memory = self.memory.room_tokens // len(self._decoding)
            steps = max(1, min(self._decoding.steps_to_end, in_memory))
            self._begin(Phase(now, steps, seconds, self._timing.growth_s(len(self._decoding))))
        if events := self.memory.take_events():
            self._publish(events, seconds)
        self._answer_peers()

    def _begin(self, phase: Phase) -> None:
        self._phase = phase
        self._timer = self._clock.at(phase.end_of(phase.steps), lambda: self._end_phase(phase.steps))

    def _pace(self, chunks: Run[Chunk]) -> float:
        decoding = self._decoding
        return self._timing.step_s(chunks, len(decoding), decoding.context, self.memory.usage)

    def _answer_peers(self) -> None:
        asking, self._asking = self._asking, []
        for call in asking:
            call()

    def _plan(self) -> list[Chunk]:
        budget = self._profile.token_budget - len(self._decoding)
        chunks: list[Chunk] = []
        preempted = False
        for sequence in list(self._prefilling):
            tokens = min(sequence.prompt - sequence.computed, budget)
            if tokens <= 0 or sequence not in self._prefilling:
                continue
            while not (fits := self.memory.extend(sequence, sequence.computed + tokens)):
                preempted = True
                if self._preempt() is sequence:
                    break
            if fits:
                chunks.append(Chunk(sequence, tokens))
                budget -= tokens
        if preempted:
            return [chunk for chunk in chunks if chunk.sequence in self._prefilling]
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
            first = hits + restorable
            if restorable or sequence.source is not None or (first < full and self._coming(sequence, first)):
                if ceil(sequence.prompt / size) - hits > memory.room - memory.gpu.idle_among(sequence.keys, hits):
                    return None
                queue.popleft()
                self._loading[sequence] = None
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
        sequence.reuses(hits * size)
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
            self.memory.answer(1)
            self._decoding.add(sequence)
            sequence.first()
        else:
            sequence.over = True
            self.memory.finish(sequence, 0)
            sequence.first()
            sequence.ended()

    def _end_phase(self, steps: int) -> None:
        self._phase = None
        self._advance(steps)
        self._step()

    def _advance(self, steps: int) -> None:
        """So many steps have ended: what decodes has a token more by each, and some have their last."""
        self.memory.answer(self._decoding.advance(steps))
        while (sequence := self._decoding.pop_ended()) is not None:
            sequence.over = True
            self.memory.finish(sequence, sequence.output)
            sequence.ended()
        while self.memory.room < 0 and self._preempt() is not None:
            pass

    def _preempt(self) -> Sequence | None:
        """The youngest begins anew; None where there is none."""
        sequence = self._decoding.youngest
        if self._prefilling and (sequence is None or self._prefilling[-1].admitted > sequence.admitted):
            sequence = self._prefilling.pop()
        elif sequence is not None:
            answered = self._decoding.remove(sequence)
            self.memory.answer(-answered)
            sequence.has_answered(answered)
        else:
            return None
        self.memory.free(sequence)
        sequence.begin_anew()
        self._waiting.appendleft(sequence)
        self.preemptions += 1
        return sequence
