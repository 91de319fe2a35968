from typing import Any

import pytest

from scorers import Candidate, PlacementRequest, TopologyAffinity, sample_source


def pod(name: str, zone: str | None = None, tokens: int = 0, **columns: Any) -> Candidate:
    defaults: dict[str, Any] = {"labels": {} if zone is None else {"zone": zone}, "p2p_host": name, "p2p_port": 5710}
    return Candidate(pod=name, cpu_tokens=tokens, **({"any_tokens": tokens} | defaults | columns))


def score(request: PlacementRequest, *candidates: Candidate) -> list[float]:
    return TopologyAffinity().score(request, candidates)


def test_pods_in_the_zone_of_the_holder_score_1(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, pod("a", "x", 512), pod("b", "x"), pod("c", "y"), pod("d")) == [1, 1, 0, 0]


def test_the_zones_are_of_all_pods_that_the_source_may_be_drawn_from(request_of_1000: PlacementRequest) -> None:
    fleet = [pod("a", "x", 512), pod("b", "y", 496), pod("c", "z", 480), pod("d", "x"), pod("e", "y"), pod("f", "z")]
    assert score(request_of_1000, *fleet) == [1, 1, 0, 1, 1, 0]
    sources = [sample_source(f"r{index}", request_of_1000.block_size, fleet) for index in range(50)]
    assert {source and source.pod for source in sources} == {"a", "b"}


def test_what_cannot_be_pulled_makes_no_zone(request_of_1000: PlacementRequest) -> None:
    only_gpu = pod("a", "x", gpu_tokens=512, any_tokens=512)
    unreachable = pod("b", "y", 512, p2p_host=None, p2p_port=None)
    assert score(request_of_1000, only_gpu, unreachable, pod("c", "z")) == [0.5, 0.5, 0.5]


def test_a_holder_without_a_zone_leaves_all_alike(request_of_1000: PlacementRequest) -> None:
    assert score(request_of_1000, pod("a", None, 512), pod("b", "x")) == [0.5, 0.5]


@pytest.mark.parametrize("key", ["zone", "rack"])
def test_the_label_is_a_parameter(request_of_1000: PlacementRequest, key: str) -> None:
    fleet = [pod("a", tokens=512, labels={key: "1"}), pod("b", labels={key: "1"}), pod("c", labels={key: "2"})]
    assert TopologyAffinity(key=key).score(request_of_1000, fleet) == [1, 1, 0]
