import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorers import MaxScore, Softmax


def shares(*totals: float, temperature: float = 0.02, steps: int = 10_000) -> list[float]:
    """How often each is picked, over coordinates that are spread evenly."""
    picker = Softmax(temperature=temperature)
    picks = Counter(picker.pick(totals, step / steps) for step in range(steps))
    return [picks[index] / steps for index in range(len(totals))]


def test_a_total_that_is_a_temperature_lower_is_e_times_less_likely() -> None:
    assert shares(1.0, 0.98) == pytest.approx([math.e / (math.e + 1), 1 / (math.e + 1)], abs=2e-4)


def test_equal_totals_are_equally_likely() -> None:
    assert shares(2.0, 2.0, 2.0, 2.0) == [0.25, 0.25, 0.25, 0.25]


def test_a_total_that_is_far_lower_is_hardly_ever_picked() -> None:
    assert shares(3.0, 2.0) == [1, 0]


def test_a_high_temperature_is_nearly_a_draw_from_all() -> None:
    assert shares(3.0, 2.0, temperature=1000.0) == pytest.approx([0.5, 0.5], abs=1e-3)


def test_totals_count_by_their_differences() -> None:
    assert shares(0.0, -0.01, 0.01) == shares(700.0, 699.99, 700.01)


totals = st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=8)


@given(
    totals=totals,
    coordinate=st.floats(0, 1, exclude_max=True),
    temperature=st.floats(5e-324, 1e300),
)
def test_no_totals_and_no_temperature_overflow(totals: list[float], coordinate: float, temperature: float) -> None:
    assert 0 <= Softmax(temperature=temperature).pick(totals, coordinate) < len(totals)


@settings(max_examples=25)
@given(totals=st.lists(st.integers(0, 5).map(lambda n: n / 50), min_size=1, max_size=5), data=st.data())
def test_the_order_of_totals_changes_no_probability(totals: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(totals))))
    straight = shares(*totals, steps=500)
    shuffled = shares(*(totals[index] for index in order), steps=500)
    assert shuffled == pytest.approx([straight[index] for index in order], abs=2 / 500)


@given(totals=st.lists(st.integers(0, 100).map(float), min_size=1, max_size=8, unique=True))
def test_at_a_low_temperature_it_is_the_best(totals: list[float]) -> None:
    assert Softmax(temperature=1e-3).pick(totals, 0.5) == MaxScore().pick(totals, 0.5)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_that_is_none_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be finite and > 0"):
        Softmax(temperature=temperature)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "softmax", "temperature": temperature}, type=Softmax)
