import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.trust import DISTRUST, Trust


def after(comparisons: int, reported: int, *, start: float = 0.0, trust: Trust | None = None) -> Trust:
    """A trust after so many answers, one a second, that reused `reported` of 100 predicted tokens."""
    trust = trust or Trust()
    for number in range(comparisons):
        trust.compared(100, reported, start + number)
    return trust


def test_without_any_comparison_claims_count_in_full() -> None:
    assert Trust().accuracy is None
    assert Trust().credit(1e6) == 1.0


def test_claims_that_come_true_keep_counting_in_full() -> None:
    assert after(100, 100).credit(100.0) == 1.0


def test_claims_that_fail_lose_credit_in_proportion() -> None:
    trust = after(50, 20)
    assert trust.accuracy == pytest.approx(0.2)
    assert 0.2 < trust.credit(49.0) < 0.3
    assert trust.credit(49.0) < DISTRUST


def test_one_failure_alone_costs_little() -> None:
    assert after(1, 0).credit(0.0) > DISTRUST
    assert after(1, 0, start=100.0, trust=after(100, 100)).credit(100.0) > 0.97


def test_accuracy_recovers_with_claims_that_come_true_again() -> None:
    trust = after(50, 0)
    assert after(150, 100, start=50.0, trust=trust).credit(200.0) > 0.9


def test_a_pod_nobody_chooses_is_believed_again_with_time() -> None:
    trust = after(50, 0)
    believed = [trust.credit(50.0 + minute * 60) for minute in range(8)]
    assert believed == sorted(believed)
    assert believed[0] < 0.2
    assert believed[-1] > 0.9


def test_a_prediction_of_nothing_says_nothing() -> None:
    trust = Trust()
    trust.compared(0, 50, 0.0)
    assert trust.accuracy is None


def test_more_than_predicted_is_no_fault() -> None:
    assert after(10, 500).accuracy == 1.0


def test_untested_claims_decay_with_the_time_that_is_missing_and_not_with_the_time_since() -> None:
    trust = Trust()
    trust.lost(100.0, 6.0)
    assert trust.credit(100.0) == trust.credit(1e6) == pytest.approx(2**-0.1)
    trust.lost(200.0, 54.0)
    assert trust.credit(200.0) == trust.credit(1e6) == pytest.approx(0.5)
    trust.restored()
    assert trust.credit(200.0) == 1.0
    trust.lost(300.0, 6.0)
    assert trust.credit(300.0) == pytest.approx(2**-0.1)


def test_where_nobody_knows_how_much_is_missing_they_decay_with_the_time_since() -> None:
    trust = Trust()
    trust.lost(100.0, None)
    assert trust.credit(100.0) == 1.0
    assert trust.credit(160.0) == pytest.approx(0.5)
    trust.lost(160.0, None)  # again: the first loss counts
    assert trust.credit(220.0) == pytest.approx(0.25)
    trust.lost(220.0, 60.0)
    assert trust.credit(220.0) == pytest.approx(0.125)
    trust.restored()
    assert trust.credit(220.0) == 1.0


def test_after_a_loss_measured_accuracy_takes_the_place_of_decay() -> None:
    trust = after(50, 10)
    trust.lost(50.0, None)
    assert trust.accuracy is None
    assert after(50, 95, start=50.0, trust=trust).credit(100.0) > 0.9
    assert trust.credit(100.0) < 1.0


@given(
    st.lists(st.tuples(st.integers(-5, 1000), st.integers(-5, 1000), st.floats(0, 1e6)), max_size=30),
    st.lists(st.tuples(st.floats(0, 1e6), st.none() | st.floats(0, 1e6)), max_size=3),
    st.floats(0, 1e7),
)
def test_credit_is_a_fraction_whatever_happens(
    history: list[tuple[int, int, float]], losses: list[tuple[float, float | None]], now: float
) -> None:
    trust = Trust()
    for at, seconds in losses:
        trust.lost(at, seconds)
    for predicted, reported, at in history:
        trust.compared(predicted, reported, at)
    assert 0.0 <= trust.credit(now) <= 1.0
    assert trust.accuracy is None or 0.0 <= trust.accuracy <= 1.0
