from collections import Counter
from itertools import count

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Candidate, MaxScore, NoHitLru, PlacementRequest, is_cold, place

COLD = [Candidate(pod=f"p{index}") for index in range(4)]


def score(request: PlacementRequest, *turns: int) -> list[float]:
    candidates = [Candidate(pod=f"p{index}", cold_turn=turn) for index, turn in enumerate(turns)]
    return NoHitLru().score(request, candidates)


def test_the_longest_ago_comes_first(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 7, 3, 9) == [0.5, 1, 0]


def test_who_never_had_one_comes_before_all_others(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 1, 0, 0, 2) == [1 - 2 / 3, 1, 1, 0]


@pytest.mark.parametrize("turns", [(0, 0, 0), (5,)])
def test_equals_and_a_candidate_alone_score_1(request_of_1000: PlacementRequest, turns: tuple[int, ...]) -> None:
    assert score(request_of_1000, *turns) == [1] * len(turns)


@pytest.mark.parametrize("column", ["any_tokens", "speculative_tokens"])
def test_where_somebody_holds_some_of_it_all_are_neutral(request_of_1000: PlacementRequest, column: str) -> None:
    warm = msgspec.structs.replace(COLD[2], **{column: 16})
    assert NoHitLru().score(request_of_1000, [COLD[0], warm]) == [0.5, 0.5]
    assert is_cold(1000, COLD)
    assert not is_cold(1000, [*COLD, warm])


@pytest.mark.parametrize("length", [None, 0])
def test_a_prompt_without_known_tokens_is_not_cold(length: int | None) -> None:
    request = PlacementRequest(request_id="r", prompt_tokens=length, block_size=16, model="m")
    assert not is_cold(length, COLD)
    assert score(request, 3, 1) == [0.5, 0.5]


def test_cold_requests_go_round(request_of_1000: PlacementRequest) -> None:
    fleet, turns, chosen = list(COLD), count(1), list[int]()
    for step in range(12):
        chosen.append(place(request_of_1000, fleet, [NoHitLru()], MaxScore(), coordinate=step / 12).chosen)
        fleet[chosen[-1]] = msgspec.structs.replace(fleet[chosen[-1]], cold_turn=next(turns))
    assert set(Counter(chosen).values()) == {3}
    assert chosen[:4] == chosen[4:8] == chosen[8:]


@given(request=..., turns=st.lists(st.integers(0, 9), min_size=2, max_size=8))
def test_a_later_turn_never_scores_more(request: PlacementRequest, turns: list[int]) -> None:
    scores = score(request, *turns)
    in_order = [value for _, value in sorted(zip(turns, scores, strict=True), key=lambda pair: pair[0])]
    assert in_order == sorted(scores, reverse=True)
