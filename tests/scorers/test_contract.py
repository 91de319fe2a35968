"""What every scorer, picker and filter promises: a new member of a union is tested by being one."""

import math
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorers import (
    AnyFilter,
    AnyPicker,
    AnyScorer,
    Candidate,
    Column,
    Filter,
    KvUtilization,
    PlacementRequest,
    Prefix,
    Queue,
    Scorer,
)

SCORERS = get_args(AnyScorer)
PICKERS = get_args(AnyPicker)
FILTERS = get_args(AnyFilter)
SHIPPED = (Prefix, Queue, KvUtilization)
# What has no default, by tag.
REQUIRED: dict[str, dict[str, Any]] = {
    "label-affinity": {"key": "zone", "values": ("a", "b")},
    "label": {"key": "zone", "values": ("a",)},
    "utilization": {"max_kv_usage": 0.9, "max_waiting": 100, "max_in_flight": 100},
}


def by_tag(kind: Any) -> str:
    return str(kind.__struct_config__.tag)


every_scorer = pytest.mark.parametrize("kind", SCORERS, ids=by_tag)
every_filter = pytest.mark.parametrize("kind", FILTERS, ids=by_tag)
every_member, every_judge = (
    pytest.mark.parametrize(("kind", "union"), [(kind, union) for union in unions for kind in get_args(union)])
    for unions in ((AnyScorer, AnyPicker, AnyFilter), (AnyScorer, AnyFilter))
)


def made(kind: Any, **fields: Any) -> Any:
    """One with its defaults, but for `fields` and what has none."""
    return kind(**{**REQUIRED.get(by_tag(kind), {}), **fields})


def fleets(min_size: int = 0) -> st.SearchStrategy[list[Candidate]]:
    return st.lists(st.from_type(Candidate), min_size=min_size, max_size=8)


def scores(kind: Any, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
    scorer: Scorer = made(kind)
    return scorer.score(request, candidates)


def judged(kind: Any, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[Any]:
    """What a scorer or a filter makes of candidates."""
    each: Filter | Scorer = made(kind)
    return list(each.keep(request, candidates) if isinstance(each, FILTERS) else each.score(request, candidates))


@every_scorer
@given(request=..., candidates=fleets())
def test_there_is_one_value_in_0_to_1_per_candidate(
    kind: Any, request: PlacementRequest, candidates: list[Candidate]
) -> None:
    values = scores(kind, request, candidates)
    assert len(values) == len(candidates)
    assert all(0 <= value <= 1 for value in values)


@every_filter
@given(request=..., candidates=fleets())
def test_a_filter_says_of_each_candidate_whether_it_stays(
    kind: Any, request: PlacementRequest, candidates: list[Candidate]
) -> None:
    kept = judged(kind, request, candidates)
    assert len(kept) == len(candidates)
    assert {type(stays) for stays in kept} <= {bool}


@every_judge
@given(request=..., candidates=fleets(), data=st.data())
def test_the_order_of_candidates_changes_no_value(
    kind: Any, union: Any, request: PlacementRequest, candidates: list[Candidate], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(candidates))))
    straight = judged(kind, request, candidates)
    assert judged(kind, request, [candidates[index] for index in order]) == [straight[index] for index in order]


@every_judge
@given(request=..., candidates=fleets())
def test_judging_changes_nothing_and_repeats_itself(
    kind: Any, union: Any, request: PlacementRequest, candidates: list[Candidate]
) -> None:
    before = msgspec.json.encode((request, candidates))
    first = judged(kind, request, tuple(candidates))
    assert judged(kind, request, candidates) == first
    assert msgspec.json.encode((request, candidates)) == before


@every_judge
@settings(max_examples=30)
@given(request=..., candidates=fleets(), other=fleets(min_size=8))
def test_of_the_columns_that_are_filled_on_demand_only_those_asked_for_count(
    kind: Any, union: Any, request: PlacementRequest, candidates: list[Candidate], other: list[Candidate]
) -> None:
    ignored = set(get_args(Column)) - set(getattr(kind, "needs", ()))
    changed = [
        msgspec.structs.replace(candidate, **{column: getattr(another, column) for column in ignored})
        for candidate, another in zip(candidates, other, strict=False)
    ]
    assert judged(kind, request, changed) == judged(kind, request, candidates)


@every_judge
def test_what_is_asked_for_are_columns_on_demand(kind: Any, union: Any) -> None:
    assert set(getattr(kind, "needs", ())) <= set(get_args(Column))
    assert set(get_args(Column)) <= set(Candidate.__struct_fields__)


@every_scorer
def test_a_candidate_of_which_nothing_is_known_is_not_shut_out_by_its_load(kind: Any) -> None:
    request = PlacementRequest(request_id="r", prompt_tokens=100, block_size=16, model=None)
    load: dict[str, Any] = {"waiting": 3, "running": 2, "kv_usage": 0.4, "expected_ttft": 0.1, "adapter": "loaded"}
    known = Candidate(pod="a", any_tokens=50, gpu_tokens=50, **load)
    unknown = Candidate(pod="b", any_tokens=50, gpu_tokens=50)
    assert scores(kind, request, [known, unknown])[1] > 0


@every_filter
def test_a_candidate_of_which_nothing_is_known_is_not_filtered_by_its_load(kind: Any) -> None:
    request = PlacementRequest(request_id="r", prompt_tokens=100, block_size=16, model=None)
    known = Candidate(pod="a", waiting=3, running=2, kv_usage=0.4, expected_ttft=0.1, labels={"zone": "a"})
    assert judged(kind, request, [known, Candidate(pod="b", labels={"zone": "a"})])[1]


@every_judge
def test_a_name_is_the_tag(kind: Any, union: Any) -> None:
    assert msgspec.to_builtins(made(kind))["type"] == kind.name
    assert isinstance(kind.name, str)


@pytest.mark.parametrize("union", [AnyScorer, AnyPicker, AnyFilter])
def test_names_are_unique(union: Any) -> None:
    assert len({by_tag(kind) for kind in get_args(union)}) == len(get_args(union))


@every_member
def test_the_type_alone_gives_the_defaults(kind: Any, union: Any) -> None:
    wire = msgspec.json.encode({"type": by_tag(kind), **REQUIRED.get(by_tag(kind), {})})
    assert msgspec.json.decode(wire, type=union) == made(kind)


@every_member
def test_an_unknown_key_is_refused(kind: Any, union: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match="wieght"):
        msgspec.convert({"type": by_tag(kind), **REQUIRED.get(by_tag(kind), {}), "wieght": 1}, type=union)


@every_member
def test_it_is_frozen_and_survives_the_wire(kind: Any, union: Any) -> None:
    assert kind.__struct_config__.frozen
    assert msgspec.json.decode(msgspec.json.encode(made(kind)), type=union) == made(kind)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="type"):
        msgspec.convert({"type": "astrology"}, type=AnyScorer)


@every_scorer
@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf, -math.inf])
def test_a_weight_that_is_no_share_is_refused(kind: Any, weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be finite and >= 0"):
        made(kind, weight=weight)
    with pytest.raises(msgspec.ValidationError, match=r"\$\.weight|weight must be finite"):
        msgspec.convert({"type": kind.name, **REQUIRED.get(kind.name, {}), "weight": weight}, type=AnyScorer)


@every_scorer
def test_a_weight_of_0_is_allowed(kind: Any) -> None:
    assert made(kind, weight=0).weight == 0


def test_the_shipped_weights_are_3_2_2() -> None:
    assert {kind.name: kind().weight for kind in SHIPPED} == {"prefix": 3, "queue": 2, "kv-utilization": 2}


every_picker = pytest.mark.parametrize("kind", PICKERS, ids=by_tag)
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
