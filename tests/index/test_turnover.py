"""How much of what comes takes the place of something else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index import Turnover


def test_it_is_0_while_caches_fill_and_1_once_each_block_costs_one() -> None:
    turnover = Turnover()
    assert turnover.share == 0.0
    turnover.applied(1000, 0, 1.0)
    assert turnover.share == 0.0
    for second in range(600):
        turnover.applied(100, 100, 2.0 + second)
    assert turnover.share == pytest.approx(1.0, abs=0.01)


def test_a_few_blocks_say_nothing() -> None:
    turnover = Turnover()
    turnover.applied(10, 10, 1.0)
    assert turnover.share == 0.0


def test_what_was_long_ago_counts_for_little() -> None:
    turnover = Turnover()
    turnover.applied(1000, 1000, 0.0)
    turnover.applied(1000, 0, 600.0)
    assert 0 < turnover.share < 0.01


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.floats(0, 100))))
def test_it_is_a_share(steps: list[tuple[int, int, float]]) -> None:
    turnover, now = Turnover(), 0.0
    for stored, removed, seconds in steps:
        now += seconds
        turnover.applied(stored, removed, now)
        assert 0.0 <= turnover.share <= 1.0
