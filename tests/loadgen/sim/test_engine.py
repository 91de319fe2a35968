from collections.abc import Sequence as Run
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from loadgen.sim.engine import Engine
from loadgen.sim.sequence import Sequence
from tests.loadgen.sim.pods import ROOMY, TINY, Pods, Stepwise, nothing_in_use, sequential


class Job(NamedTuple):
    """One sequence of a load; `leaves` None: its client stays."""

    at: float
    prompt: list[int]
    output: int
    leaves: float | None = None


PROMPTS = st.builds(
    lambda family, shared, own, tail: sequential(family * 100, shared) + sequential(1000 + own * 50, tail),
    st.integers(0, 2),
    st.integers(0, 16),
    st.integers(0, 5),
    st.integers(1, 12),
)
MOMENTS = st.integers(0, 40_000).map(lambda microseconds: microseconds * 1e-5)
JOBS = st.builds(Job, MOMENTS, PROMPTS, st.integers(1, 12), st.none() | MOMENTS)


def run(pods: Pods, jobs: Run[Job]) -> None:
    for number, job in enumerate(jobs):
        # No two times are alike, nor where another one's steps end: at one moment either may be first.
        at = job.at + 1.234e-7 + number * 7e-9
        sequence = pods.sequence(job.prompt, job.output)
        pods.clock.at(at, lambda sequence=sequence: pods.engines[0].submit(sequence))  # type: ignore[misc]
        if job.leaves is not None:
            pods.clock.at(
                at + job.leaves + 3e-9,
                lambda sequence=sequence: pods.engines[0].abort(sequence),  # type: ignore[misc]
            )
    pods.clock.run()


@settings(max_examples=80)
@given(st.lists(JOBS, max_size=25))
def test_whatever_comes_ends_once_and_leaves_what_its_events_say(jobs: list[Job]) -> None:
    pods = Pods(TINY)
    run(pods, jobs)
    pods.all_over()
    for job, sequence in zip(jobs, pods.sequences, strict=True):
        assert job.leaves is not None or pods.told(sequence) == ["first", "ended"]


@settings(max_examples=60)
@given(st.lists(JOBS, max_size=15), st.booleans())
def test_many_steps_at_once_are_as_many_single_ones(jobs: list[Job], roomy: bool) -> None:
    # With little memory the moment counts at which it becomes short, which differs by what a phase sums up.
    profile = replace(ROOMY, decode_us_per_kilotoken_context=30_000.0, token_budget=16, cpu_blocks=8000 * roomy)
    at_once, one_by_one = Pods(profile), Pods(profile, engine=Stepwise)
    run(at_once, jobs)
    run(one_by_one, jobs)
    assert [each[:2] for each in at_once.happened] == [each[:2] for each in one_by_one.happened]
    for left, right in zip(at_once.happened, one_by_one.happened, strict=True):
        assert left.at == pytest.approx(right.at, abs=1e-6)


def test_many_steps_at_once_take_few_events() -> None:
    pods = Pods(ROOMY)
    calls = 0
    timer_at = pods.clock.at

    def counted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        return timer_at(*arguments)  # type: ignore[arg-type]

    pods.clock.at = counted  # type: ignore[assignment, method-assign]
    pods.submit([1, 2, 3], 3000)
    pods.clock.run()
    assert calls < 10


def test_a_lone_prompt_costs_the_same_however_it_is_cut() -> None:
    tokens, steps = 100, {}
    for budget in (7, 16, 100, 8192):
        profile = replace(ROOMY, token_budget=budget, prefill_ns_per_token_squared=9_000.0)
        steps[budget] = Pods(profile).answered(sequential(0, tokens)) * 1e3 - -(-tokens // budget) * 4.0
    alone = 2.0 + 0.1 * tokens + 9e-3 * tokens**2
    assert list(steps.values()) == [pytest.approx(alone)] * 4


def test_each_token_of_an_answer_takes_a_step_that_reads_the_context() -> None:
    pods = Pods(ROOMY)
    sequence = pods.submit(sequential(0, 1000), 5)
    pods.clock.run()
    steps = sum(4.0 + 0.2 + 0.3 * context / 1000 for context in (1000, 1001, 1002, 1003))
    assert (pods.time("ended", sequence) - pods.time("first", sequence)) * 1e3 == pytest.approx(steps)


def test_no_more_than_max_running_run() -> None:
    pods = Pods(replace(ROOMY, max_running=3))
    for number in range(8):
        pods.submit([number], 4 + number)
    most = 0
    while pods.clock._due:
        pods.clock.run(pods.clock._due[0][0])
        most = max(most, pods.engines[0].running)
    assert most == 3
    pods.all_over()


def test_who_comes_while_others_decode_waits_for_one_step_only() -> None:
    pods = Pods(replace(ROOMY, decode_us_per_kilotoken_context=0.0))
    pods.submit(sequential(0, 10), 1000)
    pods.clock.run(1.0)
    pods.submit(sequential(50, 10))
    pods.clock.run(1.1)
    # A step of 4.2 ms that is under way, and one with a prefill of 2 + 1 more.
    assert pods.time("first", pods.sequences[1]) - 1.0 < 0.0042 + 0.0072


def test_a_prompt_loaded_to_its_end_computes_one_token() -> None:
    pods = Pods(TINY)
    pods.answered(sequential(0, 8), 3)
    again = pods.submit(sequential(0, 8), 3)
    before = pods.engines[0].computed_tokens
    pods.clock.run()
    assert again.reused == (4, 4, 0)
    assert pods.engines[0].computed_tokens - before == 1


def test_the_answer_is_cached_but_for_its_last_token() -> None:
    pods = Pods(replace(TINY, cpu_blocks=0))
    pods.answered(sequential(0, 8), 8)
    answer = pods.sequences[0].tokens.tolist()
    follow_up = pods.submit([*answer, 7, 7, 7, 7])
    pods.clock.run()
    assert follow_up.reused == (12, 0, 0)


def test_out_of_blocks_the_youngest_is_put_back_and_still_answers() -> None:
    pods = Pods(TINY)
    older = pods.submit(sequential(0, 20), 12)
    younger = pods.submit(sequential(50, 20), 12)
    pods.clock.run()
    assert pods.engines[0].preemptions > 0
    assert pods.time("ended", older) < pods.time("ended", younger)
    assert pods.told(younger) == ["first", "ended"]
    pods.all_over()


def test_a_prompt_that_never_fits_is_refused_and_does_no_harm() -> None:
    pods = Pods(TINY)
    other = pods.submit(sequential(0, 8), 10)
    pods.clock.run(0.03)
    too_long = pods.sequence(sequential(100, 47), 2)
    with pytest.raises(ValueError, match="49 tokens are more"):
        pods.engines[0].submit(too_long)
    pods.engines[0].abort(too_long)
    pods.clock.run()
    assert pods.told(other) == ["first", "ended"]
    pods.all_over()


def waiting(pods: Pods) -> Sequence:
    pods.submit(sequential(500, 30), 9)
    return pods.submit(sequential(0, 36), 3)


def loading(pods: Pods) -> Sequence:
    pods.answered(sequential(0, 8), 3)
    return pods.submit(sequential(0, 8), 3)


def loaded(pods: Pods) -> Sequence:
    pods.answered(sequential(0, 8), 3)
    pods.submit(sequential(500, 20), 3)
    sequence = pods.submit(sequential(0, 8), 3)
    while sequence not in pods.engines[0]._loaded:
        pods.clock.run(pods.clock._due[0][0])
    return sequence


def prefilling(pods: Pods) -> Sequence:
    return pods.submit(sequential(0, 36), 3)


def decoding(pods: Pods) -> Sequence:
    pods.submit(sequential(500, 8), 20)
    sequence = pods.submit(sequential(0, 8), 20)
    pods.clock.run(pods.clock.now + 0.05)
    assert pods.told(sequence) == ["first"]
    return sequence


@pytest.mark.parametrize("brought", [waiting, loading, loaded, prefilling, decoding])
@pytest.mark.parametrize("end", ["abort", "stop"])
def test_who_leaves_gives_back_all_it_held_and_hears_no_more(brought: object, end: str) -> None:
    pods = Pods(TINY)
    assert callable(brought)
    sequence = brought(pods)
    told = pods.told(sequence)
    if end == "abort":
        pods.engines[0].abort(sequence)
        pods.engines[0].abort(sequence)
        pods.clock.run()
        pods.all_over()
    else:
        assert sequence in pods.engines[0].stop()
        before = list(pods.happened)
        pods.clock.run()
        assert pods.happened == before
        assert all(each.over for each in pods.sequences)
    assert pods.told(sequence) == told


def test_room_that_an_aborted_load_gives_back_goes_to_who_waits() -> None:
    pods = Pods(TINY)
    pods.answered(sequential(0, 36))
    load = pods.submit(sequential(0, 36))
    assert load in pods.engines[0]._loading
    waits = pods.submit(sequential(500, 33))
    assert waits in pods.engines[0]._waiting
    pods.engines[0].abort(load)
    pods.clock.run()
    assert pods.told(waits) == ["first", "ended"]


def test_who_leaves_does_not_hurry_the_others() -> None:
    def ended(leaves: bool) -> float:
        pods = Pods(replace(ROOMY, decode_ms=100.0))
        stays = pods.submit([1], 50)
        goes = pods.submit([2], 1000)
        pods.clock.run(3.0)
        if leaves:
            pods.engines[0].abort(goes)
        pods.clock.run()
        return pods.time("ended", stays)

    # 14 steps of two take 3 s; 50 of one would take 5.
    steps_of_two, steps_of_one = 0.2043, 0.1041
    assert ended(leaves=False) == pytest.approx(49 * steps_of_two, rel=0.02)
    assert ended(leaves=True) == pytest.approx(15 * steps_of_two + 34 * steps_of_one, rel=0.02)


def test_the_last_one_may_leave_where_a_step_alone_takes_no_time() -> None:
    pods = Pods(replace(ROOMY, step_fixed_ms=0.0))
    sequence = pods.submit([1], 50)
    pods.clock.run(0.005)
    pods.engines[0].abort(sequence)
    pods.clock.run()
    pods.all_over()


def test_a_pod_that_has_stopped_does_not_come_back_to_life() -> None:
    pods = Pods(ROOMY)
    pods.submit([1], 100)
    on_its_way = pods.sequence([2], 100)
    pods.clock.run(0.1)
    pods.engines[0].stop()
    pods.engines[0].abort(on_its_way)
    pods.clock.run()
    assert [each.what for each in pods.happened] == ["first"]


class Eager(Pods):
    """Each answer's end makes another one come, and another one leave."""

    def sequence(self, prompt: Run[int], output: int = 1, source: int | None = None) -> Sequence:
        sequence = super().sequence(prompt, output, source)
        ended = sequence.ended

        def more() -> None:
            ended()
            if len(self.sequences) < 40:
                self.submit(sequential(len(self.sequences) * 7, 9), len(self.sequences) % 5 + 1)
                self.engines[0].abort(self.sequences[len(self.sequences) // 2])

        sequence.ended = more
        return sequence


@pytest.mark.parametrize("engine", [Engine, Stepwise])
def test_answers_that_end_may_have_others_come_and_leave(engine: type[Engine]) -> None:
    pods = Eager(TINY, engine=engine)
    for number in range(3):
        pods.submit(sequential(number * 100, 10), 6)
    pods.clock.run()
    assert len(pods.sequences) == 40
    pods.all_over()
    nothing_in_use(pods.engines[0].memory)
