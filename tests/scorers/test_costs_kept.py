"""What of costs outlives a process."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Answer, Costs
from tests.scorers.costing import A, B, C, moved, prompt


def learned() -> Costs:
    costs = Costs()
    for number in range(30):
        costs.computed(A, prompt(5_000), 0.3, float(number))
        costs.computed(C, prompt(9_000, 4_000, 3), 0.4, float(number))
        costs.pulled(A, C, moved(9_000), 0.2, float(number))
        costs.pulled(C, A, moved(900, 0.1), 0.3, float(number))
        costs.answered(Answer(1.0, 3.0, 9_000.0), 4.0, float(number))
    return costs


def prices(costs: Costs) -> list[float]:
    """All coefficients."""
    usual = [*costs.usual_prefill(), *costs.usual_pull(), *costs.answer()]
    return usual + [each for rank in (A, B, C) for each in costs.prefill(rank)] + prices_of_pulls(costs)


def prices_of_pulls(costs: Costs) -> list[float]:
    return [each for pair in ((A, B), (A, C), (C, A)) for each in costs.pull(*pair)]


def test_what_was_kept_goes_through_json_and_costs_the_same() -> None:
    costs, other = learned(), Costs()
    other.restore(msgspec.json.decode(msgspec.json.encode(costs.state(30.0))))
    assert prices(other) == pytest.approx(prices(costs))
    assert [price[:3] for price in other.pairs(0.0)] == [price[:3] for price in costs.pairs(0.0)]
    assert not other.met(A, C)
    other.computed(A, prompt(5_000), 0.3, 0.0)
    other.pulled(A, C, moved(9_000), 0.2, 0.0)
    assert prices_of_pulls(other) == pytest.approx(prices_of_pulls(costs), rel=0.1)


def test_what_is_restored_displaces_what_was_known() -> None:
    costs = learned()
    costs.restore(Costs().state(0.0))
    assert prices(costs) == prices(Costs())
    assert list(costs.pairs(0.0)) == []


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something is in nested lists and objects."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(each, (*path, key))


KEPT = json.loads(msgspec.json.encode(learned().state(30.0)))
ANYTHING_ELSE: list[Any] = [
    None,
    "x",
    -1.0,
    float("nan"),
    float("inf"),
    {},
    {"a": 1},
    [],
    [[]],
    [1, 2, 3],
    True,
    10**400,
]


def test_what_is_kept_has_the_parts_that_are_broken_below() -> None:
    assert {path[0] for path in paths(KEPT)} == {"prefill", "pull", "answer", "ranks", "pairs"}
    assert max(map(len, paths(KEPT))) == 5


@given(path=st.sampled_from(list(paths(KEPT))), other=st.sampled_from(ANYTHING_ELSE))
def test_what_is_broken_is_refused_and_changes_nothing_or_is_as_good(path: tuple[Any, ...], other: Any) -> None:
    broken = deepcopy(KEPT)
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = other
    costs = learned()
    before = prices(costs)
    try:
        costs.restore(broken)
    except (ValueError, KeyError, TypeError):
        assert prices(costs) == before
        assert costs.met(A, C)
    assert all(0 <= each < float("inf") for each in prices(costs))


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ({}, KeyError),
        ([], TypeError),
        (None, TypeError),
        ({name: KEPT[name] for name in KEPT if name != "pairs"}, KeyError),
        (KEPT | {"prefill": [[1.0, 2.0, 3.0], 1.0]}, ValueError),
        (KEPT | {"pull": [[1.0, 2.0, -3.0, 4.0], 1.0]}, ValueError),
        (KEPT | {"answer": [[1.0, 2.0, 3.0]]}, TypeError),
        (KEPT | {"ranks": [[["http://a:8000", "0"], KEPT["prefill"]]]}, TypeError),
        (KEPT | {"ranks": [[[7, 0], KEPT["prefill"]]]}, TypeError),
        (KEPT | {"pairs": [[[["http://a:8000"], ["http://b:8000", 0]], KEPT["pull"]]]}, TypeError),
        (KEPT | {"pairs": [[[["http://a:8000", 0]], KEPT["pull"]]]}, ValueError),
        (KEPT | {"pairs": 7}, TypeError),
    ],
)
def test_what_is_no_such_thing_is_refused_by_one_of_three_errors(broken: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Costs().restore(broken)
