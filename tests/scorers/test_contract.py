"""What every scorer and picker promises, in-tree or not: a new member of a union is tested by being one."""

import math
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import AnyPicker, AnyScorer, Candidate, KvUtilization, PlacementRequest, Prefix, Queue, Scorer

SCORERS = get_args(AnyScorer)
PICKERS = get_args(AnyPicker)
SHIPPED = (Prefix, Queue, KvUtilization)

every_scorer = pytest.mark.parametrize("kind", SCORERS)
every_member = pytest.mark.parametrize("kind", [*SCORERS, *PICKERS])


def fleets(min_size: int = 0) -> st.SearchStrategy[list[Candidate]]:
    return st.lists(st.from_type(Candidate), min_size=min_size, max_size=8)


def scores(kind: Any, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
    scorer: Scorer = kind()
    return scorer.score(request, candidates)


@every_scorer
@given(request=..., candidates=fleets())
def test_there_is_one_value_in_0_to_1_per_candidate(
    kind: Any, request: PlacementRequest, candidates: list[Candidate]
) -> None:
    values = scores(kind, request, candidates)
    assert len(values) == len(candidates)
    assert all(0 <= value <= 1 for value in values)


@every_scorer
@given(request=..., candidates=fleets(), data=st.data())
def test_the_order_of_candidates_changes_no_value(
    kind: Any, request: PlacementRequest, candidates: list[Candidate], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(candidates))))
    straight = scores(kind, request, candidates)
    assert scores(kind, request, [candidates[index] for index in order]) == [straight[index] for index in order]


@every_scorer
@given(request=..., candidates=fleets())
def test_scoring_changes_nothing_and_repeats_itself(
    kind: Any, request: PlacementRequest, candidates: list[Candidate]
) -> None:
    before = msgspec.json.encode((request, candidates))
    first = scores(kind, request, tuple(candidates))
    assert scores(kind, request, candidates) == first
    assert msgspec.json.encode((request, candidates)) == before


@every_scorer
def test_a_candidate_of_which_nothing_is_known_is_not_shut_out_by_its_load(kind: Any) -> None:
    request = PlacementRequest(request_id="r", prompt_tokens=100, block_size=16, model=None)
    known = Candidate(pod="a", waiting=3, running=2, kv_usage=0.4, any_tokens=50, gpu_tokens=50)
    unknown = Candidate(pod="b", any_tokens=50, gpu_tokens=50)
    assert scores(kind, request, [known, unknown])[1] > 0


@every_scorer
def test_a_scorers_name_is_its_tag(kind: Any) -> None:
    assert msgspec.to_builtins(kind())["type"] == kind.name
    assert isinstance(kind.name, str)


def test_names_are_unique() -> None:
    assert len({kind.name for kind in SCORERS}) == len(SCORERS)


@every_member
def test_the_type_alone_gives_the_defaults(kind: Any) -> None:
    wire = b'{"type": "%s"}' % kind.__struct_config__.tag.encode()
    assert msgspec.json.decode(wire, type=AnyScorer | AnyPicker) == kind()


@every_member
def test_an_unknown_key_is_refused(kind: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match="wieght"):
        msgspec.convert({"type": kind.__struct_config__.tag, "wieght": 1}, type=AnyScorer | AnyPicker)


@every_member
def test_it_is_frozen_and_survives_the_wire(kind: Any) -> None:
    assert kind.__struct_config__.frozen
    assert msgspec.json.decode(msgspec.json.encode(kind()), type=AnyScorer | AnyPicker) == kind()


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="type"):
        msgspec.convert({"type": "astrology"}, type=AnyScorer)


@every_scorer
@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf, -math.inf])
def test_a_weight_that_is_no_share_is_refused(kind: Any, weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be finite and >= 0"):
        kind(weight=weight)
    with pytest.raises(msgspec.ValidationError, match=r"\$\.weight|weight must be finite"):
        msgspec.convert({"type": kind.name, "weight": weight}, type=AnyScorer)


@every_scorer
def test_a_weight_of_0_is_allowed(kind: Any) -> None:
    assert kind(weight=0).weight == 0


def test_the_shipped_weights_are_3_2_2() -> None:
    assert {kind.name: kind().weight for kind in SHIPPED} == {"prefix": 3, "queue": 2, "kv-utilization": 2}


every_picker = pytest.mark.parametrize("kind", PICKERS)
totals = st.lists(st.floats(0, 100), min_size=1, max_size=8)


@every_picker
@given(totals=totals, coordinate=st.floats(0, 1, exclude_max=True))
def test_a_picker_picks_one_of_the_candidates(kind: Any, totals: list[float], coordinate: float) -> None:
    picked = kind().pick(totals, coordinate)
    assert 0 <= picked < len(totals)
    assert kind().pick(tuple(totals), coordinate) == picked


@every_picker
@pytest.mark.parametrize("coordinate", [-0.1, 1.0, math.nan])
def test_a_coordinate_outside_its_range_is_an_error(kind: Any, coordinate: float) -> None:
    with pytest.raises(ValueError, match="coordinate must be in"):
        kind().pick([1.0], coordinate)


@every_picker
def test_nothing_to_pick_from_is_an_error(kind: Any) -> None:
    with pytest.raises(ValueError, match="empty"):
        kind().pick([], 0.5)
