"""Modelled pods on a clock, without a gateway, and what befell their sequences."""

from array import array
from collections.abc import Sequence as Run
from typing import NamedTuple

from gateway.tokens import TokenIds
from index import BlockRemoved, BlockStored, Event, Publisher, RadixIndex, Tier
from loadgen.profile import PodProfile
from loadgen.sim.clock import Clock
from loadgen.sim.engine import Engine
from loadgen.sim.links import Links
from loadgen.sim.memory import Memory
from loadgen.sim.phase import Phase
from loadgen.sim.pulls import Loader
from loadgen.sim.sequence import Sequence
from loadgen.sim.tiers import CpuTier, GpuTier
from loadgen.sim.timing import ProfileTiming

MODEL = "model"
TINY = PodProfile(
    block_size=4,
    gpu_blocks=12,
    cpu_blocks=20,
    max_model_len=40,
    max_running=4,
    token_budget=16,
    decode_us_per_kilotoken_context=30_000.0,
    prefill_ns_per_token_squared=500.0,
    pull_setup_ms=50.0,
)
ROOMY = PodProfile(
    block_size=4, gpu_blocks=4000, cpu_blocks=8000, max_model_len=4000, decode_us_per_kilotoken_context=300.0
)


def sequential(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


class Stepwise(Engine):
    """Does one step at a time, always."""

    def _begin(self, phase: Phase) -> None:
        super()._begin(phase._replace(steps=1))


class Happened(NamedTuple):
    """`what`: "first", "ended"."""

    what: str
    number: int
    at: float


def users(tier: GpuTier) -> dict[int, int]:
    """How many use each block that somebody uses."""
    return {key: span.users for key, span in tier._spans._of.items() if span.users}


def in_order(tier: GpuTier | CpuTier) -> list[int]:
    """Blocks that nobody uses, the first to go first; all spans are sound."""
    found = {id(span): span for span in tier._spans._of.values()}.values()
    entries = {(used_at, -start, id(span)) for used_at, start, _, span in tier._spans._oldest}
    for span in found:
        assert all(tier._spans._of[key] is span for key in span.keys)
        assert span.users >= 0
        assert (span.used_at, span.start, id(span)) in entries if not span.users else not span.used_at
    assert sum(len(span.keys) for span in found) == len(tier._spans)
    idle = sorted((span.used_at, -span.start, span.keys) for span in found if not span.users)
    return [key for _, _, keys in idle for key in reversed(keys)]


class Ledger:
    """What a pod's events leave of its tiers; refuses events that cannot be."""

    def __init__(self, profile: PodProfile) -> None:
        self.index = RadixIndex()
        self.publisher = Publisher("pod:1", 0)
        self.index.add_publisher(self.publisher, MODEL)
        self.blocks: dict[Tier, set[int]] = {tier: set() for tier in Tier}
        self._size = profile.block_size

    def apply(self, events: Run[Event]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                held = self.blocks[event.tier]
                assert held.isdisjoint(event.block_hashes)
                assert len(event.token_ids) == self._size * len(event.block_hashes)
                held.update(event.block_hashes)
            else:
                assert isinstance(event, BlockRemoved)
                assert self.blocks[event.tier].issuperset(event.block_hashes)
                self.blocks[event.tier].difference_update(event.block_hashes)
        self.index.apply(self.publisher, events)

    def agrees_with(self, memory: Memory) -> None:
        """The tiers hold what the events say, and the index knows it."""
        assert self.blocks[Tier.GPU] == memory.gpu._spans._of.keys()
        assert self.blocks[Tier.CPU] == memory.cpu._spans._of.keys()
        assert self.index.blocks(self.publisher) == {tier: len(self.blocks[tier]) for tier in Tier}
        assert self.index.stats().orphans == 0
        self.index.check_invariants()


def within_bounds(memory: Memory) -> None:
    gpu = memory.gpu
    assert gpu.unnamed >= 0
    assert memory.answered >= 0
    assert len(users(gpu)) == gpu.used - gpu.unnamed
    assert not gpu.idle or gpu.used + gpu.idle + memory.answered // memory._size <= gpu.capacity
    assert len(memory.cpu) <= memory.cpu.capacity


def nothing_in_use(memory: Memory) -> None:
    assert (memory.gpu.unnamed, users(memory.gpu), memory.answered) == (0, {}, 0)


def made(
    number: int, tokens: Run[int], prompt: int, profile: PodProfile, happened: list[Happened], clock: Clock
) -> Sequence:
    """A sequence that answers with what is behind its prompt."""
    keys = list(TokenIds("I", tokens).keys(MODEL, profile.block_size, None))
    return Sequence(
        number,
        array("I", tokens),
        keys,
        prompt,
        source=None,
        first=lambda: happened.append(Happened("first", number, clock.now)),
        ended=lambda: happened.append(Happened("ended", number, clock.now)),
    )


class Pods:
    """Pods by number, which pull from each other. Their events are replayed as they are published."""

    def __init__(self, profile: PodProfile, count: int = 1, *, engine: type[Engine] = Engine) -> None:
        self.clock = Clock()
        self.profile = profile
        self.happened: list[Happened] = []
        self.links = Links(self.clock)
        self.engines: dict[int, Engine] = {}
        self.loaders: dict[int, Loader] = {}
        self.ledgers: dict[int, Ledger] = {}
        self.sequences: list[Sequence] = []
        self._engine = engine
        for number in range(count):
            self.start(number)

    def keys(self, tokens: Run[int]) -> list[int]:
        return list(TokenIds("I", tokens).keys(MODEL, self.profile.block_size, None))

    def start(self, number: int) -> None:
        loader = Loader(self.clock, self.profile, self.links, number, self.engines.get, met_before=lambda _: False)
        ledger = Ledger(self.profile)

        def publish(events: list[Event], seconds: float) -> None:
            assert seconds >= 0
            ledger.apply(events)
            ledger.agrees_with(engine.memory)
            within_bounds(engine.memory)

        engine = self._engine(
            self.clock,
            self.profile,
            ProfileTiming(self.profile),
            publish,
            lambda sequence, restorable: loader.load(engine, sequence, restorable),
            loader.brings,
        )
        self.engines[number], self.loaders[number], self.ledgers[number] = engine, loader, ledger

    def lose(self, number: int) -> None:
        self.engines.pop(number).stop()

    def sequence(self, prompt: Run[int], output: int = 1, source: int | None = None) -> Sequence:
        number = len(self.sequences)
        tokens = [*prompt, *sequential(1_000_000 * (number + 1), output)]
        sequence = made(number, tokens, len(prompt), self.profile, self.happened, self.clock)
        sequence.source = source
        self.sequences.append(sequence)
        return sequence

    def submit(self, prompt: Run[int], output: int = 1, *, pod: int = 0, source: int | None = None) -> Sequence:
        sequence = self.sequence(prompt, output, source)
        self.engines[pod].submit(sequence)
        return sequence

    def answered(self, prompt: Run[int], output: int = 1, *, pod: int = 0, source: int | None = None) -> float:
        """Have it answered alone; returns seconds to its first token."""
        began = self.clock.now
        sequence = self.submit(prompt, output, pod=pod, source=source)
        self.clock.run()
        return self.time("first", sequence) - began

    def time(self, what: str, sequence: Sequence) -> float:
        (at,) = (each.at for each in self.happened if each[:2] == (what, sequence.number))
        return at

    def told(self, sequence: Sequence) -> list[str]:
        return [each.what for each in self.happened if each.number == sequence.number]

    def all_over(self) -> None:
        """Nothing is left of what was submitted, and each was answered or aborted once."""
        for sequence in self.sequences:
            assert sequence.over
            assert self.told(sequence) in ([], ["first"], ["first", "ended"])
        for number, engine in self.engines.items():
            assert (engine.waiting, engine.running, engine._decoding.context) == (0, 0, 0)
            nothing_in_use(engine.memory)
            within_bounds(engine.memory)
            self.ledgers[number].agrees_with(engine.memory)
