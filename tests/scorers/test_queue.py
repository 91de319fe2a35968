import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Candidate, PlacementRequest, Queue


def score(request: PlacementRequest, *queues: int | None) -> list[float]:
    return Queue().score(request, [Candidate(pod=f"p{index}", waiting=queue) for index, queue in enumerate(queues)])


def test_the_shortest_queue_scores_1_and_the_longest_0(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 12, 2, 7) == [0, 1, 0.5]


@pytest.mark.parametrize("queues", [(0, 0), (9, 9, 9), (5,)])
def test_equal_queues_score_1(request_of_1000: PlacementRequest, queues: tuple[int, ...]) -> None:
    assert score(request_of_1000, *queues) == [1] * len(queues)


def test_an_unknown_queue_is_neutral_beside_known_ones(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 0, None, 10) == [1, 0.5, 0]


def test_queues_of_which_none_is_known_are_equal(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, None, None) == [1, 1]


@given(
    request=...,
    candidates=st.lists(st.from_type(Candidate), min_size=1, max_size=8),
    more=st.integers(0, 1000),
)
def test_a_longer_queue_never_scores_more(request: PlacementRequest, candidates: list[Candidate], more: int) -> None:
    first, *others = candidates
    short = msgspec.structs.replace(first, waiting=first.waiting or 0)
    long = msgspec.structs.replace(short, waiting=(short.waiting or 0) + more)
    assert Queue().score(request, [long, *others])[0] <= Queue().score(request, [short, *others])[0]
