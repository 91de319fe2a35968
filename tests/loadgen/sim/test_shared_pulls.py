"""Sequences of one modelled pod that want the same blocks of a peer at once: the blocks move once."""

from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from loadgen.sim.sequence import Sequence
from tests.loadgen.sim.pods import TINY, Pods, sequential
from tests.loadgen.sim.test_pulls import CONTROL_S, PROMPT, PULLS, TOKEN_S, about, met

LINK_S = 0.1  # what PROMPT takes on a link of its own


def asked(pods: Pods, *prompts: list[int], source: int | None = 0) -> list[Sequence]:
    """Have the last pod asked for these, all at once."""
    return [pods.submit(prompt, pod=max(pods.engines), source=source) for prompt in prompts]


def tail(number: int, tokens: int = 4) -> list[int]:
    return sequential(10_000 + 100 * number, tokens)


def moved(pods: Pods) -> int:
    """Tokens that the last pod has pulled, without those with which it met its peers."""
    return pods.loaders[max(pods.engines)].pulled_tokens - 8 * (len(pods.loaders) - 1)


def took(pods: Pods, began: float, *sequences: Sequence) -> list[float]:
    return [pods.time("first", sequence) - began for sequence in sequences]


def reused(*sequences: Sequence) -> list[int]:
    return [sum(sequence.reused or ()) for sequence in sequences]


def both_met() -> Pods:
    """Pods of which 0 and 1 hold PROMPT, and 2 has pulled from both."""
    pods = met(3)
    pods.answered(sequential(950, 8), pod=1)
    pods.answered(sequential(950, 8), pod=2, source=1)
    pods.answered(PROMPT, pod=1)
    return pods


def after(pods: Pods, seconds: float) -> None:
    pods.clock.run(pods.clock.now + seconds)


def test_what_several_want_at_once_moves_once_and_all_reuse_it() -> None:
    pods = met()
    began = pods.clock.now
    sequences = asked(pods, *(PROMPT + tail(number) for number in range(4)))
    pods.clock.run()
    assert reused(*sequences) == [100] * 4
    assert moved(pods) == 100
    # They go on in one step, which computes the tails of all four.
    assert took(pods, began, *sequences) == [about(CONTROL_S + LINK_S + 16 * TOKEN_S)] * 4
    # Four were asked for, and what three of them waited for was not their pull.
    assert (pods.loaders[1].pulls, pods.loaders[1].empty_pulls) == (2, 0)
    pods.all_over()


@pytest.mark.parametrize("source", [None, 0, 1, 7])
def test_who_comes_while_it_moves_waits_for_the_rest_of_it_whatever_source_it_names(source: int | None) -> None:
    pods = both_met()
    began = pods.clock.now
    (first,) = asked(pods, PROMPT + tail(1))
    after(pods, 0.06)
    (later,) = asked(pods, PROMPT + tail(2), source=source)
    pods.clock.run()
    assert took(pods, began, first, later) == [about(CONTROL_S + LINK_S + 8 * TOKEN_S)] * 2
    assert reused(first, later) == [100, 100]
    assert moved(pods) == 100
    pods.all_over()


def test_who_names_two_sources_asks_both_and_one_moves_it() -> None:
    pods = both_met()
    sequences = [*asked(pods, PROMPT + tail(1), source=0), *asked(pods, PROMPT + tail(2), source=1)]
    pods.clock.run()
    assert reused(*sequences) == [100, 100]
    assert moved(pods) == 100
    pods.all_over()


def test_a_prompt_that_ends_where_the_pull_does_is_reused_to_its_end() -> None:
    pods = met()
    sequences = asked(pods, PROMPT, PROMPT, PROMPT)
    pods.clock.run()
    assert [sequence.reused for sequence in sequences] == [(0, 0, 100), (96, 4, 0), (96, 4, 0)]
    assert moved(pods) == 100
    pods.all_over()


def test_who_wants_more_than_is_coming_pulls_only_the_rest() -> None:
    pods = met()
    began = pods.clock.now
    half, whole = asked(pods, PROMPT[:40] + tail(1), PROMPT + tail(2))
    pods.clock.run()
    assert reused(half, whole) == [40, 100]
    assert moved(pods) == 100
    assert took(pods, began, half) == [about(CONTROL_S + 0.04 + 4 * TOKEN_S)]
    assert took(pods, began, whole) == [about(2 * CONTROL_S + LINK_S + 4 * TOKEN_S)]
    pods.all_over()


def test_who_wants_less_than_is_coming_waits_for_all_of_it() -> None:
    pods = met()
    began = pods.clock.now
    (whole,) = asked(pods, PROMPT)
    after(pods, 0.01)
    (less,) = asked(pods, PROMPT[:40] + tail(2))
    pods.clock.run()
    assert reused(whole, less) == [100, 40]
    assert moved(pods) == 100
    assert took(pods, began, less) == [about(CONTROL_S + LINK_S + 5 * TOKEN_S)]


def test_who_lacks_what_is_before_blocks_that_are_coming_moves_none_of_these() -> None:
    small = replace(PULLS, gpu_blocks=60, cpu_blocks=80, max_model_len=200, pull_setup_ms=0.0)
    pods = Pods(replace(small, pull_us_per_token=100_000.0), 2)
    pods.answered(PROMPT)
    pods.answered(PROMPT[:40], pod=1)
    for number in range(2):
        pods.answered(sequential(5_000 + 200 * number, 120), pod=1)  # now the CPU tier alone has the first 40
    (first,) = asked(pods, PROMPT + tail(1))
    for number in range(3):
        pods.submit(sequential(6_000 + 200 * number, 120), pod=1)  # and now nobody but the one that restores them
    after(pods, 5.0)
    assert pods.engines[1].waiting == 1
    assert pods.engines[1].memory.cpu.held(pods.keys(PROMPT), 0, 10) == 0
    (second,) = asked(pods, PROMPT + tail(2))
    pods.clock.run()
    assert (first.reused, second.reused) == ((0, 40, 60), (100, 0, 0))
    assert pods.loaders[1].pulled_tokens == 60
    pods.all_over()


def test_different_prefixes_do_not_wait_for_each_other() -> None:
    pods = met()
    other = sequential(5_000, 20)
    pods.answered(other)
    began = pods.clock.now
    long, short = asked(pods, PROMPT + tail(1), other + tail(2))
    pods.clock.run()
    assert reused(long, short) == [100, 20]
    assert moved(pods) == 120
    assert took(pods, began, short) == [about(CONTROL_S + 2 * 0.02 + 4 * TOKEN_S)]  # at half the rate of the link


@pytest.mark.parametrize("source", [None, 1])
def test_where_a_source_is_lost_the_others_look_again_with_the_first_one(source: int | None) -> None:
    pods = both_met()
    began = pods.clock.now
    (first,) = asked(pods, PROMPT + tail(1))
    after(pods, 0.01)
    (later,) = asked(pods, PROMPT + tail(2), source=source)
    after(pods, 0.09)
    pods.lose(0)
    pods.clock.run()
    assert first.reused == (0, 0, 0)
    # The first one computes; the other one finds what that one is computing, and so does not pull it.
    assert later.reused == (100, 0, 0)
    known = CONTROL_S + LINK_S
    assert took(pods, began, first) == [about(known + (104 if source else 108) * TOKEN_S)]
    assert took(pods, began, later) == [about(known + 108 * TOKEN_S)]
    assert (moved(pods), pods.loaders[2].empty_pulls) == (0, 1)
    pods.all_over()


def test_where_a_source_is_lost_the_others_pull_what_is_not_computed_yet() -> None:
    pods = both_met()
    (first,) = asked(pods, PROMPT[:8] + tail(1))
    (longer,) = asked(pods, PROMPT + tail(2), source=1)
    after(pods, CONTROL_S + 0.001)
    pods.lose(0)
    pods.clock.run()
    assert (first.reused, longer.reused) == ((0, 0, 0), (8, 0, 92))
    assert moved(pods) == 92
    pods.all_over()


@pytest.mark.parametrize("source", [None, 0])
def test_where_the_client_of_a_pull_leaves_the_others_look_again_at_once(source: int | None) -> None:
    pods = met()
    (first,) = asked(pods, PROMPT + tail(1))
    after(pods, 0.01)
    (later,) = asked(pods, PROMPT + tail(2), source=source)
    after(pods, 0.09)
    left = pods.clock.now
    pods.engines[1].abort(first)
    pods.clock.run()
    # The bytes that are under way go on, and are through when those of the second pull begin.
    alone_s = 104 * TOKEN_S if source is None else CONTROL_S + LINK_S + 4 * TOKEN_S
    assert took(pods, left, later) == [about(alone_s)]
    assert reused(later) == [0 if source is None else 100]
    pods.all_over()


def test_who_waits_may_leave_gives_back_what_it_held_and_the_pull_goes_on() -> None:
    pods = met()
    began = pods.clock.now
    first, later = asked(pods, PROMPT + tail(1), PROMPT + tail(2))
    after(pods, 0.07)
    held = pods.engines[1].memory.gpu.used
    pods.engines[1].abort(later)
    assert pods.engines[1].memory.gpu.used == held - 26
    assert pods.engines[1].waiting == 1
    pods.clock.run()
    assert took(pods, began, first) == [about(CONTROL_S + LINK_S + 4 * TOKEN_S)]
    assert pods.told(later) == []
    pods.all_over()


def test_all_that_wait_go_with_their_pod() -> None:
    pods = met()
    sequences = asked(pods, PROMPT + tail(1), PROMPT + tail(2))
    after(pods, 0.07)
    pods.lose(1)
    pods.clock.run()
    assert [pods.told(sequence) for sequence in sequences] == [[], []]
    pods.all_over()


def test_what_another_one_has_computed_meanwhile_does_not_move() -> None:
    pods = met()
    pods.submit([1, 2, 3, 4], 100)
    after(pods, 1.5)  # steps of 1 s, at the end of which the source answers
    asks, computes = *asked(pods, PROMPT + tail(1)), *asked(pods, PROMPT[:40] + tail(2), source=None)
    pods.clock.run()
    assert reused(asks, computes) == [100, 0]
    assert moved(pods) == 60
    pods.all_over()


def test_a_pull_that_has_become_needless_is_none() -> None:
    pods = met()
    pods.submit([1, 2, 3, 4], 100)
    after(pods, 1.5)
    asks, computes = *asked(pods, PROMPT + tail(1)), *asked(pods, PROMPT + tail(2), source=None)
    pods.clock.run()
    assert reused(asks, computes) == [100, 0]
    assert (pods.loaders[1].pulls, pods.loaders[1].empty_pulls, moved(pods)) == (1, 0, 0)
    pods.all_over()


class Job(NamedTuple):
    at: float
    shared: int
    tail: int
    output: int
    source: int | None
    leaves: float | None


def submit(pods: Pods, sequence: Sequence) -> None:
    """To pod 1, if it is there still."""
    if 1 in pods.engines:
        pods.engines[1].submit(sequence)
    else:
        sequence.over = True


MOMENTS = st.integers(0, 4_000).map(lambda each: each * 1e-4)
JOBS = st.builds(
    Job,
    MOMENTS,
    st.integers(0, 28),
    st.integers(1, 8),
    st.integers(1, 4),
    st.sampled_from([None, 0, 2]),
    st.none() | MOMENTS,
)


@settings(max_examples=60)
@given(st.lists(JOBS, max_size=14), st.none() | MOMENTS, st.booleans())
def test_whatever_comes_nobody_waits_for_ever(jobs: list[Job], lost: float | None, by_itself: bool) -> None:
    pods = Pods(replace(TINY, pull_setup_ms=0.0, pull_us_per_token=2_000.0), 3)
    shared = sequential(0, 28)
    for number in (0, 2):
        pods.answered(shared, pod=number)
    began = pods.clock.now
    consumer = pods.engines[1]
    for number, job in enumerate(jobs):
        sequence = pods.sequence(shared[: job.shared] + tail(number, job.tail), job.output, job.source)
        pods.clock.at(began + job.at, partial(submit, pods, sequence))
        if job.leaves is not None:
            pods.clock.at(began + job.at + job.leaves, partial(consumer.abort, sequence))
    if lost is not None:
        pods.clock.at(began + lost, lambda: pods.lose(1 if by_itself else 0))
    loader = pods.loaders[1]
    pods.clock.run()
    pods.all_over()
    assert not loader._coming
    if lost is None or not by_itself:
        for job, sequence in zip(jobs, pods.sequences[2:], strict=True):
            assert job.leaves is not None or pods.told(sequence) == ["first", "ended"]
