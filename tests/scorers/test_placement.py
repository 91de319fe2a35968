from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import (
    Candidate,
    KvUtilization,
    LabelFilter,
    MaxScore,
    PlacementRequest,
    Prefix,
    Queue,
    Scorer,
    WeightedRandom,
    place,
)

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
    assert placement == (1, [0, 0], {}, (), (), ())


def test_a_scorer_from_outside_takes_part(request_of_1000: PlacementRequest) -> None:
    fleet = [Candidate(pod="a", gpu_tokens=1000, any_tokens=1000), Candidate(pod="b")]
    placement = place(request_of_1000, fleet, [*DEFAULTS, Constant(0, 1)], MaxScore(), coordinate=0)
    assert placement.chosen == 1
    assert placement.scores["constant"] == [0, 1]


class Broken(Constant):
    """A scorer that fails."""

    name: ClassVar[str] = "broken"

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
        del request, candidates
        raise KeyError("pod")


def test_a_scorer_that_fails_is_neutral_and_the_others_decide(request_of_1000: PlacementRequest) -> None:
    fleet = [Candidate(pod="a"), Candidate(pod="b")]
    placement = place(request_of_1000, fleet, [Broken(), Constant(0, 1)], MaxScore(), coordinate=0)
    assert (placement.chosen, placement.totals) == (1, [5, 15])
    assert placement.scores == {"broken": [0.5, 0.5], "constant": [0, 1]}
    ((name, error),) = placement.faults
    assert (name, repr(error)) == ("broken", "KeyError('pod')")


@pytest.mark.parametrize("values", [(), (1.0,), (0.0, 1.0, 0.0)])
def test_a_scorer_that_does_not_score_each_candidate_is_neutral(
    request_of_1000: PlacementRequest, values: tuple[float, ...]
) -> None:
    fleet = [Candidate(pod="a"), Candidate(pod="b")]
    placement = place(request_of_1000, fleet, [Constant(*values)], MaxScore(), coordinate=0)
    assert placement.scores == {"constant": [0.5, 0.5]}
    assert [str(fault.error) for fault in placement.faults] == [f"scored {len(values)} of 2 candidates"]


def test_no_candidates_is_an_error(request_of_1000: PlacementRequest) -> None:
    with pytest.raises(ValueError, match="no candidates"):
        place(request_of_1000, [], DEFAULTS, MaxScore(), coordinate=0)


# Filters


class Only:
    """A filter that keeps pods by name, and remembers whom it was asked about."""

    def __init__(self, *pods: str, name: str = "only") -> None:
        self.name = name
        self._pods = pods
        self.asked: list[str] = []

    def keep(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[bool]:
        del request
        self.asked = [candidate.pod for candidate in candidates]
        return [candidate.pod in self._pods for candidate in candidates]


ABC = [Candidate(pod="a", waiting=0), Candidate(pod="b", waiting=2), Candidate(pod="c", waiting=10)]


def filtered(request: PlacementRequest, *filters: Any, scorers: Sequence[Scorer] = (Queue(),)) -> Any:
    return place(request, ABC, scorers, MaxScore(), coordinate=0, filters=filters)


def test_what_a_filter_drops_is_not_chosen_and_nothing_is_relative_to_it(request_of_1000: PlacementRequest) -> None:
    placement = filtered(request_of_1000, Only("b", "c"))
    assert ABC[placement.chosen].pod == "b"
    assert placement.scores == {"queue": [0, 1, 0]}
    assert placement.totals == [0, 2, 0]
    assert (placement.dropped, placement.skipped) == (("only", None, None), ())


def test_each_filter_sees_what_the_ones_before_it_kept(request_of_1000: PlacementRequest) -> None:
    first, second = Only("b", "c", name="first"), Only("a", "c", name="second")
    placement = filtered(request_of_1000, first, second)
    assert (first.asked, second.asked) == (["a", "b", "c"], ["b", "c"])
    assert placement.dropped == ("first", "second", None)
    assert placement.chosen == 2


def test_a_filter_that_would_leave_nobody_is_skipped_and_named(request_of_1000: PlacementRequest) -> None:
    placement = filtered(request_of_1000, Only("b", "c", name="first"), Only("a", name="second"))
    assert (placement.chosen, placement.dropped) == (1, ("first", None, None))
    assert placement.skipped == ("second",)


def test_filters_that_drop_nobody_change_nothing(request_of_1000: PlacementRequest) -> None:
    without = place(request_of_1000, ABC, DEFAULTS, MaxScore(), coordinate=0)
    assert filtered(request_of_1000, Only("a", "b", "c"), scorers=DEFAULTS) == without
    skipped = filtered(request_of_1000, Only(name="nobody"), scorers=DEFAULTS)
    assert skipped == without._replace(skipped=("nobody",))


def test_a_fault_among_those_that_are_kept_is_told_too(request_of_1000: PlacementRequest) -> None:
    placement = filtered(request_of_1000, Only("b"), scorers=[Broken()])
    assert placement.scores == {"broken": [0, 0.5, 0]}
    assert [fault.scorer for fault in placement.faults] == ["broken"]


@given(request=..., fleet=fleets, coordinate=coordinates, wanted=st.sets(st.sampled_from(["a", "b", "c"]), min_size=1))
def test_with_filters_it_is_the_placement_on_those_that_pass_or_on_all(
    request: PlacementRequest, fleet: list[Candidate], coordinate: float, wanted: set[str]
) -> None:
    zones = LabelFilter(key="zone", values=tuple(wanted))
    passing = [index for index, each in enumerate(fleet) if each.labels.get("zone") in wanted] or range(len(fleet))
    whole = place(request, fleet, DEFAULTS, WeightedRandom(), coordinate=coordinate, filters=[zones])
    part = place(request, [fleet[index] for index in passing], DEFAULTS, WeightedRandom(), coordinate=coordinate)
    assert whole.chosen == passing[part.chosen]
    assert [whole.totals[index] for index in passing] == part.totals
    assert {name: [values[index] for index in passing] for name, values in whole.scores.items()} == part.scores
