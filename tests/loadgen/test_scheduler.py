from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.answer import answer
from loadgen.cache import Block
from loadgen.events import Event, Removed, Stored
from loadgen.hashing import BlockHasher
from loadgen.profile import PodProfile
from loadgen.scheduler import Chunk, Scheduler
from loadgen.sequence import Sequence, State

PROFILE = PodProfile(block_size=4, gpu_blocks=12, cpu_blocks=10, max_model_len=40, max_running=4, token_budget=16)
HASHER = BlockHasher(4, seed="0")


class Harness:
    """A scheduler whose steps take no time and whose loads succeed at once."""

    def __init__(self, profile: PodProfile = PROFILE) -> None:
        self.scheduler = Scheduler(profile, self._load)
        self.events: list[Event] = []
        self.plan: list[Chunk] = []
        self._loads: list[tuple[Sequence, list[Block], int]] = []

    def submit(self, prompt: list[int], limit: int = 4) -> Sequence:
        sequence = Sequence(prompt, answer(prompt, limit, ignore_eos=True), HASHER)
        self.scheduler.waiting.append(sequence)
        return sequence

    def step(self) -> bool:
        self.scheduler.offload()
        self.plan = self.scheduler.plan()
        assert sum(tokens for _, tokens in self.plan) <= PROFILE.token_budget
        self.scheduler.complete(self.plan)
        for sequence, hits, restorable in self._loads:
            held = list(hits)
            restored = min(restorable, self.scheduler.gpu.free)
            held += self.scheduler.allocate(restored)
            self.scheduler.loaded(sequence, held, len(hits), restored, 0)
            self.scheduler.rejoin(sequence, held)
        progress = bool(self.plan or self._loads)
        self._loads.clear()
        self.events += self.scheduler.take_events()
        return progress

    def drain(self) -> None:
        while self.step():
            pass

    def _load(self, sequence: Sequence, hits: list[Block], restorable: int) -> None:
        self.scheduler.gpu.use(hits)
        self._loads.append((sequence, hits, restorable))

    def announced(self, medium: str) -> set[bytes]:
        copies: Counter[bytes] = Counter()
        for event in self.events:
            if isinstance(event, Stored) and event.medium == medium:
                copies.update(event.hashes)
            elif isinstance(event, Removed) and event.medium == medium:
                copies.subtract(event.hashes)
        assert min(copies.values(), default=0) >= 0
        return {block_hash for block_hash, count in copies.items() if count}


def sequential(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


PROMPTS = st.builds(
    lambda family, shared, own, tail: sequential(family * 100, shared) + sequential(1000 + own * 50, tail),
    st.integers(0, 2),
    st.integers(0, 16),
    st.integers(0, 5),
    st.integers(1, 16),
)


@settings(deadline=None)
@given(st.lists(st.tuples(PROMPTS, st.integers(1, 8), st.integers(0, 3), st.booleans()), max_size=25))
def test_what_is_announced_is_what_is_cached(work: list[tuple[list[int], int, int, bool]]) -> None:
    harness = Harness()
    sequences = []
    for prompt, limit, steps, aborted in work:
        sequences.append(harness.submit(prompt, limit))
        for _ in range(steps):
            harness.step()
        if aborted:
            harness.scheduler.abort(sequences[len(sequences) // 2])
    harness.drain()
    assert all(sequence.state in (State.FINISHED, State.ABORTED) for sequence in sequences)
    assert harness.scheduler.gpu.free == PROFILE.gpu_blocks
    assert harness.announced("GPU") == harness.scheduler.gpu.hashes()
    assert harness.announced("CPU") == harness.scheduler.cpu.hashes()


def test_a_long_prompt_is_cut_to_the_budget() -> None:
    harness = Harness()
    harness.submit(sequential(0, 36))
    assert [harness.scheduler.plan()[0].tokens] == [16]


def test_decodes_come_before_prefills() -> None:
    harness = Harness()
    first = harness.submit([1, 2, 3])
    harness.step()
    second = harness.submit(sequential(0, 20))
    assert harness.scheduler.plan() == [(first, 1), (second, 15)]


def test_no_more_than_max_running_are_admitted() -> None:
    harness = Harness()
    for i in range(6):
        harness.submit([i])
    harness.step()
    assert (len(harness.scheduler.running), len(harness.scheduler.waiting)) == (4, 2)


def test_the_last_prompt_token_is_always_computed() -> None:
    harness = Harness(msgspec.structs.replace(PROFILE, cpu_blocks=0))
    harness.submit(sequential(0, 8), 1)
    harness.drain()
    again = harness.submit(sequential(0, 8), 1)
    harness.drain()
    assert again.cached == (4, 0, 0)


def test_a_prompt_loaded_to_its_end_computes_one_token_and_answers() -> None:
    harness = Harness()
    first = harness.submit(sequential(0, 8))
    harness.drain()
    again = harness.submit(sequential(0, 8))
    while again.cached is None:
        harness.step()
    assert harness.plan == [(again, 1)]
    harness.drain()
    assert again.cached == (4, 4, 0)
    assert again.tokens == first.tokens


def test_the_answer_is_cached_but_for_its_last_token() -> None:
    harness = Harness()
    first = harness.submit(sequential(0, 8), 5)
    harness.drain()
    follow_up = harness.submit([*first.tokens, 99], 1)
    harness.drain()
    assert follow_up.cached == (12, 0, 0)


def test_out_of_blocks_the_youngest_is_put_back_and_still_answers() -> None:
    harness = Harness()
    older = harness.submit(sequential(0, 20), 12)
    younger = harness.submit(sequential(50, 20), 12)
    while not harness.scheduler.counts["preemptions"]:
        assert harness.step()
    assert older.state is State.RUNNING
    assert younger.state is State.WAITING
    harness.drain()
    assert younger.tokens[20:] == younger.answer.token_ids


def test_evicted_blocks_come_back_from_the_cpu_tier() -> None:
    harness = Harness(msgspec.structs.replace(PROFILE, cpu_blocks=100))
    harness.submit(sequential(0, 17), 1)
    harness.drain()
    harness.submit(sequential(50, 36), 1)
    harness.submit(sequential(150, 8), 1)
    harness.drain()
    again = harness.submit(sequential(0, 17), 1)
    harness.drain()
    assert again.cached == (4, 12, 0)
