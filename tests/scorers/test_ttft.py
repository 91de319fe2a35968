from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Answer, Candidate, Costs, Forecast, PlacementRequest, Prefill, Priors, Pull, pullable_tokens, timed
from scorers.kv_source import same_engine
from scorers.samples import Timed
from scorers.ttft import THRIFT, Expected, Try

BLOCK = 16
PREFILL = Prefill(fixed=0.1, token=1e-3, square=1e-6, decode=0.01)
PULL = Pull(fixed=0.2, token=1e-4, step=2.0, setup=1.0)
ANSWER = Answer(fixed=2.0, request=0.1, context=1e-5)
PRIORS = Priors(prefill=PREFILL, pull=PULL, answer=ANSWER)


def pod(name: str, held: int = 0, **columns: Any) -> Candidate:
    """One that holds so many tokens, in both tiers."""
    defaults: dict[str, Any] = {"p2p_host": name, "p2p_port": 7777, "cpu_tokens": held, "any_tokens": held}
    return Candidate(pod=f"http://{name}:8000", **(defaults | columns))


def asked(tokens: int | None = 1_000, *, costs: Costs | None = None, **fields: Any) -> PlacementRequest:
    """May pull, and costs what `PRIORS` say unless told otherwise."""
    defaults: dict[str, Any] = {"request_id": "r", "block_size": BLOCK, "model": "m", "pulls": True}
    return PlacementRequest(prompt_tokens=tokens, costs=costs or Costs(PRIORS), **(defaults | fields))


def forecast(
    candidate: Candidate,
    *others: Candidate,
    request: PlacementRequest | None = None,
    foresight: float = 0.0,
    patience: float = 0.0,
) -> Expected:
    return Forecast(request or asked(), [candidate, *others], foresight, patience).of(candidate)


def met(*pairs: tuple[Candidate, Candidate], priors: Priors = PRIORS) -> Costs:
    """Costs of a fleet in which these have pulled from each other, and it cost what it was believed to."""
    costs = Costs(priors)
    for source, consumer in pairs:
        seconds = priors.pull.seconds(1_000, 0.0, met=False)
        costs.pulled((source.pod, source.rank), (consumer.pod, consumer.rank), Pull(1.0, 1_000.0, 0.0, 1.0), seconds, 0)
    return costs


# --- seconds


def test_an_idle_pod_computes_what_it_lacks() -> None:
    assert forecast(pod("a")).seconds == pytest.approx(0.1 + 1.0 + 1.0)
    assert forecast(pod("a", 400)).seconds == pytest.approx(0.1 + 0.6 + 1e-6 * (1_000**2 - 400**2))


def test_the_last_token_is_always_computed() -> None:
    assert forecast(pod("a", 1_000)).seconds == pytest.approx(0.1 + 0.001 + 1e-6 * (1_000**2 - 999**2))
    assert forecast(pod("a", 5_000)) == forecast(pod("a", 999))


def test_claims_count_as_far_as_they_are_believed_and_what_is_expected_counts_whole() -> None:
    assert forecast(pod("a", 800, credit=0.5)).seconds == forecast(pod("a", 400)).seconds
    assert forecast(pod("a", 800, credit=0.5, speculative_tokens=600)).seconds == forecast(pod("a", 600)).seconds
    assert forecast(pod("a", 800, speculative_tokens=600)).seconds == forecast(pod("a", 800)).seconds


def test_what_has_not_answered_is_computed_before_less_what_it_has_had_of_it() -> None:
    """Of 2 requests: 0.2 + 0.5 + 0.3 s, half a second each."""
    waiting = {"in_flight_requests": 2, "in_flight_unanswered": 2, "in_flight_tokens": 500, "in_flight_square": 300_000}
    assert forecast(pod("a", **waiting)).seconds == pytest.approx(1.0 + 2.1)
    assert forecast(pod("a", **waiting, progress_s=0.3)).seconds == pytest.approx(0.7 + 2.1)
    assert forecast(pod("a", **waiting, progress_s=9.0)).seconds == pytest.approx(0.5 + 2.1)


def test_strangers_requests_are_as_long_as_ours() -> None:
    ours = {"in_flight_requests": 2, "in_flight_unanswered": 1, "in_flight_tokens": 500, "in_flight_square": 300_000}
    wait, decode = 0.1 + 0.5 + 0.3, 0.01
    assert forecast(pod("a", **ours, waiting=2)).seconds == pytest.approx(wait + decode + 2.1)
    assert forecast(pod("a", **ours, waiting=5)).seconds == pytest.approx(4 * wait + decode + 2.1)
    assert forecast(pod("a", waiting=3)).seconds == pytest.approx(0.3 + 2.1)


def test_what_decodes_there_is_in_the_way_whosever_it_is() -> None:
    assert forecast(pod("a", in_flight_requests=4)).seconds == pytest.approx(0.04 + 2.1)
    assert forecast(pod("a", in_flight_requests=4, running=3)).seconds == pytest.approx(0.04 + 2.1)
    assert forecast(pod("a", in_flight_requests=4, running=9)).seconds == pytest.approx(0.09 + 2.1)
    assert forecast(pod("a", running=9)).seconds == pytest.approx(0.09 + 2.1)


# --- prices


def test_the_price_of_an_idle_pod_is_its_seconds_and_the_thrift_of_computing() -> None:
    assert THRIFT == 0.05
    assert forecast(pod("a")).price == pytest.approx(1.05 * 2.1)


def test_computing_holds_up_those_that_wait_there_up_to_twelve() -> None:
    def price(unanswered: int, foresight: float) -> float:
        waiting = pod("a", in_flight_requests=unanswered, in_flight_unanswered=unanswered)
        wait = 0.1 * unanswered
        return forecast(waiting, foresight=foresight).price - wait

    assert price(3, 0.0) == pytest.approx(1.05 * 2.1)
    assert price(3, 1.0) == pytest.approx(4.05 * 2.1)
    assert price(3, 2.0) == pytest.approx(7.05 * 2.1)
    assert price(12, 1.0) == price(40, 1.0) == pytest.approx(13.05 * 2.1)


def test_computing_holds_up_those_that_decode_there_and_the_answer_slows_theirs() -> None:
    """Two decode behind 4,000 tokens, one waits, and this request has 1,000; beside an idle pod."""
    busy = pod(
        "a",
        in_flight_requests=3,
        in_flight_unanswered=1,
        in_flight_tokens=500,
        in_flight_square=300_000,
        in_flight_context=4_000,
    )
    high, low = Forecast(asked(), [busy, pod("b")], 1.0, 0.5).prices([busy, pod("b")])
    answer, slowing = 0.1 * 3 + 1e-5 * 4_000, 2 / 2 * (0.1 + 1e-5 * 1_000)
    assert low == pytest.approx(1.05 * 2.1)
    assert high == pytest.approx(0.9 + 0.02 + (1.05 + 1.0 + 0.5 * 2) * 2.1 + 0.5 * (answer + slowing))


def test_what_falls_out_of_full_caches_is_worth_what_it_costs_to_compute_whoever_brings_what_displaces_it() -> None:
    here, peer = pod("a", turnover=0.5), pod("b", 960, turnover=0.25)
    assert forecast(here).price == pytest.approx(1.05 * 2.1 + 0.5 * 2.1)
    found = forecast(here, peer)
    assert found.price == pytest.approx(1.296 + 1.05 * 0.2184 + 0.5 * 2.1)
    assert (found.source, found.seconds) == (peer, pytest.approx(1.296 + 0.2184))
    assert forecast(peer).price == pytest.approx((1.05 + 0.25) * forecast(peer).seconds)


# --- pulls


def test_what_a_peer_holds_is_pulled_where_that_is_cheaper() -> None:
    """960 of 1,000 tokens: 0.2 + 0.096 s and 1 s of setup, then 0.1 + 0.04 + 0.0784 s of computing."""
    here, peer = pod("a"), pod("b", 960)
    found = forecast(here, peer)
    assert found.source is peer
    assert found.seconds == pytest.approx(1.296 + 0.2184)
    assert found.price == pytest.approx(1.296 + 1.05 * 0.2184)
    assert forecast(here, peer, request=asked(costs=met((peer, here)))).seconds == pytest.approx(
        0.296 + 0.2184, rel=0.01
    )


def test_a_pull_that_takes_longer_than_computing_is_none() -> None:
    assert forecast(pod("a"), pod("b", 320)).source is None
    assert forecast(pod("a"), pod("b", 320)) == forecast(pod("a"))


def test_a_request_that_may_not_pull_computes() -> None:
    request = asked(pulls=False)
    assert forecast(pod("a"), pod("b", 960), request=request) == forecast(pod("a"), request=request)


def test_only_what_is_missing_is_pulled_and_only_full_blocks_but_the_last_token() -> None:
    here, peer = pod("a", 200), pod("b", 1_000)
    rest = 0.1 + 0.008 + 1e-6 * (1_000**2 - 992**2)
    assert forecast(here, peer).seconds == pytest.approx(1.2 + 1e-4 * 792 + rest)


def test_pulls_share_the_busier_of_both_links() -> None:
    def seconds(serving: int, pulls: int) -> float:
        return forecast(pod("a", pulls=pulls), pod("b", 960, serving=serving)).seconds

    assert seconds(0, 0) == pytest.approx(1.2 + 0.096 + 0.2184)
    assert seconds(2, 0) == seconds(0, 2) == seconds(1, 2) == pytest.approx(1.2 + 3 * 0.096 + 0.2184)


def test_a_busy_source_answers_between_its_steps_of_8192_tokens() -> None:
    def seconds(**columns: Any) -> float:
        return forecast(pod("a"), pod("b", 960, **columns)).seconds - 1.296 - 0.2184

    one = {"in_flight_requests": 1, "in_flight_unanswered": 1}
    assert seconds(**one, in_flight_tokens=100, in_flight_square=20_000) == pytest.approx(2 * (0.1 + 0.1 + 0.02))
    long = seconds(**one, in_flight_tokens=81_920, in_flight_square=1_000)
    assert long == pytest.approx(2.1 - 1.296 - 0.2184)  # not pulled at all
    assert seconds(in_flight_requests=3) == pytest.approx(2 * 0.03)
    assert seconds(running=3) == pytest.approx(2 * 0.03)


def test_of_a_long_backlog_as_much_counts_as_fits_into_a_step() -> None:
    request = asked(100_000, costs=Costs(PRIORS))
    busy = pod("b", 96_000, in_flight_requests=1, in_flight_unanswered=1, in_flight_tokens=81_920)
    step = (0.1 + 81.92) / 10
    rest = 0.1 + 4.0 + 1e-6 * (100_000**2 - 96_000**2)
    assert forecast(pod("a"), busy, request=request).seconds == pytest.approx(1.2 + 9.6 + 2 * step + rest)


def test_one_dear_link_is_left_for_a_peer_that_holds_less() -> None:
    here, most, less = pod("a"), pod("b", 960), pod("c", 880)
    costs = met((most, here), (less, here))
    assert forecast(here, most, less, request=asked(costs=costs)).source is most
    for number in range(100):
        dear = number < 20
        source, seconds = (most, 3.0) if dear else (less, 0.3)
        costs.pulled((source.pod, 0), (here.pod, 0), Pull(1.0, 1_000.0, 0.0, 0.0), seconds, number)
    assert forecast(here, most, less, request=asked(costs=costs)).source is less
    assert forecast(pod("d"), most, less, request=asked(costs=costs)).source is most


@pytest.mark.parametrize(("floor", "named"), [(None, True), (400, True), (416, True), (417, False)])
def test_a_source_has_to_lead_by_the_floor_or_a_block(floor: int | None, named: bool) -> None:
    here, peer = pod("a", 544), pod("b", 960)
    costs = met((peer, here), priors=Priors(prefill=Prefill(token=1.0), pull=PULL))
    assert (forecast(here, peer, request=asked(pull_floor=floor, costs=costs)).source is peer) == named


def test_a_lead_of_less_than_a_block_is_none() -> None:
    costs = Costs(Priors(prefill=Prefill(token=1.0), pull=Pull(1e-6, 1e-9, 1e-6, 1e-6)))
    assert forecast(pod("a", 945), pod("b", 960), request=asked(costs=costs)).source is None
    assert forecast(pod("a", 944), pod("b", 960), request=asked(costs=costs)).source is not None


@pytest.mark.parametrize(
    "columns",
    [
        {"p2p_host": None},
        {"p2p_port": None},
        {"cpu_tokens": 0},  # on the GPU alone nothing can be pulled
        {"cpu_tokens": 0, "speculative_tokens": 960},
        {"credit": 0.1},
    ],
)
def test_who_cannot_serve_is_no_source(columns: dict[str, Any]) -> None:
    assert forecast(pod("a"), pod("b", 960, **columns)).source is None


def test_a_pod_without_tier_data_is_believed_on_any_tier() -> None:
    assert forecast(pod("a"), pod("b", 960, cpu_tokens=0, tiered=False)).source is not None


def test_nobody_pulls_from_itself_under_another_name_either() -> None:
    itself = pod("a", 960, any_tokens=0)
    assert forecast(itself).source is None
    alias = msgspec.structs.replace(pod("a", 960), pod="http://alias:8000")
    assert forecast(pod("a"), alias).source is None
    other_rank = msgspec.structs.replace(pod("a", 960), rank=1, p2p_port=7778)
    assert forecast(pod("a"), other_rank).source is other_rank


def test_of_many_sources_the_four_are_looked_at_that_are_cheapest_for_who_holds_nothing() -> None:
    here, request = pod("a"), asked(costs=Costs(Priors(prefill=PREFILL, pull=Pull(0.2, 1e-4, 2.0, 1e-3))))
    busy = [pod(f"busy{number}", 960, serving=60) for number in range(4)]
    less = [pod(f"less{number}", 640) for number in range(4)]
    idle = pod("idle", 960)
    assert forecast(here, *busy, *less, idle, request=request).source is idle
    assert forecast(here, *busy, *less, request=request).source in less
    assert forecast(here, *busy, request=request).source is None


def test_of_equal_sources_a_request_always_gets_the_same_and_all_get_some() -> None:
    here, holders = pod("a"), [pod(f"b{number}", 960) for number in range(8)]
    named = {}
    for number in range(100):
        request = asked(request_id=f"req-{number}")
        source = forecast(here, *holders, request=request).source
        assert source is not None
        assert forecast(here, *reversed(holders), request=request).source is source
        named[source.pod] = named.get(source.pod, 0) + 1
    assert len(named) == 8
    assert max(named.values()) < 30


# --- tries


def tried(costs: Costs, here: Candidate, *peers: Candidate, **fields: Any) -> Try | None:
    return Forecast(asked(costs=costs, **fields), [here, *peers], 0.0, 0.0).try_of(here)


SLOW = Priors(prefill=PREFILL, pull=Pull(fixed=1.0, token=1e-3, step=2.0, setup=0.5), answer=ANSWER)
"""A pull of 960 tokens takes 2.46 s, and 0.2184 s to compute the rest: 0.5784 s more than to compute it all."""


def test_a_pull_that_seems_dear_is_tried_while_nobody_knows_its_price() -> None:
    here, peer = pod("a"), pod("b", 960)
    assert forecast(here, peer, request=asked(costs=Costs(SLOW))).source is None
    found = tried(Costs(SLOW), here, peer)
    assert found is not None
    assert (found.source, found.extra_s) == (peer, pytest.approx(0.5784))


def test_what_is_in_the_way_of_both_is_no_part_of_what_a_try_costs() -> None:
    here = pod("a", in_flight_requests=5, in_flight_unanswered=1, in_flight_tokens=100)
    found = tried(Costs(SLOW), here, pod("b", 960))
    assert found is not None
    assert found.extra_s == pytest.approx(0.5784)


def test_a_known_price_is_not_tried() -> None:
    here, peer, costs = pod("a"), pod("b", 960), Costs(SLOW)
    for number in range(4):
        costs.pulled((peer.pod, 0), (here.pod, 0), Pull(1.0, 960.0, 0.0, 0.0), 1.96, number)
    assert tried(costs, here, peer, now=4.0) is None
    assert tried(costs, here, pod("c", 960), now=4.0) is None  # it is what the fleet's pulls cost
    assert tried(costs, here, peer, now=9_000.0) is not None


def test_a_try_costs_no_more_than_is_left_for_tries() -> None:
    costs = Costs(SLOW)
    costs.expected(0.0, 0.42)
    assert tried(costs, pod("a"), pod("b", 960)) is not None
    costs.expected(0.0, 0.01)
    assert tried(costs, pod("a"), pod("b", 960)) is None


@pytest.mark.parametrize(("fixed", "extra_s"), [(0.7, 0.418), (0.9, None)])
def test_a_try_takes_no_more_than_half_of_the_time_in_addition(fixed: float, extra_s: float | None) -> None:
    """To compute 400 of 700 tokens takes 0.9 s, to pull 384 of them 0.1 + 0.384 s and more, and 0.1341 s the rest."""
    costs = Costs(Priors(prefill=PREFILL, pull=Pull(fixed, 1e-3, 2.0, 0.1)))
    found = tried(costs, pod("a", 300), pod("b", 688), tokens=700)
    assert (found and found.extra_s) == (extra_s and pytest.approx(extra_s, rel=0.01))


def test_of_several_tries_the_cheapest_is_made() -> None:
    far, near = pod("b", 960, serving=1), pod("c", 960)
    costs = Costs(msgspec.structs.replace(SLOW, pull=Pull(fixed=1.0, token=1e-4, step=2.0, setup=1.0)))
    for peers in ((far, near), (near, far)):
        found = tried(costs, pod("a"), *peers)
        assert found is not None
        assert found.source is near


@pytest.mark.parametrize("peer", [pod("b", 0), pod("b", 10), pod("a", 960), pod("b", 960, p2p_host=None)])
def test_nothing_is_tried_that_is_no_source(peer: Candidate) -> None:
    assert tried(Costs(SLOW), pod("a"), peer) is None


# --- what is timed


def test_what_a_placed_request_makes_its_rank_do_is_what_was_expected_of_it() -> None:
    here = pod("a", in_flight_requests=3, in_flight_unanswered=1, in_flight_tokens=500, pulls=1)
    peer = pod("b", 960, in_flight_requests=4, in_flight_unanswered=1, in_flight_tokens=100, in_flight_square=20_000)
    costs = Costs(PRIORS)
    rank, terms = (here.pod, 0), Prefill(1.0, 40.0, 78_400.0, 2.0)
    assert timed(costs, here, 1_000, (40, 78_400), None, 0) == Timed(rank, 1_000, terms)
    found = timed(costs, here, 1_000, (40, 78_400), peer, 960)
    step_s = 0.03 + 0.1 + 0.1 + 0.02
    assert found == (rank, 1_000, terms, (peer.pod, 0), (1.0, 1_920.0, pytest.approx(step_s), 1.0), pytest.approx(0.6))
    assert all(isinstance(term, float) for term in (*terms, *(found.pulling or ())))
    costs.pulled((peer.pod, 0), rank, Pull(1.0, 960.0, 0.0, 1.0), 1.0, 0.0)
    again = timed(costs, here, 1_000, (40, 78_400), peer, 960)
    assert again.pulling is not None
    assert again.pulling.setup == 0.0


# --- properties


@st.composite
def candidates(draw: st.DrawFn, number: int = 0) -> Candidate:
    """One of a fleet, in a state that there can be."""
    cpu, gpu = draw(st.integers(0, 40_000)), draw(st.integers(0, 40_000))
    unanswered, decoding = draw(st.integers(0, 20)), draw(st.integers(0, 20))
    work = draw(st.integers(0, 40_000)) if unanswered else 0
    pulls = draw(st.integers(0, unanswered))
    return Candidate(
        pod=f"http://10.0.0.{number}:8000",
        p2p_host=draw(st.none() | st.just(f"10.0.0.{number}")),
        p2p_port=7777,
        gpu_tokens=gpu,
        cpu_tokens=cpu,
        any_tokens=max(gpu, cpu),
        credit=draw(st.just(1.0) | st.floats(0, 1)),
        speculative_tokens=draw(st.just(0) | st.integers(0, 40_000)),
        tiered=draw(st.booleans()),
        waiting=draw(st.none() | st.integers(0, 50)),
        running=draw(st.none() | st.integers(0, 50)),
        in_flight_requests=unanswered + decoding,
        in_flight_unanswered=unanswered,
        in_flight_tokens=work,
        in_flight_square=work * work,
        in_flight_context=draw(st.integers(0, 100_000)),
        progress_s=draw(st.floats(0, 10)) if unanswered else 0.0,
        pulls=pulls,
        serving=draw(st.integers(0, 9)),
        turnover=draw(st.just(0.0) | st.floats(0, 1)),
    )


@st.composite
def fleets(draw: st.DrawFn, most: int = 8) -> list[Candidate]:
    return [draw(candidates(number)) for number in range(draw(st.integers(1, most)))]


positive = st.floats(1e-7, 1.0)


@st.composite
def learned(draw: st.DrawFn, ranks: int = 8) -> Costs:
    """Costs of a fleet whose ranks and pairs have been at work."""
    costs = Costs(
        Priors(
            prefill=Prefill(*[draw(positive) * scale for scale in (1, 1e-3, 1e-8, 1e-2)]),
            pull=Pull(*[draw(positive) * scale for scale in (1, 1e-3, 1, 1)]),
            answer=Answer(*[draw(positive) * scale for scale in (10, 0.1, 1e-5)]),
        )
    )
    rank = st.integers(0, ranks - 1).map(lambda number: (f"http://10.0.0.{number}:8000", 0))
    for source, consumer, seconds in draw(st.lists(st.tuples(rank, rank, st.floats(0.001, 10)), max_size=4)):
        costs.pulled(source, consumer, Pull(1.0, 1_000.0, 0.1, 0.0), seconds, 0.0)
        costs.computed(source, Prefill(1.0, 1_000.0, 1e6, 1.0), seconds, 0.0)
    return costs


def requests(**fields: Any) -> st.SearchStrategy[PlacementRequest]:
    defaults: dict[str, Any] = {
        "request_id": st.text(max_size=5),
        "prompt_tokens": st.none() | st.integers(0, 60_000),
        "block_size": st.sampled_from([16, 64]),
        "model": st.just("m"),
        "pulls": st.booleans(),
        "pull_floor": st.none() | st.integers(1, 4_096),
        "costs": st.none() | learned(),
    }
    return st.builds(PlacementRequest, **(defaults | fields))


factors = st.floats(0, 3)


class ByHand(NamedTuple):
    """Seconds until the first token, what these cost, and what the answer does."""

    seconds: float
    price: float
    answer: float


def by_hand(
    request: PlacementRequest, fleet: Sequence[Candidate], candidate: Candidate, foresight: float, patience: float
) -> ByHand:
    """As the module's head has it, without any regard for time."""
    costs, n = request.costs or Costs(), request.prompt_tokens or 0
    rank, answer = (candidate.pod, candidate.rank), costs.answer()
    prefill, own = costs.prefill(rank), candidate.in_flight_requests

    def decoding_on(pod: Candidate) -> int:
        strangers = max(0, (pod.running or 0) - pod.in_flight_requests)
        return pod.in_flight_requests - pod.in_flight_unanswered + strangers

    unanswered, decoding = candidate.in_flight_unanswered, decoding_on(candidate)
    held = min(max(int(candidate.credit * candidate.any_tokens), candidate.speculative_tokens), max(0, n - 1))
    before = prefill.seconds(candidate.in_flight_tokens, candidate.in_flight_square, unanswered)
    each = before / unanswered if unanswered else prefill.fixed
    wait = before - min(candidate.progress_s, each) if unanswered else 0.0
    wait += max(0, (candidate.waiting or 0) - own) * each + prefill.decode * decoding
    worth = 1 + THRIFT + foresight * min(12, unanswered) + patience * decoding
    ways = [(prefill.seconds(n - held, n * n - held * held), 0.0)]
    for source in fleet if request.pulls else ():
        served = min(pullable_tokens(source), max(0, n - 1)) // request.block_size * request.block_size
        lead, peer = served - held, (source.pod, source.rank)
        if lead >= (request.pull_floor or request.block_size) and not same_engine(source, candidate):
            its = costs.prefill(peer)
            step_s = its.decode * decoding_on(source)
            if source.in_flight_tokens:
                backlog = its.seconds(source.in_flight_tokens, source.in_flight_square, source.in_flight_unanswered)
                step_s += backlog * min(1.0, 8192 / source.in_flight_tokens)
            share = 1 + max(source.serving, candidate.pulls)
            pulling = costs.pull(peer, rank).seconds(lead * share, step_s, met=costs.met(peer, rank))
            ways.append((prefill.seconds(n - served, n * n - served * served), pulling))
    rest, pulling = min(ways, key=lambda way: worth * way[0] + way[1])
    price = wait + worth * rest + pulling + candidate.turnover * ways[0][0]
    beside = answer.request * (decoding + unanswered) + answer.context * candidate.in_flight_context
    slowing = decoding / 2 * (answer.request + answer.context * n)
    return ByHand(wait + rest + pulling, price, patience * (beside + slowing))


@given(request=requests(), fleet=fleets(most=4), foresight=factors, patience=factors)
def test_it_is_what_the_formula_says(
    request: PlacementRequest, fleet: list[Candidate], foresight: float, patience: float
) -> None:
    found = Forecast(request, fleet, foresight, patience)
    worked_out = [by_hand(request, fleet, candidate, foresight, patience) for candidate in fleet]
    least = min(each.answer for each in worked_out)
    assert found.prices(fleet) == pytest.approx([each.price + each.answer - least for each in worked_out])
    assert [found.of(each).seconds for each in fleet] == pytest.approx([each.seconds for each in worked_out])


@given(request=requests(pulls=st.just(True)), fleet=fleets(), foresight=factors, patience=factors)
def test_a_source_leads_by_the_floor_can_serve_and_is_another_engine(
    request: PlacementRequest, fleet: list[Candidate], foresight: float, patience: float
) -> None:
    found = Forecast(request, fleet, foresight, patience)
    for candidate in fleet:
        attempt = found.try_of(candidate)
        assert attempt is None or 0 <= attempt.extra_s <= min(1.0, found.of(candidate).seconds / 2)
        for source in (found.of(candidate).source, None if attempt is None else attempt.source):
            if source is not None:
                lead = min(pullable_tokens(source), (request.prompt_tokens or 0) - 1) - candidate.any_tokens
                assert candidate.credit < 1 or lead >= (request.pull_floor or request.block_size)
                assert not same_engine(source, candidate)
                assert found.leads(candidate)
        if not found.leads(candidate):
            assert found.of(candidate) == Forecast(
                msgspec.structs.replace(request, pulls=False), fleet, foresight, patience
            ).of(candidate)


@given(request=requests(), fleet=fleets(), order=st.randoms(use_true_random=False))
def test_the_order_of_candidates_changes_nothing(request: PlacementRequest, fleet: list[Candidate], order: Any) -> None:
    shuffled = order.sample(fleet, len(fleet))
    one, other = Forecast(request, fleet, 1.0, 0.1), Forecast(request, shuffled, 1.0, 0.1)
    for candidate in fleet:
        assert one.of(candidate) == other.of(candidate)
        assert one.try_of(candidate) == other.try_of(candidate)


@given(request=requests(), fleet=fleets(), data=st.data())
def test_who_asks_for_one_only_is_told_nothing_dearer(
    request: PlacementRequest, fleet: list[Candidate], data: st.DataObject
) -> None:
    chosen = data.draw(st.sampled_from(fleet))
    among_all = Forecast(request, fleet, 1.0, 0.1).of(chosen)
    alone = Forecast(request, fleet, 1.0, 0.1, [chosen]).of(chosen)
    assert alone.price <= among_all.price
    if len(fleet) <= 4:
        assert alone == among_all


@given(request=requests(pulls=st.just(False)), candidate=candidates(), more=st.integers(1, 40_000))
def test_the_price_falls_as_a_candidate_holds_more(request: PlacementRequest, candidate: Candidate, more: int) -> None:
    richer = msgspec.structs.replace(candidate, any_tokens=candidate.any_tokens + more, credit=1.0)
    poorer = msgspec.structs.replace(candidate, credit=1.0)
    low, high = Forecast(request, [poorer, richer], 1.0, 0.1).prices([richer, poorer])
    assert low <= high
    if poorer.any_tokens + more < (request.prompt_tokens or 0) and not poorer.speculative_tokens:
        assert low < high


@given(request=requests(pulls=st.just(False)), candidate=candidates(), tokens=st.integers(1, 40_000), foresight=factors)
def test_the_price_rises_with_what_is_unanswered_there(
    request: PlacementRequest, candidate: Candidate, tokens: int, foresight: float
) -> None:
    candidate = msgspec.structs.replace(candidate, waiting=None, running=None)
    busier = msgspec.structs.replace(
        candidate,
        in_flight_requests=candidate.in_flight_requests + 1,
        in_flight_unanswered=candidate.in_flight_unanswered + 1,
        in_flight_tokens=candidate.in_flight_tokens + tokens,
        in_flight_square=candidate.in_flight_square + tokens * tokens,
    )
    high, low = Forecast(request, [candidate], foresight, 0.1).prices([busier, candidate])
    assert high > low or high == pytest.approx(low)


@given(request=requests(prompt_tokens=st.none()), fleet=fleets())
def test_of_a_prompt_of_unknown_length_only_the_load_counts(request: PlacementRequest, fleet: list[Candidate]) -> None:
    found = Forecast(request, fleet, 1.0, 0.1)
    for candidate in fleet:
        without = msgspec.structs.replace(candidate, gpu_tokens=0, cpu_tokens=0, any_tokens=0, speculative_tokens=0)
        assert found.of(candidate) == Forecast(request, [without], 1.0, 0.1).of(without)
        assert found.of(candidate).source is found.try_of(candidate) is None
