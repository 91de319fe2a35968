import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scorers import RandomPick, WeightedRandom

ALMOST_1 = math.nextafter(1.0, 0.0)


def test_random_takes_no_notice_of_totals() -> None:
    assert Counter(RandomPick().pick([5, 1, 0], step / 300) for step in range(300)) == {0: 100, 1: 100, 2: 100}


def test_weighted_random_draws_by_share() -> None:
    assert Counter(WeightedRandom().pick([3, 0, 1], step / 400) for step in range(400)) == {0: 300, 2: 100}


def test_weighted_random_is_even_where_all_totals_are_0() -> None:
    assert Counter(WeightedRandom().pick([0, 0], step / 100) for step in range(100)) == {0: 50, 1: 50}


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_the_last_coordinate_is_still_inside(totals: list[float]) -> None:
    assert 0 <= WeightedRandom().pick(totals, ALMOST_1) < len(totals)
