"""How long it takes until those who wait have gone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.pace import LONGEST_S, MEMORY_S, SHORTEST_S, Pace

LONG = 10_000.0


def steady(pace: Pace, every: float, seconds: float, start: float = 0.0) -> float:
    """One goes `every` so many seconds; the time at the end."""
    pace.begins(start)
    steps = round(seconds / every)
    for step in range(1, steps + 1):
        pace.went(start + step * every)
    return start + steps * every


@pytest.mark.parametrize("every", [0.01, 0.1, 1.0])
def test_under_steady_load_it_is_the_number_ahead_by_the_pace(every: float) -> None:
    pace = Pace()
    now = steady(pace, every, 30)
    assert pace.estimate(round(20 / every), LONG, now) == pytest.approx(20, abs=1)


def test_a_young_queue_is_not_taken_for_a_slow_one() -> None:
    pace = Pace()
    now = steady(pace, 0.1, 1)
    assert pace.estimate(100, LONG, now) == 10


def test_while_nothing_has_gone_it_is_the_timeout() -> None:
    pace = Pace()
    pace.begins(5.0)
    assert pace.estimate(1, 30.0, 5.0) == 30
    assert pace.estimate(1, 30.0, 15.0) == 30


def test_when_nothing_goes_any_more_it_grows() -> None:
    pace = Pace()
    now = steady(pace, 0.1, 30)
    told = [pace.estimate(10, LONG, now + later) for later in (0, 5, 10, 20, 40, 80)]
    assert told == sorted(told)
    assert (told[0], told[-1]) == (1, LONGEST_S)


def test_time_in_which_nobody_waits_does_not_count() -> None:
    pace = Pace()
    now = steady(pace, 0.1, 30) + 3600
    pace.begins(now)
    assert pace.estimate(100, LONG, now) == 10


def test_the_pace_of_long_ago_is_forgotten() -> None:
    pace = Pace()
    now = steady(pace, 0.1, 30)
    now = steady(pace, 1.0, 5 * MEMORY_S, now)
    assert pace.estimate(30, LONG, now) == pytest.approx(30, abs=3)


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 100)), max_size=50),
    st.integers(1, 5000),
    st.floats(0.001, 86_400),
)
def test_it_is_whole_seconds_within_bounds_and_never_beyond_the_timeout(
    steps: list[tuple[bool, float]], ahead: int, timeout: float
) -> None:
    pace, now = Pace(), 0.0
    for begins, later in steps:
        now += later
        if begins:
            pace.begins(now)
        else:
            pace.went(now)
    told = pace.estimate(ahead, timeout, now)
    assert isinstance(told, int)
    assert SHORTEST_S <= told <= min(LONGEST_S, max(SHORTEST_S, timeout + 1))
