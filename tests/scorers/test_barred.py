"""Pulls that must not be named are neither named nor counted on."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Barred, Candidate, Costs, ExpectedSource, ExpectedTtft, Forecast, WeightedSampling
from tests.scorers.forecasts import PRIORS, asked, forecast, met, pod

HERE, PEER, OTHER = pod("a"), pod("b", 992), pod("c", 960)
every_source = pytest.mark.parametrize("source", [ExpectedSource(), WeightedSampling()], ids=lambda each: each.name)


def rank(candidate: Candidate) -> tuple[str, int]:
    return candidate.pod, candidate.rank


def pair(source: Candidate, consumer: Candidate) -> Barred:
    return Barred(pairs=frozenset({(rank(source), rank(consumer))}))


BARS_PEER = [
    Barred(sources=frozenset({rank(PEER)})),
    pair(PEER, HERE),
    Barred(strangers=frozenset({(PEER.pod, HERE.pod), (HERE.pod, PEER.pod)})),
]


def request(barred: Barred | None, **fields: Any) -> Any:
    return asked(costs=met((PEER, HERE), (OTHER, HERE)), barred=barred, **fields)


def test_what_is_barred_is_so_in_its_direction_but_strangers_in_both() -> None:
    assert pair(PEER, HERE).bars(PEER, HERE)
    assert not pair(PEER, HERE).bars(HERE, PEER)
    assert not pair(PEER, HERE).bars(PEER, msgspec.structs.replace(HERE, rank=1))
    assert BARS_PEER[0].bars(PEER, OTHER)
    assert not BARS_PEER[0].bars(HERE, PEER)
    assert BARS_PEER[2].bars(HERE, PEER)
    assert not Barred().bars(PEER, HERE)


@every_source
@pytest.mark.parametrize("barred", BARS_PEER)
def test_the_next_best_peer_is_named_instead(source: Any, barred: Barred) -> None:
    candidates = [HERE, PEER, pod("d", 320)]
    assert source.choose(request(None), candidates, HERE).source is PEER
    assert source.choose(request(barred), candidates, HERE).source is not PEER
    assert source.choose(request(barred), [HERE, PEER, OTHER], HERE).source is OTHER


@every_source
@pytest.mark.parametrize("barred", BARS_PEER)
def test_where_there_is_no_other_peer_nobody_is_named(source: Any, barred: Barred) -> None:
    assert source.choose(request(barred), [HERE, PEER], HERE).source is None


@every_source
def test_a_peer_that_is_barred_for_somebody_else_is_named(source: Any) -> None:
    assert source.choose(request(pair(PEER, OTHER)), [HERE, PEER, OTHER], HERE).source is PEER


@pytest.mark.parametrize("barred", BARS_PEER)
def test_a_pull_that_must_not_be_named_is_not_expected_either(barred: Barred) -> None:
    alone = forecast(HERE, request=request(None))
    assert forecast(HERE, PEER, request=request(None)).seconds < alone.seconds
    assert forecast(HERE, PEER, request=request(barred)) == alone


def test_who_must_not_pull_is_dearer_to_place_on_than_who_may() -> None:
    also = pod("d")
    costs = met((PEER, HERE), (PEER, also))
    one, other = Forecast(asked(costs=costs, barred=pair(PEER, HERE)), [HERE, also, PEER], 0.0, 0.0).prices(
        [HERE, also]
    )
    assert one > other
    scores = ExpectedTtft().score(asked(costs=costs, barred=pair(PEER, HERE)), [HERE, also, PEER])
    assert scores[0] < scores[1]


def test_a_pull_that_must_not_be_named_is_not_tried_to_learn_what_it_costs() -> None:
    dear = msgspec.structs.replace(PRIORS, pull=PRIORS.pull._replace(fixed=1.2))
    forecasts = [
        Forecast(asked(costs=Costs(dear), barred=barred), [HERE, PEER], 0.0, 0.0, [HERE])
        for barred in (None, *BARS_PEER)
    ]
    tried = [each.try_of(HERE) for each in forecasts]
    assert tried[0] is not None
    assert tried[1:] == [None] * 3


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=10), st.integers(0, 4))
def test_no_rule_ever_names_what_is_barred(pairs: list[tuple[int, int]], chosen: int) -> None:
    pods = [pod(name, 16 * 12 * number) for number, name in enumerate("abcde")]
    barred = Barred(pairs=frozenset((rank(pods[one]), rank(pods[other])) for one, other in pairs))
    for source in (ExpectedSource(), WeightedSampling()):
        found = source.choose(asked(barred=barred), pods, pods[chosen]).source
        assert found is None or not barred.bars(found, pods[chosen])
