import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Candidate, Latency, PlacementRequest


def score(request: PlacementRequest, *expected: float | None, ttft_ms: float = 1000.0) -> list[float]:
    candidates = [Candidate(pod=f"p{index}", expected_ttft=seconds) for index, seconds in enumerate(expected)]
    return Latency(ttft_ms=ttft_ms).score(request, candidates)


def test_it_is_the_share_of_the_objective_that_is_left(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 0.0, 0.25, 1.0, ttft_ms=1000) == [1, 0.75, 0]
    assert score(request_of_1000, 0.25, ttft_ms=500) == [0.5]


def test_who_is_expected_to_miss_it_scores_0(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 1.5, 100.0) == [0, 0]


def test_an_unknown_time_is_neutral(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, None, 2.0) == [0.5, 0]


@pytest.mark.parametrize("ttft_ms", [0.0, -1.0, math.inf, math.nan])
def test_an_objective_that_is_no_time_is_refused(ttft_ms: float) -> None:
    with pytest.raises(ValueError, match="ttft_ms must be finite and > 0"):
        Latency(ttft_ms=ttft_ms)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "latency", "ttft_ms": ttft_ms}, type=Latency)


@given(request=..., seconds=st.floats(0, 100), more=st.floats(0, 100), ttft_ms=st.floats(0.001, 1e6))
def test_a_longer_time_never_scores_more(
    request: PlacementRequest, seconds: float, more: float, ttft_ms: float
) -> None:
    soon, late = score(request, seconds, seconds + more, ttft_ms=ttft_ms)
    assert late <= soon
