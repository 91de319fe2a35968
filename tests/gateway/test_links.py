"""Of links that have got slow only what the fleet still has is counted."""

from gateway.links import Links
from gateway.pods import PodTable
from scorers import Candidate, Costs, Pull


class Slow(Costs):
    """Costs that say of every pull over these links that it takes too long."""

    def __init__(self, *links: tuple[str, str]) -> None:
        super().__init__()
        self.slow = set(links)
        for source, consumer in links:
            self.pulled((source, 0), (consumer, 0), Pull(1.0, 1000.0, 0.0, 0.0), 0.1, 1.0)

    def slowed(self, source: tuple[str, int], consumer: tuple[str, int]) -> bool:
        return (source[0], consumer[0]) in self.slow


def links(costs: Costs) -> Links:
    table = PodTable([], max_load_age=10.0)
    table.costs = costs
    return Links(table)


A, B, C = (Candidate(pod=f"http://{name}") for name in "abc")


def test_a_link_counts_from_its_first_slow_pull_to_its_first_quick_one_in_its_own_direction() -> None:
    costs = Slow((A.pod, B.pod))
    slow = links(costs)
    for source, consumer in ((B, A), (A, C), (None, B)):
        slow.pulled(source, consumer)
    assert len(slow) == 0
    slow.pulled(A, B)
    slow.pulled(A, B)
    assert len(slow) == 1
    costs.slow.clear()
    slow.pulled(A, B)
    assert len(slow) == 0


def test_a_pod_that_is_taken_out_takes_its_links_along() -> None:
    slow = links(Slow((A.pod, B.pod), (B.pod, C.pod), (C.pod, A.pod)))
    for source, consumer in ((A, B), (B, C), (C, A)):
        slow.pulled(source, consumer)
    slow.keep([A.pod, B.pod])
    assert len(slow) == 1


def test_a_link_of_a_pod_that_has_gone_does_not_count_until_it_pulls_again() -> None:
    costs = Slow((A.pod, B.pod), (A.pod, C.pod))
    slow = links(costs)
    slow.pulled(A, B)
    slow.pulled(A, C)
    costs.parted(B.pod)
    assert len(slow) == 1
    costs.pulled((A.pod, 0), (B.pod, 0), Pull(1.0, 1000.0, 0.0, 0.0), 0.1, 2.0)
    slow.pulled(A, B)
    assert len(slow) == 2
