import pytest

from scorers import Costs, Forecast, Prefill, Pull, timed
from scorers.samples import Timed
from scorers.ttft import THRIFT
from tests.scorers.forecasts import PRIORS, asked, forecast, pod

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
    assert found.price == pytest.approx(1.5 * 1.296 + 1.05 * 0.2184 + 0.5 * 2.1)
    assert (found.source, found.seconds) == (peer, pytest.approx(1.296 + 0.2184))
    assert forecast(peer).price == pytest.approx((1.05 + 0.25) * forecast(peer).seconds)


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
