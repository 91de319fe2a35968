from typing import get_args

import pytest

from scorers import AdapterState, Candidate, LoraAffinity, PlacementRequest


def score(request: PlacementRequest, *states: AdapterState | None) -> list[float]:
    return LoraAffinity().score(request, [Candidate(pod=f"p{i}", adapter=state) for i, state in enumerate(states)])


def test_in_use_is_better_than_a_free_slot_than_waiting_than_nothing(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, "loaded", "slot", "waiting", "full") == [1, 0.8, 0.6, 0]


def test_an_unknown_state_is_neutral(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, "full", None) == [0, 0.5]


def test_a_base_model_leaves_all_alike(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, None, None) == [0.5, 0.5]


@pytest.mark.parametrize("state", get_args(AdapterState))
def test_every_state_has_a_score(request_of_1000: PlacementRequest, state: AdapterState) -> None:
    (value,) = score(request_of_1000, state)
    assert 0 <= value <= 1
