"""A pod's memory under whatever an engine may do to it, held against what its events say."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loadgen.sim.clock import Clock
from loadgen.sim.memory import Memory
from loadgen.sim.sequence import Sequence
from tests.loadgen.sim.pods import TINY, Ledger, made, nothing_in_use, sequential, within_bounds
from tests.loadgen.sim.pods import users as uses

SIZE = TINY.block_size


class MemoryMachine(RuleBasedStateMachine):
    """Sequences compute, load, answer and leave; `answering` says how many tokens of each answer are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(TINY)
        self.ledger = Ledger(TINY)
        self.computing: list[Sequence] = []
        self.loading: list[Sequence] = []
        self.answering: dict[Sequence, int] = {}
        self._count = 0

    def new(self, family: int, shared: int, tail: int) -> Sequence:
        self._count += 1
        prompt = sequential(100 * family, shared) + sequential(1000 * self._count, tail)
        tokens = prompt + sequential(500_000 + 1000 * self._count, 12)
        return made(self._count, tokens, len(prompt), TINY, [], Clock())

    @rule(family=st.integers(0, 2), shared=st.integers(0, 16), tail=st.integers(1, 12), loads=st.booleans())
    def come(self, family: int, shared: int, tail: int, loads: bool) -> None:
        sequence, gpu = self.new(family, shared, tail), self.memory.gpu
        hits = gpu.held(sequence.keys, 0, (sequence.prompt - 1) // SIZE)
        if -(-sequence.prompt // SIZE) - hits > self.memory.room - gpu.idle_among(sequence.keys, hits):
            return
        self.memory.hold(sequence, hits)
        if loads:
            self.memory.reserve(sequence, sequence.prompt)
            self.loading.append(sequence)
        else:
            sequence.computed = hits * SIZE
            self.computing.append(sequence)

    @precondition(lambda self: self.loading)
    @rule(which=st.integers(0, 100), pulled=st.integers(0, 4), aborted=st.booleans())
    def load_ends(self, which: int, pulled: int, aborted: bool) -> None:
        sequence = self.loading.pop(which % len(self.loading))
        if aborted:
            self.memory.free(sequence)
            return
        full = sequence.prompt // SIZE
        restored = self.memory.cpu.held(sequence.keys, sequence.named, full)
        pulled = min(pulled, full - sequence.named - restored)
        end = sequence.named + restored + pulled
        self.memory.loaded(sequence, restored, pulled)
        assert self.memory.gpu.held(sequence.keys, 0, end) == end
        assert sequence.landed == (0, restored * SIZE, pulled * SIZE)
        sequence.computed = min(end * SIZE, sequence.prompt - 1)
        self.computing.append(sequence)

    @precondition(lambda self: self.computing)
    @rule(which=st.integers(0, 100), tokens=st.integers(1, 20))
    def compute(self, which: int, tokens: int) -> None:
        sequence = self.computing[which % len(self.computing)]
        end = min(sequence.prompt, sequence.computed + tokens)
        before = self.memory.room, sequence.blocks
        if not self.memory.extend(sequence, end):
            assert -(-end // SIZE) - sequence.blocks > self.memory.room
            assert (self.memory.room, sequence.blocks) == before
            return
        sequence.computed = end
        self.memory.offload_later(sequence, end // SIZE)
        assert self.memory.gpu.held(sequence.keys, 0, end // SIZE) == end // SIZE
        if end == sequence.prompt:
            self.computing.remove(sequence)
            self.answering[sequence] = 0

    @precondition(lambda self: self.answering)
    @rule(steps=st.integers(0, 11))
    def answer(self, steps: int) -> None:
        steps = min(steps, 11 - max(self.answering.values()))
        if steps * len(self.answering) > self.memory.room_tokens:
            return
        self.memory.answer(steps * len(self.answering))
        assert self.memory.room >= 0
        for sequence in self.answering:
            self.answering[sequence] += steps

    @precondition(lambda self: self.answering)
    @rule(which=st.integers(0, 100), aborted=st.booleans())
    def end(self, which: int, aborted: bool) -> None:
        sequence = list(self.answering)[which % len(self.answering)]
        answered = self.answering.pop(sequence)
        if aborted:
            self.memory.answer(-answered)
            self.memory.free(sequence)
        else:
            self.memory.finish(sequence, answered)
        assert (sequence.named, sequence.blocks) == (0, 0)

    @rule()
    def offload(self) -> None:
        self.memory.offload()

    @invariant()
    def holds_what_its_events_say(self) -> None:
        self.ledger.apply(self.memory.take_events())
        self.ledger.agrees_with(self.memory)
        within_bounds(self.memory)
        assert 0.0 <= self.memory.usage <= 1.0
        users = [*self.computing, *self.loading, *self.answering]
        assert self.memory.gpu.unnamed == sum(sequence.blocks - sequence.named for sequence in users)
        assert sum(uses(self.memory.gpu).values()) == sum(sequence.named for sequence in users)

    def teardown(self) -> None:
        for sequence, answered in self.answering.items():
            self.memory.answer(-answered)
            self.memory.free(sequence)
        for sequence in [*self.computing, *self.loading]:
            self.memory.free(sequence)
        nothing_in_use(self.memory)


TestMemory = MemoryMachine.TestCase
