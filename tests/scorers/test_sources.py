from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import (
    Answer,
    Candidate,
    Costs,
    ExpectedSource,
    PlacementRequest,
    Prefill,
    Priors,
    Pull,
    SourceDecision,
    WeightedSampling,
    pullable_tokens,
)
from scorers.kv_source import same_engine

PREFILL = Prefill(0.1, 1e-3, 1e-6, 0.01)
CHEAP = Priors(prefill=PREFILL, pull=Pull(0.2, 1e-4, 2.0, 1e-3), answer=Answer(2.0, 0.1, 1e-5))
DEAR = Priors(prefill=PREFILL, pull=Pull(9.0, 1e-3, 2.0, 1.0), answer=Answer(2.0, 0.1, 1e-5))

every_source = pytest.mark.parametrize("source", [ExpectedSource(), WeightedSampling()], ids=lambda each: each.name)


def pod(name: str, held: int = 0, **columns: Any) -> Candidate:
    defaults: dict[str, Any] = {"p2p_host": name, "p2p_port": 7777, "cpu_tokens": held, "any_tokens": held}
    return Candidate(pod=f"http://{name}:8000", **(defaults | columns))


def asked(costs: Costs | None = None, *, floor: int | None = None, request_id: str = "r") -> PlacementRequest:
    return PlacementRequest(
        request_id=request_id,
        prompt_tokens=1_000,
        block_size=16,
        model="m",
        pulls=True,
        pull_floor=floor,
        costs=costs or Costs(CHEAP),
    )


def spent(priors: Priors) -> Costs:
    """Nothing is left for tries."""
    costs = Costs(priors)
    costs.expected(0.0, 1.0)
    return costs


@every_source
def test_a_peer_that_holds_it_is_named(source: Any) -> None:
    here, peer = pod("a"), pod("b", 960)
    found = source.choose(asked(), [here, peer], here)
    assert (found.source, found.reason) == (peer, "named")


@every_source
@pytest.mark.parametrize(
    ("chosen", "others", "reason"),
    [
        (pod("a"), [pod("b")], "no-holder"),
        (pod("a"), [pod("b", 960, p2p_host=None)], "no-holder"),
        (pod("a"), [pod("b", 960, cpu_tokens=0)], "no-holder"),
        (pod("a", 960), [pod("b", 320)], "self"),
        (pod("a", 960, cpu_tokens=0), [pod("b", 960)], "below-floor"),
        (pod("a", 900, cpu_tokens=0), [pod("b", 912)], "below-floor"),
    ],
)
def test_why_there_is_no_source(source: Any, chosen: Candidate, others: list[Candidate], reason: str) -> None:
    found = source.choose(asked(), [chosen, *others], chosen)
    assert (found.source, found.reason) == (None, reason)


@every_source
def test_a_pull_that_takes_longer_than_computing_is_not_worth_its_cost(source: Any) -> None:
    here, peer = pod("a"), pod("b", 960)
    found = source.choose(asked(spent(DEAR)), [here, peer], here)
    assert (found.source, found.reason, found.tried_s) == (None, "cost", 0.0)


@every_source
@pytest.mark.parametrize(("floor", "reason"), [(960, "named"), (961, "below-floor")])
def test_a_floor_in_tokens_is_kept(source: Any, floor: int, reason: str) -> None:
    here, peer = pod("a"), pod("b", 960)
    assert source.choose(asked(floor=floor), [here, peer], here).reason == reason


def test_with_a_floor_in_tokens_the_one_that_was_drawn_is_named_whatever_it_costs() -> None:
    here, peer = pod("a"), pod("b", 960)
    request = asked(spent(DEAR), floor=512)
    assert WeightedSampling().choose(request, [here, peer], here) == SourceDecision(peer, "named")
    assert ExpectedSource().choose(request, [here, peer], here).reason == "cost"


def test_the_peer_is_named_with_which_the_first_token_comes_soonest_and_when() -> None:
    """0.2 + 0.096 + 0.001 s for the pull of 960 tokens, 0.1 + 0.04 + 0.0784 s for the rest."""
    here, idle, busy = pod("a"), pod("b", 960), pod("c", 992, serving=9)
    found = ExpectedSource().choose(asked(), [here, busy, idle], here)
    assert found == (idle, "named", pytest.approx(0.297 + 0.2184), 0.0)


def test_without_a_source_the_first_token_is_expected_while_that_adds_to_the_allowance() -> None:
    here, priors = pod("a"), Priors(prefill=PREFILL)
    found = ExpectedSource().choose(asked(spent(priors)), [here], here)
    assert found == (None, "no-holder", pytest.approx(2.1), 0.0)
    assert ExpectedSource().choose(asked(Costs(priors)), [here], here) == (None, "no-holder", 0.0, 0.0)


def test_a_pull_whose_price_nobody_knows_is_tried_and_what_it_costs_is_told() -> None:
    priors = Priors(prefill=PREFILL, pull=Pull(1.0, 1e-3, 2.0, 0.5))
    here, peer, costs = pod("a"), pod("b", 960), Costs(priors)
    found = ExpectedSource().choose(asked(costs), [here, peer], here)
    assert found == (peer, "named", pytest.approx(2.46 + 0.2184), pytest.approx(2.46 + 0.2184 - 2.1))
    costs.expected(found.expected_s, found.tried_s)
    assert costs.allowance_s == pytest.approx(1.0 - found.tried_s)
    assert ExpectedSource().choose(asked(costs), [here, peer], here).reason == "cost"


@pytest.mark.parametrize("factor", ["foresight", "patience"])
def test_a_factor_that_is_no_number_is_refused(factor: str) -> None:
    with pytest.raises(ValueError, match=r"foresight and patience must be in 0 … 100"):
        ExpectedSource(**{factor: float("nan")})
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "expected-ttft", factor: float("nan")}, type=ExpectedSource)


def test_who_is_about_to_hold_it_does_not_pull_it() -> None:
    here, peer = pod("a", speculative_tokens=960), pod("b", 960)
    assert ExpectedSource().choose(asked(), [here, peer], here).reason == "below-floor"


def test_who_holds_nothing_is_no_source_of_its_own() -> None:
    here, peer = pod("a"), pod("b", 1)  # which is less than a block
    assert ExpectedSource().choose(asked(), [here, peer], here).reason == "below-floor"


def test_foresight_makes_a_pull_pay_sooner_where_others_wait() -> None:
    waiting = {"in_flight_requests": 6, "in_flight_unanswered": 6, "in_flight_tokens": 60}
    here, peer = pod("a", **waiting), pod("b", 960)
    priors = Priors(prefill=PREFILL, pull=Pull(3.0, 1e-4, 2.0, 1e-3))
    assert ExpectedSource(foresight=0.0).choose(asked(spent(priors)), [here, peer], here).reason == "cost"
    assert ExpectedSource().choose(asked(spent(priors)), [here, peer], here).source is peer


def test_of_equal_peers_each_request_gets_its_own_and_always_the_same() -> None:
    here, peers = pod("a"), [pod("b", 960), pod("c", 960), pod("d", 960)]
    for source in (ExpectedSource(), WeightedSampling()):
        named: set[str] = set()
        for number in range(64):
            request = asked(request_id=f"req-{number}")
            found = source.choose(request, [here, *peers], here)
            assert source.choose(request, [*reversed(peers), here], here) == found
            assert found.source is not None
            named.add(found.source.pod)
        assert named == {peer.pod for peer in peers}


holdings = st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 1_000), st.integers(0, 9)), min_size=1, max_size=8)


def fleet(held: Sequence[tuple[int, int, int]]) -> list[Candidate]:
    return [
        pod(f"p{number}", cpu, any_tokens=max(cpu, gpu), gpu_tokens=gpu, serving=serving)
        for number, (cpu, gpu, serving) in enumerate(held)
    ]


@every_source
@given(held=holdings, floor=st.none() | st.integers(1, 500), dear=st.booleans(), data=st.data())
def test_a_source_comes_with_its_reason_leads_by_the_floor_and_is_another_engine(
    source: Any, held: list[tuple[int, int, int]], floor: int | None, dear: bool, data: st.DataObject
) -> None:
    candidates = fleet(held)
    chosen = data.draw(st.sampled_from(candidates))
    found = source.choose(asked(Costs(DEAR if dear else CHEAP), floor=floor), candidates, chosen)
    assert (found.source is None) == (found.reason != "named")
    if found.source is not None:
        assert found.source in candidates
        assert pullable_tokens(found.source) - chosen.any_tokens >= (floor or 16)
        assert not same_engine(found.source, chosen)
    elif found.reason == "no-holder":
        assert not any(map(pullable_tokens, candidates))
    elif found.reason == "self":
        assert pullable_tokens(chosen) > 0
    assert 0 <= found.tried_s <= found.expected_s


@given(held=holdings, data=st.data())
def test_the_order_of_candidates_changes_no_decision(held: list[tuple[int, int, int]], data: st.DataObject) -> None:
    candidates = fleet(held)
    chosen, shuffled = data.draw(st.sampled_from(candidates)), data.draw(st.permutations(candidates))
    for source in (ExpectedSource(), WeightedSampling()):
        assert source.choose(asked(), candidates, chosen) == source.choose(asked(), shuffled, chosen)
