"""What holds of every fleet."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorers import Answer, Candidate, Costs, Forecast, PlacementRequest, Prefill, Priors, Pull, pullable_tokens, timed
from scorers.kv_source import same_engine
from scorers.ttft import THRIFT


@st.composite
def candidates(draw: st.DrawFn, number: int = 0) -> Candidate:
    """One of a fleet, in a state that there can be."""
    held = st.just(0) | st.integers(0, 40_000)
    cpu, gpu = draw(held), draw(held)
    unanswered, decoding = draw(st.integers(0, 20)), draw(st.integers(0, 20))
    work = draw(st.integers(0, 40_000)) if unanswered else 0
    pulls = draw(st.integers(0, unanswered))
    coming = draw(st.sampled_from([True, False, False]))
    return Candidate(
        pod=f"http://10.0.0.{number}:8000",
        p2p_host=draw(st.sampled_from([f"10.0.0.{number}"] * 3 + [None])),
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
        awaited=draw(st.integers(0, 20)),
        turnover=draw(st.just(0.0) | st.floats(0, 1)),
        kv_tokens=draw(st.just(0) | st.integers(40_000, 400_000)),
        coming_tokens=draw(st.integers(1, 40_000)) if coming else 0,
        coming_s=draw(st.floats(0, 5)) if coming else 0.0,
        coming_from=f"http://10.0.0.{draw(st.integers(0, 4))}:8000" if coming else None,
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
        "prompt_tokens": st.integers(0, 60_000) | st.integers(20_000, 60_000) | st.none(),
        "block_size": st.sampled_from([16, 64]),
        "model": st.just("m"),
        "pulls": st.sampled_from([True, True, True, False]),
        "pull_floor": st.none() | st.integers(1, 4_096),
        "costs": st.none() | learned(),
    }
    return st.builds(PlacementRequest, **(defaults | fields))


factors = st.floats(0, 3)


class ByHand(NamedTuple):
    """Seconds until the first token, what these cost, what the answer does here, and what it does where most."""

    seconds: float
    price: float
    answer: float
    most: float


class Way(NamedTuple):
    """To have a prompt: what is computed, what that waits for, and what a pull is dearer by than its time."""

    rest: float
    pulling: float = 0.0
    risk_and_use: float = 0.0
    source: Candidate | None = None

    def price(self, worth: float) -> float:
        return worth * self.rest + self.pulling + self.risk_and_use


def served_by(source: Candidate, request: PlacementRequest) -> int:
    """Tokens in the full blocks that it serves of the prompt, of which the last token is computed."""
    most = max(0, (request.prompt_tokens or 0) - 1)
    return min(pullable_tokens(source), most) // request.block_size * request.block_size


def displaced(request: PlacementRequest, candidate: Candidate, decoding: int) -> float:
    """Thrice the seconds of answers there whose blocks a copy takes; 0 of a pod that does not say how many it has."""
    answer, new = (request.costs or Costs()).answer(), (request.prompt_tokens or 0) - candidate.gpu_tokens
    lasts = answer.fixed + answer.request * decoding + answer.context * candidate.in_flight_context
    return 3 * decoding * lasts * new / candidate.kv_tokens if candidate.kv_tokens else 0.0


def by_hand(
    request: PlacementRequest, fleet: Sequence[Candidate], candidate: Candidate, foresight: float, patience: float
) -> ByHand:
    """As the module's head has it, without any regard for time."""
    costs, n = request.costs or Costs(), request.prompt_tokens or 0
    rank, answer = (candidate.pod, candidate.rank), costs.answer()
    prefill = costs.prefill(rank)

    def decoding_on(pod: Candidate) -> int:
        strangers = max(0, (pod.running or 0) - pod.in_flight_requests)
        return pod.in_flight_requests - pod.in_flight_unanswered + strangers

    def waits(pod: Candidate) -> float:
        its, unanswered = costs.prefill((pod.pod, pod.rank)), pod.in_flight_unanswered
        before = its.seconds(pod.in_flight_tokens, pod.in_flight_square, unanswered)
        each = before / unanswered if unanswered else its.fixed
        wait = before - min(pod.progress_s, each) if unanswered else 0.0
        return wait + max(0, (pod.waiting or 0) - pod.in_flight_requests) * each

    def answering(pod: Candidate) -> float:
        """What the answer slows there, and is slowed by."""
        decoding = decoding_on(pod)
        beside = answer.request * (decoding + pod.in_flight_unanswered) + answer.context * pod.in_flight_context
        return patience * (beside + decoding / 2 * (answer.request + answer.context * n))

    unanswered, decoding = candidate.in_flight_unanswered, decoding_on(candidate)
    held = min(max(int(candidate.credit * candidate.any_tokens), candidate.speculative_tokens), max(0, n - 1))
    wait = waits(candidate) + prefill.decode * decoding
    worth = 1 + THRIFT + foresight * (min(12, unanswered) + candidate.awaited) + patience * decoding
    ways = [Way(prefill.seconds(n - held, n * n - held * held))]
    comes = request.pulls and candidate.coming_tokens - held >= (request.pull_floor or request.block_size)
    for source in fleet if request.pulls and not comes else ():
        served = served_by(source, request)
        lead, peer = served - held, (source.pod, source.rank)
        if lead >= (request.pull_floor or request.block_size) and not same_engine(source, candidate):
            its = costs.prefill(peer)
            step_s = its.decode * decoding_on(source)
            if source.in_flight_tokens:
                backlog = its.seconds(source.in_flight_tokens, source.in_flight_square, source.in_flight_unanswered)
                step_s += backlog * min(1.0, 8192 / source.in_flight_tokens)
            share = 1 + max(source.serving, candidate.pulls)
            pulling = costs.pull(peer, rank).seconds(lead * share, step_s, met=costs.met(peer, rank))
            copied = source.speculative_tokens >= served  # what those that wait there have in common with this one
            relief = copied * source.in_flight_unanswered * waits(source) / (1 + source.serving) ** 2
            risk_and_use = max(0.5 * pulling - relief, -pulling)
            ways.append(Way(prefill.seconds(n - served, n * n - served * served), pulling, risk_and_use, source))
    way = min(ways, key=lambda way: worth * way.rest + way.pulling)
    for source in fleet if comes else ():
        had = min(candidate.coming_tokens, pullable_tokens(source), max(0, n - 1)) // request.block_size
        had *= request.block_size
        leads = had - held >= (request.pull_floor or request.block_size) and not same_engine(source, candidate)
        if leads and (source.pod, source.rank) == (candidate.coming_from, candidate.coming_rank):
            joined = Way(prefill.seconds(n - had, n * n - had * had), candidate.coming_s, 0.0, source)
            way = min(way, joined, key=lambda way: way.price(worth))
    price = wait + way.price(worth) + candidate.turnover * ways[0].rest
    price += patience * displaced(request, candidate, decoding) if way.source and not comes else 0.0
    answers = answering(candidate)
    if way.source and way.source.speculative_tokens < held + (request.pull_floor or request.block_size):
        served = served_by(way.source, request)
        more = max(0, decoding_on(way.source) - decoding)
        price += patience * more * prefill.seconds(n - served, n * n - served * served)
        answers = max(answers, answering(way.source))
    return ByHand(wait + way.rest + way.pulling, price, answering(candidate), answers)


@settings(max_examples=300)  # of which some twenty pull
@given(request=requests(), fleet=fleets(most=4), foresight=factors, patience=factors)
def test_it_is_what_the_formula_says(
    request: PlacementRequest, fleet: list[Candidate], foresight: float, patience: float
) -> None:
    found = Forecast(request, fleet, foresight, patience)
    worked_out = [by_hand(request, fleet, candidate, foresight, patience) for candidate in fleet]
    least = min(each.answer for each in worked_out)
    assert found.prices(fleet) == pytest.approx([each.price + each.most - least for each in worked_out])
    assert [found.of(each).seconds for each in fleet] == pytest.approx([each.seconds for each in worked_out])


@given(request=requests(pulls=st.just(True), prompt_tokens=st.integers(1, 60_000)), fleet=fleets(most=16))
def test_of_more_than_four_sources_the_four_are_looked_at_that_are_cheapest_for_who_holds_nothing(
    request: PlacementRequest, fleet: list[Candidate]
) -> None:
    costs, n, size = request.costs or Costs(), request.prompt_tokens or 0, request.block_size
    prefill, pull = costs.usual_prefill(), costs.usual_pull()

    def held(pod: Candidate) -> int:
        return min(max(int(pod.credit * pod.any_tokens), pod.speculative_tokens), n - 1)

    least = min(map(held, fleet)) + (request.pull_floor or size)
    asked: list[float] = []
    for source in fleet:
        served = min(pullable_tokens(source), n - 1) // size * size
        if served >= least:
            step_s = timed(costs, fleet[0], n, (0, 0), source, 1).pulling.step  # type: ignore[union-attr]
            rest = prefill.token * (n - served) + prefill.square * (n * n - served * served)
            asked.append(rest + pull.token * served * (1 + source.serving) + pull.step * step_s)
    offers = Forecast(request, fleet, 1.0, 0.1)._offers
    found = [
        prefill.token * offer.left
        + prefill.square * offer.left_square
        + pull.token * offer.tokens * (1 + offer.source.serving)
        + pull.step * offer.step_s
        for offer in offers
    ]
    assert found == pytest.approx(sorted(asked)[:4])


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
