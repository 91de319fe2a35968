"""When pods have enough to do."""

from typing import Any

import pytest

from config.schema import Admission
from gateway.admission.saturation import KV_OF_A_REQUEST, Occupied, SincePoll, saturated

IDLE = Occupied(requests=0, tokens=0, unseen=0, waiting=0, kv_usage=0.0)
BUSY = Occupied(requests=8, tokens=9000, unseen=0, waiting=4, kv_usage=0.9)


def bounds(**fields: Any) -> Admission:
    return Admission(enabled=True, **fields)


@pytest.mark.parametrize(
    ("bound", "at", "below"),
    [
        ({"max_in_flight": 8}, {"requests": 8}, {"requests": 7}),
        ({"max_in_flight_tokens": 9000}, {"tokens": 9000}, {"tokens": 8999}),
        ({"max_waiting": 4}, {"waiting": 4}, {"waiting": 3}),
        ({"max_waiting": 4}, {"waiting": 3, "unseen": 1}, {"waiting": 2, "unseen": 1}),
        ({"max_kv_usage": 0.9}, {"kv_usage": 0.9}, {"kv_usage": 0.89}),
        ({"max_kv_usage": 0.9}, {"kv_usage": 0.9 - KV_OF_A_REQUEST, "unseen": 2}, {"kv_usage": 0.87, "unseen": 2}),
    ],
)
def test_a_rank_is_full_at_its_bound(bound: Any, at: Any, below: Any) -> None:
    assert saturated([IDLE._replace(**at)], bounds(**bound))
    assert not saturated([IDLE._replace(**below)], bounds(**bound))


@pytest.mark.parametrize("bound", [{"max_waiting": 1}, {"max_kv_usage": 0.1}])
def test_what_is_not_known_does_not_saturate(bound: Any) -> None:
    unknown = Occupied(requests=100, tokens=10**6, unseen=100, waiting=None, kv_usage=None)
    assert not saturated([unknown], bounds(**bound))


def test_any_bound_is_enough_and_one_rank_below_all_of_them_takes_more() -> None:
    both = bounds(max_in_flight=100, max_waiting=4)
    assert saturated([BUSY, BUSY], both)
    assert not saturated([BUSY, IDLE, BUSY], both)
    assert not saturated([BUSY], bounds(max_in_flight=9, max_kv_usage=0.91))


def test_a_look_ends_at_the_first_rank_that_takes_more() -> None:
    ranks = iter([BUSY, IDLE, BUSY])
    assert not saturated(ranks, bounds(max_in_flight=8))
    assert list(ranks) == [BUSY]


def test_requests_since_a_poll_are_those_without_a_first_byte_and_each_step_is_told() -> None:
    told: list[int] = []
    span = SincePoll(lambda: told.append(span.unanswered))
    span.sent()
    span.sent()
    assert (span.unanswered, told) == (2, [])
    span.answered()
    span.ended()
    assert (span.unanswered, told) == (1, [1, 1])
