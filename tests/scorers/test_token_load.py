import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Candidate, PlacementRequest, TokenLoad


def score(request: PlacementRequest, *candidates: Candidate, threshold: int = 10_000) -> list[float]:
    return TokenLoad(threshold=threshold).score(request, candidates)


def test_work_under_way_and_what_is_missing_count_alike(request_of_1000: PlacementRequest) -> None:
    busy = Candidate(pod="a", in_flight_tokens=4000, any_tokens=1000)
    idle = Candidate(pod="b", in_flight_tokens=3000)
    assert score(request_of_1000, busy, idle) == [0.6, 0.6]


def test_a_full_pod_scores_0(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, Candidate(pod="a", in_flight_tokens=9000), Candidate(pod="b")) == [0, 0.9]


def test_claims_count_as_far_as_they_are_believed(request_of_1000: PlacementRequest) -> None:
    doubted = Candidate(pod="a", any_tokens=1000, credit=0.5)
    assert score(request_of_1000, doubted, Candidate(pod="b", speculative_tokens=500)) == [0.95, 0.95]


def test_a_prompt_of_unknown_length_leaves_the_work_under_way() -> None:
    request = PlacementRequest(request_id="r", prompt_tokens=None, block_size=16, model=None)
    assert score(request, Candidate(pod="a", in_flight_tokens=1000), Candidate(pod="b", any_tokens=500)) == [0.9, 1]


def test_a_threshold_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="threshold must be >= 1"):
        TokenLoad(threshold=0)
    with pytest.raises(msgspec.ValidationError, match=r"\$\.threshold"):
        msgspec.convert({"threshold": 0, "type": "token-load"}, type=TokenLoad)


@given(request=..., candidate=st.from_type(Candidate), more=st.integers(0, 1000))
def test_more_work_never_scores_more(request: PlacementRequest, candidate: Candidate, more: int) -> None:
    busier = msgspec.structs.replace(candidate, in_flight_tokens=candidate.in_flight_tokens + more)
    first, second = score(request, candidate, busier)
    assert second <= first
