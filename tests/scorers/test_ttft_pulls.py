"""From whom a candidate would pull, and what it would try."""

from typing import Any

import msgspec
import pytest

from scorers import Barred, Candidate, Costs, Forecast, Prefill, Priors, Pull
from scorers.ttft import Try
from tests.scorers.forecasts import ANSWER, PREFILL, PRIORS, PULL, asked, forecast, met, pod


def test_what_a_peer_holds_is_pulled_where_that_is_cheaper() -> None:
    """960 of 1,000 tokens: 0.2 + 0.096 s and 1 s of setup, then 0.1 + 0.04 + 0.0784 s of computing."""
    here, peer = pod("a"), pod("b", 960)
    found = forecast(here, peer)
    assert found.source is peer
    assert found.seconds == pytest.approx(1.296 + 0.2184)
    assert found.price == pytest.approx(1.5 * 1.296 + 1.05 * 0.2184)
    assert forecast(here, peer, request=asked(costs=met((peer, here)))).seconds == pytest.approx(
        0.296 + 0.2184, rel=0.01
    )


def test_a_pull_that_takes_longer_than_computing_is_none() -> None:
    assert forecast(pod("a"), pod("b", 320)).source is None
    assert forecast(pod("a"), pod("b", 320)) == forecast(pod("a"))


def test_a_request_that_may_not_pull_computes() -> None:
    request = asked(pulls=False)
    assert forecast(pod("a"), pod("b", 960), request=request) == forecast(pod("a"), request=request)


def test_to_pull_elsewhere_counts_for_more_than_its_seconds_and_not_against_pulling_there() -> None:
    """Computing takes 1.84 s at a price of 1.932; pulling 1.5144 s at 2.17."""
    here, peer = pod("a", 150), pod("b", 960)
    computing, pulling = forecast(here), forecast(here, peer)
    assert pulling.source is peer
    assert pulling.seconds < computing.seconds
    assert pulling.price > computing.price


def test_another_copy_is_worth_what_those_wait_that_want_it_at_the_source() -> None:
    def price(**columns: Any) -> float:
        columns = {"in_flight_requests": 2, "in_flight_unanswered": 2, "speculative_tokens": 960} | columns
        return forecast(pod("a"), pod("b", 960, **columns)).price

    waiting = 2 * 0.1
    dearer = price(speculative_tokens=959)  # they want something else
    assert price() == pytest.approx(dearer - 2 * waiting)
    fetched = price(serving=1, speculative_tokens=0) - price(serving=1)
    assert fetched == pytest.approx(2 * waiting / 4)


def test_another_copy_is_worth_no_more_than_it_costs_to_fetch() -> None:
    crowd = {"in_flight_requests": 100, "in_flight_unanswered": 100, "speculative_tokens": 960}
    found = forecast(pod("a"), pod("b", 960, **crowd))
    assert found.source is not None
    assert found.price == pytest.approx(1.05 * 0.2184)


def coming(tokens: int, seconds: float, source: str = "b", **columns: Any) -> Candidate:
    there = {"coming_tokens": tokens, "coming_s": seconds, "coming_from": f"http://{source}:8000"}
    return pod("a", **(there | columns))


def test_who_comes_after_a_pull_waits_for_it_and_costs_no_link_anything() -> None:
    peer = pod("b", 960)
    found = forecast(coming(960, 0.3), peer)
    assert found.source is peer
    assert found.seconds == pytest.approx(0.3 + 0.2184)
    assert found.price == pytest.approx(0.3 + 1.05 * 0.2184)
    half = forecast(coming(480, 0.3), peer)
    assert half.seconds == pytest.approx(0.3 + 0.1 + 0.52 + 1e-6 * (1_000**2 - 480**2))


def test_one_that_is_not_to_be_waited_for_is_computed() -> None:
    peer = pod("b", 960)
    alone = forecast(pod("a"))
    assert forecast(coming(960, 3.0), peer) == alone  # it would come too late
    assert forecast(coming(960, 0.3), peer, request=asked(pulls=False)) == alone
    assert forecast(coming(960, 0.3, source="gone"), peer) == alone
    assert forecast(coming(960, 0.3), pod("b", 0)) == alone  # its source has lost it
    assert forecast(coming(960, 0.3), pod("b", 960, p2p_host="a")) == alone  # one engine
    barred = asked(barred=Barred(sources=frozenset({("http://b:8000", 0)})))
    assert forecast(coming(960, 0.3), peer, request=barred) == alone


def test_less_than_the_floor_is_not_waited_for() -> None:
    assert forecast(coming(960, 0.0, cpu_tokens=950, any_tokens=950), pod("b", 960)).source is None


def test_to_even_out_answers_is_no_reason_to_pull_what_nobody_else_wants() -> None:
    """Where nobody is answered an answer would be cheaper, but not to a prompt that is brought there for that."""
    busy = pod("b", 960, in_flight_requests=9, in_flight_context=9_000)
    idle = pod("a")
    costs = met((busy, idle))

    def cheaper(patience: float, *fleet: Candidate) -> float:
        there, here = Forecast(asked(costs=costs), fleet, 0.0, patience).prices(fleet)
        return here - there

    assert cheaper(0.5, idle, busy) == pytest.approx(cheaper(0.0, idle, busy))
    stretched = 0.5 * 9 * 0.2184  # the steps of the nine, while the rest is computed
    held = pod("c", 960)
    answers = 0.5 * (9 * 0.1 + 9_000 * 1e-5 + 9 / 2 * (0.1 + 1_000 * 1e-5))
    assert cheaper(0.5, held, busy) == pytest.approx(cheaper(0.0, held, busy) + stretched + answers)
    wanted = msgspec.structs.replace(busy, speculative_tokens=960)  # by others, too: they find a copy next time
    assert cheaper(0.5, idle, wanted) == pytest.approx(cheaper(0.0, idle, wanted) + stretched + answers)


def test_a_copy_takes_room_that_those_lack_that_decode_there_for_as_long_as_its_answer_lasts() -> None:
    """Of what is on the GPU there already, as a beginning that many share, there is no other copy."""
    source = pod("b", 960, speculative_tokens=960)

    def dearer(**columns: int) -> float:
        here, roomy = (pod("a", in_flight_requests=4, kv_tokens=size, **columns) for size in (10_000, 0))
        costs = met((source, here))
        return forecast(here, source, request=asked(costs=costs), patience=0.5).price - (
            forecast(roomy, source, request=asked(costs=costs), patience=0.5).price
        )

    lasts = 2.0 + 4 * 0.1
    assert dearer() == pytest.approx(3 * 0.5 * 4 * lasts * 1_000 / 10_000)
    assert dearer(gpu_tokens=400) == pytest.approx(3 * 0.5 * 4 * lasts * 600 / 10_000)
    assert dearer(any_tokens=1_000) == 0.0  # nothing is pulled


def test_computing_at_a_source_holds_up_those_that_wait_for_its_pulls() -> None:
    def price(awaited: int) -> float:
        return forecast(pod("a", awaited=awaited), foresight=1.0).price

    computing = 0.1 + 1.0 + 1.0
    assert price(3) - price(0) == pytest.approx(3 * computing)


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
