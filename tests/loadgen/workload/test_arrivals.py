from functools import partial
from itertools import islice, pairwise
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload import Piece, Request
from loadgen.workload.arrivals import closed_loop, constant, due, faster, gamma, poisson, within


def request(number: int, after: int | None = None, at: float = 0.0, pause: float = 0.0) -> Request:
    prompt = (Piece(number, 10),)
    return Request(number=number, session="s", prompt=prompt, output_tokens=1, at=at, after=after, pause=pause)


def sessions(*turns: int) -> list[Request]:
    """Sessions of so many turns, one behind the other."""
    made: list[Request] = []
    for count in turns:
        for turn in range(count):
            made.append(request(len(made), len(made) - 1 if turn else None))
    return made


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise([0.0, *times])]


def test_constant_times_do_not_drift() -> None:
    times = list(islice(constant(3.0), 3_001))
    assert times[:4] == [0.0, 1 / 3, 2 / 3, 1.0]
    assert times[3_000] == 1_000.0


def test_poisson_gaps_are_as_spread_as_they_are_long() -> None:
    found = gaps(list(islice(poisson(5.0, Random(1)), 20_000)))
    assert fmean(found) == pytest.approx(0.2, rel=0.03)
    assert pstdev(found) == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize("cv", [0.2, 1.0, 3.0])
def test_gamma_gaps_have_the_mean_and_spread_asked_for(cv: float) -> None:
    found = gaps(list(islice(gamma(5.0, cv, Random(1)), 50_000)))
    assert fmean(found) == pytest.approx(0.2, rel=0.05)
    assert pstdev(found) / fmean(found) == pytest.approx(cv, rel=0.05)


def test_times_rise_and_are_those_of_their_seed() -> None:
    times = list(islice(gamma(5.0, 2.0, Random(1)), 1_000))
    assert times == sorted(times)
    assert times == list(islice(gamma(5.0, 2.0, Random(1)), 1_000))
    assert times != list(islice(gamma(5.0, 2.0, Random(2)), 1_000))


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused_at_once(rate: float) -> None:
    for make in (partial(constant, rate), partial(poisson, rate, Random(1)), partial(gamma, 1.0, rate, Random(1))):
        with pytest.raises(ValueError, match="must be above 0 and finite"):
            make()


def test_only_what_waits_for_nothing_and_has_no_time_gets_one() -> None:
    load = [request(0), request(1, after=0), request(2, at=9.0), request(3)]
    assert [made.at for made in due(load, iter([4.0, 5.0]))] == [4.0, 0.0, 9.0, 5.0]


def test_a_load_ends_where_its_times_do() -> None:
    assert [made.number for made in due(sessions(2, 2, 1), iter([1.0, 2.0]))] == [0, 1, 2, 3]


def test_a_session_waits_for_the_end_of_one_that_is_live() -> None:
    made = list(closed_loop(sessions(2, 1, 3, 1), 2))
    assert [(each.number, each.after) for each in made] == [
        (0, None), (1, 0), (2, None), (3, 1), (4, 3), (5, 4), (6, 2),
    ]  # fmt: skip


def test_a_closed_loop_has_no_times() -> None:
    assert [made.at for made in closed_loop([request(0, at=3.0), request(1, after=0, at=5.0)], 1)] == [0.0, 0.0]


@given(st.lists(st.integers(1, 4), max_size=20), st.integers(1, 5))
def test_never_more_sessions_than_allowed_are_live(turns: list[int], live: int) -> None:
    made = list(closed_loop(sessions(*turns), live))
    running: set[int] = set()
    waiting = list(made)
    while waiting or running:
        ready = [each for each in waiting if each.after is None or each.after < 0]
        running |= {each.number for each in ready}
        assert 0 < len(running) <= live
        waiting = [each for each in waiting if each not in ready]
        ended = running.pop()
        waiting = [request(each.number, -1) if each.after == ended else each for each in waiting]


@pytest.mark.parametrize("live", [0, -1])
def test_a_closed_loop_of_nothing_is_refused_at_once(live: int) -> None:
    with pytest.raises(ValueError, match="live must be at least 1"):
        closed_loop([], live)


def test_a_faster_load_has_shorter_pauses_too() -> None:
    (made,) = faster([request(0, at=6.0, pause=3.0)], 3.0)
    assert (made.at, made.pause, made.prompt) == (2.0, 1.0, request(0).prompt)
    with pytest.raises(ValueError, match="speed must be above 0"):
        faster([], 0.0)


def test_a_load_ends_with_its_duration() -> None:
    load = [request(0), request(1, at=9.9), request(2, at=10.0), request(3, at=11.0)]
    assert [made.number for made in within(load, 10.0)] == [0, 1]
    assert len(list(within(due(map(request, range(10**9)), constant(2.0)), 10.0))) == 20


def test_turns_that_are_due_too_late_are_left_out_with_all_that_waits_for_them() -> None:
    load = [request(0, at=1.0), request(1, 0, at=12.0), request(2, 1), request(3, 0), request(4, at=2.0)]
    assert [made.number for made in within(load, 10.0)] == [0, 3, 4]
    with pytest.raises(ValueError, match="duration_s must be above 0"):
        within([], -1.0)
