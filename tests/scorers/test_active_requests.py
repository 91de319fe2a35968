import msgspec
from hypothesis import given
from hypothesis import strategies as st

from scorers import ActiveRequests, Candidate, PlacementRequest


def score(request: PlacementRequest, *counts: int) -> list[float]:
    candidates = [Candidate(pod=f"p{index}", in_flight_requests=count) for index, count in enumerate(counts)]
    return ActiveRequests().score(request, candidates)


def test_the_busiest_scores_0_and_the_others_by_how_far_they_are_below_it(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 8, 0, 6, 2) == [0, 1, 0.25, 0.75]


def test_the_least_busy_is_not_idle(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 10, 9) == [0, 0.1]


def test_idle_pods_score_1(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 0, 0) == [1, 1]


@given(request=..., candidates=st.lists(st.from_type(Candidate), min_size=1, max_size=8), more=st.integers(0, 1000))
def test_more_under_way_never_scores_more(request: PlacementRequest, candidates: list[Candidate], more: int) -> None:
    first, *others = candidates
    busier = msgspec.structs.replace(first, in_flight_requests=first.in_flight_requests + more)
    scorer = ActiveRequests()
    assert scorer.score(request, [busier, *others])[0] <= scorer.score(request, [first, *others])[0]
