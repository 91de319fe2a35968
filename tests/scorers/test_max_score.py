import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scorers import MaxScore

totals = st.lists(st.floats(0, 100), min_size=1, max_size=8)
coordinates = st.floats(0, 1, exclude_max=True)
ALMOST_1 = math.nextafter(1.0, 0.0)


@given(totals, coordinates)
def test_what_is_picked_has_the_highest_total(totals: list[float], coordinate: float) -> None:
    assert totals[MaxScore().pick(totals, coordinate)] >= max(totals) - 1e-9


@given(coordinates)
def test_a_single_best_is_picked_whatever_the_coordinate(coordinate: float) -> None:
    assert MaxScore().pick([1, 3, 2], coordinate) == 1


def test_ties_are_shared_evenly() -> None:
    picks = Counter(MaxScore().pick([5, 1, 5, 5], step / 300) for step in range(300))
    assert picks == {0: 100, 2: 100, 3: 100}


def test_totals_that_differ_by_rounding_are_ties() -> None:
    assert {MaxScore().pick([0.1 + 0.2, 0.3], coordinate) for coordinate in (0, 0.9)} == {0, 1}


def test_a_small_lead_is_no_tie() -> None:
    assert {MaxScore().pick([5.0, 5.0001], coordinate) for coordinate in (0, 0.9)} == {1}


@given(st.integers(1, 10_000))
def test_the_last_coordinate_picks_the_last_tie(ties: int) -> None:
    assert MaxScore().pick([1.0] * ties, ALMOST_1) == ties - 1
