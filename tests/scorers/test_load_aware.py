import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Candidate, LoadAware, PlacementRequest


def score(request: PlacementRequest, *queues: int | None, threshold: int = 128) -> list[float]:
    candidates = [Candidate(pod=f"p{index}", waiting=queue) for index, queue in enumerate(queues)]
    return LoadAware(threshold=threshold).score(request, candidates)


def test_it_falls_from_one_half_to_0_at_the_threshold(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 0, 32, 64, 128, 1000) == [0.5, 0.375, 0.25, 0, 0]


def test_an_unknown_queue_is_in_the_middle(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, None, 0, 128) == [0.25, 0.5, 0]


def test_the_other_candidates_do_not_matter(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 5, 0)[0] == score(request_of_1000, 5)[0]


def test_the_threshold_is_a_parameter(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 5, 10, threshold=10) == [0.25, 0]


def test_a_threshold_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="threshold must be >= 1"):
        LoadAware(threshold=0)
    with pytest.raises(msgspec.ValidationError, match=r"\$\.threshold"):
        msgspec.convert({"threshold": 0, "type": "load-aware"}, type=LoadAware)


@given(request=..., queue=st.integers(0, 300), more=st.integers(0, 300))
def test_a_longer_queue_never_scores_more(request: PlacementRequest, queue: int, more: int) -> None:
    short, long = score(request, queue, queue + more)
    assert long <= short
