from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Answer, Candidate, Costs, ExpectedTtft, PlacementRequest, Prefill, Priors, Pull, Softmax, place

PRIORS = Priors(prefill=Prefill(0.1, 1e-3, 1e-6, 0.01), pull=Pull(0.2, 1e-4, 2.0, 1.0), answer=Answer(2.0, 0.1, 1e-5))


def asked(tokens: int | None = 1_000, **fields: Any) -> PlacementRequest:
    defaults: dict[str, Any] = {"request_id": "r", "block_size": 16, "model": "m", "costs": Costs(PRIORS)}
    return PlacementRequest(prompt_tokens=tokens, **(defaults | fields))


def score(*candidates: Candidate, request: PlacementRequest | None = None, **parameters: Any) -> list[float]:
    return ExpectedTtft(**parameters).score(request or asked(), candidates)


def test_a_score_is_how_much_dearer_than_the_best_it_is() -> None:
    """Prices: 1.05 · 2.1 s to compute it all, 1.05 · 1.54 s to compute 600 of the 1,000 tokens."""
    whole, part, slack = 1.05 * 2.1, 1.05 * 1.54, 0.005
    found = score(Candidate(pod="a"), Candidate(pod="b", any_tokens=400))
    assert found == pytest.approx([(part + slack) / (whole + slack), 1.0])


def test_slack_makes_small_differences_smaller() -> None:
    near = [Candidate(pod="a"), Candidate(pod="b", any_tokens=16)]
    assert score(*near, request=asked(32), slack_ms=1000.0)[0] > 0.98 > score(*near, request=asked(32))[0]


def test_foresight_and_patience_are_what_others_are_worth() -> None:
    """One would be quicker where two wait whose prompts are short than where nobody does and nothing is held."""
    busy = Candidate(
        pod="a", any_tokens=600, in_flight_requests=2, in_flight_unanswered=2, in_flight_tokens=100, in_flight_square=0
    )
    idle = Candidate(pod="b")
    assert score(busy, idle, foresight=0.0)[0] == 1.0
    assert score(busy, idle)[1] == 1.0
    decoding = Candidate(pod="a", any_tokens=600, in_flight_requests=20)
    assert score(decoding, idle, patience=0.0)[0] == 1.0
    assert score(decoding, idle, patience=1.0)[1] == 1.0


def test_who_can_pull_is_nearly_as_good_as_who_holds_it() -> None:
    holder = Candidate(pod="a", p2p_host="a", p2p_port=1, any_tokens=960, cpu_tokens=960)
    other = Candidate(pod="b", p2p_host="b", p2p_port=1)
    request = asked(costs=Costs(Priors(prefill=PRIORS.prefill, pull=Pull(1e-3, 1e-6, 1e-3, 1e-3))))
    assert score(holder, other, request=msgspec.structs.replace(request, pulls=True))[1] > 0.95
    assert score(holder, other, request=request)[1] < 0.2


def test_without_costs_it_goes_by_what_is_usual() -> None:
    request = msgspec.structs.replace(asked(), costs=None)
    assert score(Candidate(pod="a"), Candidate(pod="b", any_tokens=960), request=request)[1] == 1.0
    assert score(Candidate(pod="a", in_flight_unanswered=1, in_flight_requests=1), Candidate(pod="b"))[1] == 1.0


def test_a_prompt_of_unknown_length_goes_by_load() -> None:
    loaded = Candidate(pod="a", any_tokens=960, in_flight_requests=1, in_flight_unanswered=1, in_flight_tokens=500)
    assert score(loaded, Candidate(pod="b"), request=asked(None))[1] == 1.0


def test_of_nobody_there_are_no_scores() -> None:
    assert score() == []


@pytest.mark.parametrize("parameters", [{"foresight": -0.1}, {"patience": 100.1}, {"foresight": float("nan")}])
def test_a_factor_out_of_range_is_refused(parameters: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"foresight and patience must be in 0 … 100"):
        ExpectedTtft(**parameters)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "expected-ttft", **parameters}, type=ExpectedTtft)


@pytest.mark.parametrize("slack_ms", [0.0, -1.0, float("nan"), float("inf")])
def test_a_slack_that_is_none_is_refused(slack_ms: float) -> None:
    with pytest.raises(ValueError, match="slack_ms must be finite and > 0"):
        ExpectedTtft(slack_ms=slack_ms)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "expected-ttft", "slack_ms": slack_ms}, type=ExpectedTtft)


@pytest.mark.parametrize("pods", [2, 8, 64])
def test_a_burst_that_sees_equal_pods_spreads_over_them(pods: int) -> None:
    """As with several gateways, none of which sees what the others have placed."""
    fleet = [Candidate(pod=f"http://10.0.0.{number}:8000", any_tokens=400) for number in range(pods)]
    rng = Random(1)
    gateways = [place(asked(), fleet, [ExpectedTtft()], Softmax(), coordinate=rng.random()) for _ in range(16 * pods)]
    went = Counter(placed.chosen for placed in gateways)
    assert len(went) == pods
    assert max(went.values()) <= 2 * 16


@given(
    load=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 10_000)), min_size=1, max_size=8),
    tokens=st.none() | st.integers(0, 100_000),
)
def test_the_best_scores_1_and_none_0(load: list[tuple[int, int, int]], tokens: int | None) -> None:
    fleet = [
        Candidate(
            pod=f"p{number}",
            any_tokens=held,
            in_flight_requests=unanswered + decoding,
            in_flight_unanswered=unanswered,
            in_flight_tokens=1_000 * unanswered,
        )
        for number, (unanswered, decoding, held) in enumerate(load)
    ]
    found = score(*fleet, request=asked(tokens))
    assert max(found) == 1.0
    assert min(found) > 0.0
