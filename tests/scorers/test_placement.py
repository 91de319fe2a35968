from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Candidate, KvUtilization, MaxScore, PlacementRequest, Prefix, Queue, Scorer, place

DEFAULTS: list[Scorer] = [Prefix(), Queue(), KvUtilization()]

fleets = st.lists(st.from_type(Candidate), min_size=1, max_size=8)
coordinates = st.floats(0, 1, exclude_max=True)


class Constant:
    """A scorer from outside the union."""

    name: ClassVar[str] = "constant"
    weight = 10.0

    def __init__(self, *values: float) -> None:
        self._values = values

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
        del request, candidates
        return list(self._values)


@given(request=..., fleet=fleets, coordinate=coordinates)
def test_the_explanation_adds_up_to_the_choice(
    request: PlacementRequest, fleet: list[Candidate], coordinate: float
) -> None:
    placement = place(request, fleet, DEFAULTS, MaxScore(), coordinate=coordinate)
    assert list(placement.scores) == ["prefix", "queue", "kv-utilization"]
    for index, total in enumerate(placement.totals):
        parts = [scorer.weight * placement.scores[scorer.name][index] for scorer in DEFAULTS]
        assert total == pytest.approx(sum(parts))
    assert placement.totals[placement.chosen] == pytest.approx(max(placement.totals))


@given(request=..., fleet=fleets, coordinate=coordinates)
def test_the_same_input_gives_the_same_placement(
    request: PlacementRequest, fleet: list[Candidate], coordinate: float
) -> None:
    first, second = (place(request, fleet, DEFAULTS, MaxScore(), coordinate=coordinate) for _ in range(2))
    assert first == second


@given(request=..., fleet=fleets, data=st.data(), coordinate=coordinates)
def test_the_order_of_candidates_decides_ties_only(
    request: PlacementRequest, fleet: list[Candidate], data: st.DataObject, coordinate: float
) -> None:
    shuffled = data.draw(st.permutations(fleet))
    here, there = (place(request, pods, DEFAULTS, MaxScore(), coordinate=coordinate) for pods in (fleet, shuffled))
    assert here.totals[here.chosen] == pytest.approx(there.totals[there.chosen])


def test_the_holder_of_the_prefix_wins_at_equal_load(request_of_1000: PlacementRequest) -> None:
    fleet = [Candidate(pod="cold", waiting=1), Candidate(pod="warm", waiting=1, gpu_tokens=800, any_tokens=800)]
    placement = place(request_of_1000, fleet, DEFAULTS, MaxScore(), coordinate=0)
    assert fleet[placement.chosen].pod == "warm"


def test_load_wins_over_a_short_prefix(request_of_1000: PlacementRequest) -> None:
    busy = Candidate(pod="busy", waiting=40, kv_usage=0.95, gpu_tokens=160, any_tokens=160)
    idle = Candidate(pod="idle", waiting=0, kv_usage=0.1)
    assert place(request_of_1000, [busy, idle], DEFAULTS, MaxScore(), coordinate=0).chosen == 1


def test_a_fleet_of_which_nothing_is_known_is_used_evenly() -> None:
    request = PlacementRequest(request_id="r", prompt_tokens=None, block_size=16, model=None)
    fleet = [Candidate(pod=f"p{index}") for index in range(4)]
    picks = Counter(place(request, fleet, DEFAULTS, MaxScore(), coordinate=step / 100).chosen for step in range(100))
    assert picks == {0: 25, 1: 25, 2: 25, 3: 25}


def test_without_scorers_the_tie_break_decides(request_of_1000: PlacementRequest) -> None:
    fleet = [Candidate(pod="a"), Candidate(pod="b")]
    placement = place(request_of_1000, fleet, [], MaxScore(), coordinate=0.7)
    assert placement == (1, [0, 0], {})


def test_a_scorer_from_outside_takes_part(request_of_1000: PlacementRequest) -> None:
    fleet = [Candidate(pod="a", gpu_tokens=1000, any_tokens=1000), Candidate(pod="b")]
    placement = place(request_of_1000, fleet, [*DEFAULTS, Constant(0, 1)], MaxScore(), coordinate=0)
    assert placement.chosen == 1
    assert placement.scores["constant"] == [0, 1]


def test_a_scorer_that_leaves_a_candidate_out_is_an_error(request_of_1000: PlacementRequest) -> None:
    with pytest.raises(ValueError, match="constant scored 0 of 1"):
        place(request_of_1000, [Candidate(pod="a")], [Constant()], MaxScore(), coordinate=0)


def test_no_candidates_is_an_error(request_of_1000: PlacementRequest) -> None:
    with pytest.raises(ValueError, match="no candidates"):
        place(request_of_1000, [], DEFAULTS, MaxScore(), coordinate=0)
