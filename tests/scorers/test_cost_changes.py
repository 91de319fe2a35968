"""A copy of the costs that is told what changes expects the same, to the last bit."""

from random import Random
from typing import Any

import msgspec
import pytest

from scorers import Answer, Candidate, CostChanges, Costs, ExpectedSource, ExpectedTtft, PlacementRequest
from tests.scorers.costing import PREFILL, PULL, A, B, C, moved, prompt, taken

RANKS = (A, B, C)
PAIRS = [(source, consumer) for source in RANKS for consumer in RANKS if source is not consumer]


def over_the_wire(changes: CostChanges) -> CostChanges:
    return msgspec.json.decode(msgspec.json.encode(changes), type=CostChanges)


def teach(costs: Costs, rng: Random, now: float) -> None:
    tokens, rank = rng.randrange(100, 50_000), rng.choice(RANKS)
    costs.computed(rank, prompt(tokens), taken(PREFILL, prompt(tokens)) * rng.uniform(0.8, 1.2), now)
    costs.answered(Answer(1.0, 3.0, float(tokens)), rng.uniform(1, 5), now)
    costs.expected(rng.uniform(0.1, 3.0), rng.choice([0.0, 0.05]))
    if rng.random() < 0.5:
        terms = moved(tokens, met=costs.met(*(pair := rng.choice(PAIRS))))
        costs.pulled(*pair, terms, taken(PULL, terms) * rng.uniform(0.8, 1.2), now)


def everything(costs: Costs, now: float) -> Any:
    """All that a decision may ask."""
    return (
        costs.allowance_s,
        costs.answer(),
        costs.usual_prefill(),
        costs.usual_pull(),
        [(costs.prefill(rank), costs.evidence(rank, now)) for rank in RANKS],
        [(costs.pull(*pair), costs.met(*pair), costs.known(*pair, now), costs.crossover(*pair)) for pair in PAIRS],
    )


def chosen(costs: Costs, now: float) -> Any:
    held = zip(RANKS, (0, 320, 9_600), strict=True)
    candidates = [Candidate(pod, rank, pod, 1, any_tokens=n, cpu_tokens=n) for (pod, rank), n in held]
    request = PlacementRequest(
        request_id="r", prompt_tokens=10_000, block_size=16, model="m", pulls=True, costs=costs, now=now
    )
    return (
        ExpectedTtft().score(request, candidates),
        [ExpectedSource().choose(request, candidates, each) for each in candidates],
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_that_is_told_every_change_expects_the_same(seed: int) -> None:
    rng, costs, copy = Random(seed), Costs(), Costs()
    costs.follow()
    for number in range(200):
        now = 10.0 + number
        for _ in range(rng.randrange(3)):
            teach(costs, rng, now)
        if number == 100:
            costs.parted(rng.choice(RANKS)[0])
        copy.become(over_the_wire(costs.changes()))
        assert everything(copy, now) == everything(costs, now)
        assert chosen(copy, now) == chosen(costs, now)


def test_only_what_changed_is_told() -> None:
    costs, rng = Costs(), Random(1)
    for number in range(50):
        teach(costs, rng, float(number))
    costs.follow()
    assert costs.changes().ranks == []
    assert costs.changes().links == []
    costs.computed(B, prompt(100), 1.0, 60.0)
    costs.pulled(A, B, moved(100), 1.0, 60.0)
    told = costs.changes()
    assert [rank for rank, _ in told.ranks] == [B]
    assert [(source, consumer, met) for source, consumer, met, _ in told.links] == [(A, B, True)]
    assert costs.changes().ranks == []
    assert costs.changes().links == []


@pytest.mark.parametrize("most", [1, 2, 5])
def test_told_in_pieces_it_is_the_same_when_all_have_come_though_things_change_meanwhile(most: int) -> None:
    costs, copy, rng = Costs(), Costs(), Random(6)
    for number in range(50):
        teach(costs, rng, float(number))
    costs.follow()
    told = [costs.changes(whole=True, most=most)]
    while not told[-1].complete:
        if len(told) < 20:
            teach(costs, rng, 50.0 + len(told))
        told.append(costs.changes(most=most))
        assert len(told[-1].ranks) + len(told[-1].links) <= most
    assert len(told) > 1
    for each in told:
        copy.become(over_the_wire(each))
    assert everything(copy, 60.0) == everything(costs, 60.0)


def test_everything_is_told_on_request_and_displaces_what_the_copy_knew() -> None:
    costs, copy, rng = Costs(), Costs(), Random(2)
    for number in range(50):
        teach(costs, rng, float(number))
        teach(copy, rng, float(number))
    costs.keep([A[0], B[0]])
    copy.become(over_the_wire(costs.changes(whole=True)))
    assert everything(copy, 60.0) == everything(costs, 60.0)


def test_what_is_forgotten_is_told_as_well() -> None:
    costs, copy, rng = Costs(), Costs(), Random(3)
    costs.follow()
    for number in range(100):
        teach(costs, rng, float(number))
    copy.become(costs.changes())
    costs.keep([A[0], B[0]])
    told = costs.changes()
    assert (C, None) in told.ranks
    assert (A, C, False, None) in told.links
    copy.become(told)
    assert everything(copy, 100.0) == everything(costs, 100.0)
    copy.become(told)  # twice is as good as once


def test_what_was_restored_displaces_what_was_told_before() -> None:
    costs, other, copy, rng = Costs(), Costs(), Costs(), Random(4)
    costs.follow()
    for number in range(50):
        teach(costs, rng, float(number))
        other.computed(B, prompt(100 * number), 0.5, float(number))
    copy.become(costs.changes())
    costs.restore(other.state(50.0))
    copy.become(costs.changes())
    assert everything(copy, 60.0) == everything(costs, 60.0)


def test_without_a_follower_nothing_is_noted_and_everything_is_told() -> None:
    costs, copy, rng = Costs(), Costs(), Random(5)
    costs.follow()
    costs.follow(follows=False)
    for number in range(50):
        teach(costs, rng, float(number))
    copy.become(costs.changes())
    assert everything(copy, 50.0) == everything(costs, 50.0)


def test_what_does_not_fit_is_refused() -> None:
    told = Costs().changes()
    broken = msgspec.structs.replace(told, usual=(told.usual[2], told.usual[1], told.usual[0]))
    with pytest.raises(TypeError):
        Costs().become(broken)
