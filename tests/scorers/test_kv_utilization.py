import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Candidate, KvUtilization, PlacementRequest


def score(request: PlacementRequest, *usages: float | None) -> list[float]:
    fleet = [Candidate(pod=f"p{index}", kv_usage=usage) for index, usage in enumerate(usages)]
    return KvUtilization().score(request, fleet)


def test_the_score_is_the_free_share_of_the_cache(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 0.0, 0.25, 1.0) == [1, 0.75, 0]


def test_an_unknown_usage_is_neutral(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, None, 1.0) == [0.5, 0]


def test_a_usage_beyond_its_range_is_clipped(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 1.2, -0.1) == [0, 1]


@given(request=..., usages=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_fuller_cache_never_scores_more(request: PlacementRequest, usages: tuple[float, float]) -> None:
    emptier, fuller = score(request, min(usages), max(usages))
    assert emptier >= fuller


def test_other_pods_do_not_matter(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, 0.3) == [pytest.approx(0.7)] == score(request_of_1000, 0.3, 0.9)[:1]
