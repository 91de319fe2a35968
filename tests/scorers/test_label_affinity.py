import pytest

from scorers import Candidate, LabelAffinity, PlacementRequest

H200 = Candidate(pod="a", labels={"gpu": "h200", "zone": "x"})
H100 = Candidate(pod="b", labels={"gpu": "h100"})
L40 = Candidate(pod="c", labels={"gpu": "l40"})
PLAIN = Candidate(pod="d")


def score(request: PlacementRequest, *candidates: Candidate, values: tuple[str, ...]) -> list[float]:
    return LabelAffinity(key="gpu", values=values).score(request, candidates)


def test_the_first_value_is_wanted_most(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, L40, H100, H200, PLAIN, values=("h200", "h100")) == [0, 0.5, 1, 0]


def test_one_value_says_yes_or_no(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, H200, H100, values=("h100",)) == [0, 1]


def test_where_nobody_has_one_of_them_all_are_alike(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, L40, PLAIN, values=("h200", "h100")) == [0.5, 0.5]


@pytest.mark.parametrize("values", [(), ("a", "b", "a")])
def test_values_are_some_and_each_once(values: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="values must be at least one, each once"):
        LabelAffinity(key="gpu", values=values)
