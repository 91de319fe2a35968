"""How many retries the traffic bears."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.retries import FLOOR, MEMORY_S, RetryBudget

FREE = int(FLOOR)


def taken(budget: RetryBudget, now: float = 0.0, most: int = 10_000) -> int:
    """How many retries are granted at once."""
    return next(n for n in range(most) if not budget.take(now))


def test_a_quiet_gateway_has_a_few_retries() -> None:
    assert taken(RetryBudget(0.2)) == FREE
    assert taken(RetryBudget(0.0)) == FREE


def test_requests_under_way_bear_retries_by_the_share() -> None:
    budget = RetryBudget(0.2)
    for _ in range(100):
        budget.began()
    assert taken(budget) == FREE + 20


def test_requests_that_ended_lately_bear_them_too() -> None:
    budget = RetryBudget(0.2)
    for _ in range(100):
        budget.began()
        budget.ended(0.0)
    assert taken(budget, 0.0) == FREE + 20


def test_what_is_long_past_bears_none() -> None:
    budget = RetryBudget(1.0)
    for _ in range(100):
        budget.began()
        budget.ended(0.0)
    assert taken(budget, 10 * MEMORY_S) == FREE


def test_a_request_bears_its_retries_for_as_long_as_it_is_under_way() -> None:
    budget = RetryBudget(0.5)
    for _ in range(100):
        budget.began()
    assert taken(budget, 10 * MEMORY_S) == FREE + 50


def test_retries_are_forgotten_with_time() -> None:
    budget = RetryBudget(0.0)
    assert taken(budget, 0.0) == FREE
    assert not budget.take(0.1)
    assert budget.take(MEMORY_S / 5)
    assert taken(budget, 100 * MEMORY_S) == FREE


def test_another_share_counts_from_then_on() -> None:
    budget = RetryBudget(0.0)
    for _ in range(100):
        budget.began()
    assert taken(budget) == FREE
    budget.reconfigure(0.2)
    assert taken(budget) == 20


@given(st.floats(0, 1), st.lists(st.tuples(st.sampled_from("ber"), st.floats(0, 5)), max_size=200))
def test_retries_at_one_moment_never_exceed_the_share_of_all_requests_and_the_floor(
    share: float, steps: list[tuple[str, float]]
) -> None:
    budget = RetryBudget(share)
    now, requests, under_way = 0.0, 0, 0
    for step, later in steps:
        now += later
        if step == "b":
            budget.began()
            requests, under_way = requests + 1, under_way + 1
        elif step == "e" and under_way:
            budget.ended(now)
            under_way -= 1
        else:
            budget.take(now)
    assert taken(budget, now) <= FLOOR + share * requests + 1e-6


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_under_steady_failure_retries_stay_near_the_share(share: float) -> None:
    budget = RetryBudget(share)
    granted = 0
    for second in range(1000):
        for _ in range(50):
            budget.began()
            granted += budget.take(float(second))
            budget.ended(float(second))
    assert granted / 50_000 == pytest.approx(share + FLOOR / MEMORY_S / 50, rel=0.1)
