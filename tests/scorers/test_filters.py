import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import (
    Candidate,
    LabelFilter,
    PlacementRequest,
    PrefixAffinityFilter,
    RoleFilter,
    UtilizationFilter,
)

# role


def test_pods_of_other_roles_are_dropped(request_of_1000: PlacementRequest) -> None:
    fleet = [Candidate(pod="a", role="prefill"), Candidate(pod="b", role="decode"), Candidate(pod="c")]
    assert RoleFilter().keep(request_of_1000, fleet) == [False, False, True]
    assert RoleFilter(roles=("both", "prefill")).keep(request_of_1000, fleet) == [True, False, True]


def test_a_filter_for_no_role_or_an_unknown_one_is_refused() -> None:
    for roles in ([], ["encode"]):
        with pytest.raises(msgspec.ValidationError, match=r"\$\.roles"):
            msgspec.convert({"type": "role", "roles": roles}, type=RoleFilter)


# label


def test_pods_with_other_labels_or_none_are_dropped(request_of_1000: PlacementRequest) -> None:
    fleet = [Candidate(pod="a", labels={"zone": zone}) for zone in "xyz"] + [Candidate(pod="b")]
    assert LabelFilter(key="zone", values=("x", "z")).keep(request_of_1000, fleet) == [True, False, True, False]


def test_a_label_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match="values must be at least one, each once"):
        LabelFilter(key="zone", values=())


# utilization


def utilization(request: PlacementRequest, *candidates: Candidate, **bounds: Any) -> list[bool]:
    return UtilizationFilter(**bounds).keep(request, candidates)


@pytest.mark.parametrize(
    ("bound", "column", "values"),
    [
        ({"max_kv_usage": 0.8}, "kv_usage", (0.8, 0.81)),
        ({"max_waiting": 5}, "waiting", (5, 6)),
        ({"max_in_flight": 0}, "in_flight_requests", (0, 1)),
    ],
)
def test_a_pod_may_be_at_a_bound_and_not_over_it(
    request_of_1000: PlacementRequest, bound: dict[str, float], column: str, values: tuple[float, ...]
) -> None:
    fleet = [Candidate(pod="a", **{column: value}) for value in values]
    assert utilization(request_of_1000, *fleet, **bound) == [True, False]


def test_every_bound_counts(request_of_1000: PlacementRequest) -> None:
    fleet = [Candidate(pod="a", kv_usage=0.9, waiting=0), Candidate(pod="b", kv_usage=0.1, waiting=9)]
    assert utilization(request_of_1000, *fleet, max_kv_usage=0.8, max_waiting=5) == [False, False]


def test_what_is_unknown_is_not_overloaded(request_of_1000: PlacementRequest) -> None:
    assert utilization(request_of_1000, Candidate(pod="a"), max_kv_usage=0.0, max_waiting=0) == [True]


def test_bounds_of_which_none_is_set_or_one_is_no_share_are_refused() -> None:
    with pytest.raises(ValueError, match="is needed"):
        UtilizationFilter()
    for usage in (1.1, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"max_kv_usage must be in 0 … 1"):
            UtilizationFilter(max_kv_usage=usage)


# prefix-affinity

HOLDER = Candidate(pod="holder", any_tokens=800)
OTHER = Candidate(pod="other", any_tokens=100)


def expected(candidate: Candidate, seconds: float | None) -> Candidate:
    return msgspec.structs.replace(candidate, expected_ttft=seconds)


def affinity(request: PlacementRequest, *candidates: Candidate, **fields: Any) -> list[bool]:
    return PrefixAffinityFilter(**fields).keep(request, candidates)


def test_those_that_hold_the_share_are_kept(request_of_1000: PlacementRequest) -> None:
    about_to = Candidate(pod="c", speculative_tokens=900)
    doubted = Candidate(pod="d", any_tokens=1000, credit=0.7)
    assert affinity(request_of_1000, HOLDER, OTHER, about_to, doubted) == [True, False, True, False]
    assert affinity(request_of_1000, HOLDER, OTHER, about_to, doubted, share=0.1) == [True] * 4


def test_where_nobody_holds_the_share_all_are_kept(request_of_1000: PlacementRequest) -> None:
    assert affinity(request_of_1000, HOLDER, OTHER, share=0.9) == [True, True]


@pytest.mark.parametrize("length", [None, 0])
def test_where_the_prompt_is_not_known_all_are_kept(length: int | None) -> None:
    request = PlacementRequest(request_id="r", prompt_tokens=length, block_size=16, model="m")
    assert affinity(request, HOLDER, OTHER) == [True, True]


@pytest.mark.parametrize(("seconds", "kept"), [(1.5, [True, False, False]), (1.501, [True, True, True])])
def test_a_holder_may_be_slower_by_the_penalty(
    request_of_1000: PlacementRequest, seconds: float, kept: list[bool]
) -> None:
    fleet = [expected(HOLDER, seconds), expected(OTHER, 0.5), expected(OTHER, 9.0)]
    assert affinity(request_of_1000, *fleet, ttft_penalty_ms=1000.0) == kept


def test_the_best_holder_speaks_for_all(request_of_1000: PlacementRequest) -> None:
    fleet = [expected(HOLDER, 30.0), expected(HOLDER, 0.1), expected(OTHER, 0.0)]
    assert affinity(request_of_1000, *fleet) == [True, True, False]


@pytest.mark.parametrize("times", [(None, 0.0), (60.0, None), (None, None)])
def test_an_unknown_time_gives_up_no_prefix(
    request_of_1000: PlacementRequest, times: tuple[float | None, float | None]
) -> None:
    fleet = [expected(HOLDER, times[0]), expected(OTHER, times[1])]
    assert affinity(request_of_1000, *fleet) == [True, False]


def test_shares_and_penalties_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"share must be in 0 … 1"):
        PrefixAffinityFilter(share=math.nan)
    for penalty in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="ttft_penalty_ms must be finite and >= 0"):
            PrefixAffinityFilter(ttft_penalty_ms=penalty)


@given(request=..., candidates=st.lists(st.from_type(Candidate), min_size=1, max_size=8))
def test_prefix_affinity_never_leaves_nobody(request: PlacementRequest, candidates: list[Candidate]) -> None:
    assert any(affinity(request, *candidates))
