import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Candidate, PlacementRequest, Prefix

COUNTS = ["gpu_tokens", "any_tokens", "speculative_tokens"]


def score(request: PlacementRequest, scorer: Prefix | None = None, **columns: Any) -> float:
    (value,) = (scorer or Prefix()).score(request, [Candidate(pod="a", **columns)])
    return value


def test_a_gpu_hit_is_worth_its_share_of_the_prompt(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, gpu_tokens=480, any_tokens=480) == pytest.approx(0.48)


def test_the_part_that_continues_from_the_cpu_tier_is_worth_less(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, gpu_tokens=160, cpu_tokens=480, any_tokens=480) == pytest.approx(0.16 + 0.8 * 0.32)


def test_the_worth_of_the_cpu_tier_is_a_parameter(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, Prefix(cpu_weight=0.5), cpu_tokens=480, any_tokens=480) == pytest.approx(0.24)


def test_tokens_expected_of_a_placed_request_count_like_gpu_ones(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, speculative_tokens=480) == pytest.approx(0.48)
    assert score(request_of_1000, speculative_tokens=480, any_tokens=480) == pytest.approx(0.48)


def test_expecting_less_than_is_confirmed_changes_nothing(request_of_1000: PlacementRequest) -> None:
    plain = score(request_of_1000, gpu_tokens=320, any_tokens=480)
    assert score(request_of_1000, gpu_tokens=320, any_tokens=480, speculative_tokens=160) == plain


def test_a_hit_longer_than_the_prompt_scores_1(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, gpu_tokens=1008, any_tokens=1008) == 1


@pytest.mark.parametrize("prompt_tokens", [None, 0])
def test_without_tokens_there_is_no_prefix_term(prompt_tokens: int | None) -> None:
    request = PlacementRequest(request_id="r", prompt_tokens=prompt_tokens, block_size=16, model="m")
    assert score(request, gpu_tokens=480, any_tokens=480) == 0


@given(request=..., candidate=..., column=st.sampled_from(COUNTS), more=st.integers(0, 1000))
def test_more_cached_tokens_never_score_less(
    request: PlacementRequest, candidate: Candidate, column: str, more: int
) -> None:
    richer = msgspec.structs.replace(candidate, **{column: getattr(candidate, column) + more})
    before, after = Prefix().score(request, [candidate, richer])
    assert after >= before - 1e-12


@pytest.mark.parametrize("cpu_weight", [-0.1, 1.1, math.nan])
def test_a_worth_outside_0_to_1_is_refused(cpu_weight: float) -> None:
    with pytest.raises(ValueError, match="cpu_weight must be in 0 … 1"):
        Prefix(cpu_weight=cpu_weight)


@pytest.mark.parametrize("most", [1.0, 0.1])
def test_what_a_pod_is_believed_to_hold_counts_as_far_as_its_credit_beside_the_others(
    request_of_1000: PlacementRequest, most: float
) -> None:
    candidates = [
        Candidate(pod=f"http://pod{share}", gpu_tokens=400, any_tokens=800, credit=share * most)
        for share in (1, 0.5, 0)
    ]
    assert Prefix(cpu_weight=0.5).score(request_of_1000, candidates) == pytest.approx([0.6, 0.3, 0.0])


def test_where_nobody_is_believed_nothing_counts(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, gpu_tokens=400, any_tokens=800, credit=0.0) == 0.0


def test_doubt_does_not_touch_what_a_request_is_about_to_leave(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, credit=0.0, speculative_tokens=500) == 0.5
