import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Candidate, PlacementRequest, RunningRequests


def score(request: PlacementRequest, *batches: int | None) -> list[float]:
    candidates = [Candidate(pod=f"p{index}", running=batch) for index, batch in enumerate(batches)]
    return RunningRequests().score(request, candidates)


def test_the_smallest_batch_scores_1_and_the_largest_0(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 12, 2, 7) == [0, 1, 0.5]


@pytest.mark.parametrize("batches", [(0, 0), (9, 9, 9), (5,)])
def test_equal_batches_score_1(request_of_1000: PlacementRequest, batches: tuple[int, ...]) -> None:
    assert score(request_of_1000, *batches) == [1] * len(batches)


def test_an_unknown_batch_is_neutral_beside_known_ones(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 0, None, 10) == [1, 0.5, 0]


def test_batches_of_which_none_is_known_are_equal(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, None, None) == [1, 1]


@given(request=..., candidates=st.lists(st.from_type(Candidate), min_size=1, max_size=8), more=st.integers(0, 1000))
def test_a_larger_batch_never_scores_more(request: PlacementRequest, candidates: list[Candidate], more: int) -> None:
    first, *others = candidates
    small = msgspec.structs.replace(first, running=first.running or 0)
    large = msgspec.structs.replace(small, running=(small.running or 0) + more)
    scorer = RunningRequests()
    assert scorer.score(request, [large, *others])[0] <= scorer.score(request, [small, *others])[0]
