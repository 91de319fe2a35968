"""What a decision expects of each pod, from what has been learned: in columns, sources and explanations."""

from array import array
from collections.abc import Sequence
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from config.schema import P2P, Breaker, Placement, PodConfig
from gateway.decision import Ask, Decider, Decision
from gateway.explained import explanation
from gateway.forecasts import first_token_s
from gateway.openai import Peek
from gateway.pod import Load, Model, Pod
from gateway.pods import PodTable
from gateway.tokens import Prompt, TokenIds
from index import BlockStored, RadixIndex, Tier
from scorers import (
    Candidate,
    Costs,
    ExpectedSource,
    Latency,
    PlacementRequest,
    Prefill,
    PrefixAffinityFilter,
    Priors,
    Pull,
    WeightedSampling,
)

BLOCK = 16
QUICK_LINK = Pull(fixed=0.01, token=1e-6, step=0.05, setup=0.001)
SLOW_LINK = Pull(fixed=5.0, token=1e-4, step=1.5, setup=0.001)
PREFILL = Prefill(fixed=0.02, token=1e-4, square=1e-10, decode=1e-4)


class Two:
    """Two pods as a gateway knows them, whose costs are as given; the second is busy if asked for."""

    def __init__(self, placement: Placement, p2p: P2P, link: Pull = QUICK_LINK) -> None:
        self.now = 100.0
        self.pods = [
            Pod(PodConfig(url=f"http://10.0.0.{number}:8000"), p2p=(f"10.0.0.{number}", 5710), breaker=Breaker())
            for number in range(2)
        ]
        for pod in self.pods:
            pod.joined({"m": Model("m", "m")}, (0,))
            pod.load, pod.load_at = {0: Load(0, 0, 0.0)}, self.now
        self.index = RadixIndex()
        for pod in self.pods:
            self.index.add_publisher(pod.publishers[0], "m")
        self.table = PodTable(self.pods, max_load_age=10.0, clock=lambda: self.now)
        self.table.costs = Costs(Priors(prefill=PREFILL, pull=link))
        self.decider = Decider(self.index, self.table, placement, p2p, coordinate=Random(1).random)

    def hold(self, pod: int, tokens: Sequence[int]) -> None:
        """The pod has these, in both tiers."""
        whole = len(tokens) // BLOCK
        hashes = [1000 * (pod + 1) + number for number in range(whole)]
        held = array("I", tokens[: whole * BLOCK])
        stored = [BlockStored(hashes, None, held, BLOCK, tier) for tier in (Tier.GPU, Tier.CPU)]
        self.index.apply(self.pods[pod].publishers[0], stored)

    def busy(self, pod: int, tokens: int) -> None:
        """A prompt of so many tokens is being computed there."""
        self.table.leased(self.pods[pod], 0, tokens, square=tokens * tokens)

    def decide(self, prompt: Sequence[int] = ()) -> Decision:
        given = Prompt((TokenIds("I", list(prompt)),), "given") if prompt else Prompt((), "none")
        return self.decider.decide(Ask("r", Peek(model="m"), "m", given))


PROMPT = list(range(1000, 1000 + 4000))
FIRST, SECOND = "http://10.0.0.0:8000", "http://10.0.0.1:8000"


def chosen(decision: Decision) -> str:
    return decision.chosen.pod


def test_latency_prefers_the_pod_whose_first_token_is_expected_within_the_objective() -> None:
    two = Two(Placement(scorers=(Latency(ttft_ms=1000),)), P2P(enabled=False))
    two.busy(0, 20_000)  # two seconds of work
    decision = two.decide(PROMPT)
    late, soon = (candidate.expected_ttft for candidate in decision.candidates)
    assert late is not None
    assert soon == pytest.approx(PREFILL.seconds(4000, 4000**2))
    assert late > soon + 2.0
    assert (chosen(decision), decision.placed.scores["latency"][0]) == (SECOND, 0.0)
    assert decision.placed.scores["latency"][1] == pytest.approx(1 - soon)


def test_what_a_request_would_compute_at_best_is_all_of_it_where_no_pod_is_ready() -> None:
    two = Two(Placement(), P2P())
    two.hold(0, PROMPT)
    asked = Ask("r", Peek(model="m"), "m", Prompt((TokenIds("I", PROMPT),), "given"))
    assert two.decider.uncached_at_best(asked) == 0
    for pod in two.pods:
        pod.left("for a test")
    assert two.decider.uncached_at_best(asked) == len(PROMPT)


def test_where_the_prompt_is_not_known_no_first_token_is_expected_anywhere() -> None:
    two = Two(Placement(scorers=(Latency(),)), P2P())
    two.busy(0, 20_000)
    decision = two.decide()
    assert [candidate.expected_ttft for candidate in decision.candidates] == [None, None]
    assert decision.placed.scores["latency"] == [0.5, 0.5]
    assert decision.predicted_s is None


@pytest.mark.parametrize(("ahead", "kept"), [(0, [True, False]), (2_000, [True, False]), (30_000, [True, True])])
def test_holders_are_kept_while_they_are_not_much_slower(ahead: int, kept: list[bool]) -> None:
    held = PrefixAffinityFilter(share=0.8, ttft_penalty_ms=1000)
    two = Two(Placement(filters=(held,)), P2P(enabled=False))
    two.hold(0, PROMPT)
    if ahead:
        two.busy(0, ahead)
    dropped = two.decide(PROMPT).placed.dropped or (None, None)
    assert [each is None for each in dropped] == kept


def test_with_pulls_a_first_token_is_expected_as_soon_as_the_quicker_way_brings_it() -> None:
    columns = []
    for enabled in (True, False):
        two = Two(Placement(scorers=(Latency(),)), P2P(enabled=enabled))
        two.hold(0, PROMPT)
        columns.append([candidate.expected_ttft for candidate in two.decide(PROMPT).candidates])
    (_, pulling), (_, computing) = columns
    assert pulling is not None
    assert computing is not None
    assert pulling < computing / 3


@pytest.mark.parametrize("source", [WeightedSampling(), ExpectedSource()], ids=lambda rule: rule.name)
@pytest.mark.parametrize(("link", "reason"), [(QUICK_LINK, "named"), (SLOW_LINK, "cost")], ids=["quick", "slow"])
def test_with_auto_costs_say_whether_a_pull_pays(source: Any, link: Pull, reason: str) -> None:
    two = Two(Placement(), P2P(source=source), link)
    two.hold(1, PROMPT)
    two.table.costs.allowance_s = 0.0  # nothing is tried
    two.busy(1, 60_000)
    decision = two.decide(PROMPT)
    assert (chosen(decision), decision.source_reason) == (FIRST, reason)


@pytest.mark.parametrize("source", [WeightedSampling(), ExpectedSource()], ids=lambda rule: rule.name)
def test_what_pulls_are_seen_to_take_changes_whether_they_are_named(source: Any) -> None:
    two = Two(Placement(), P2P(source=source), QUICK_LINK)
    two.hold(1, PROMPT)
    two.busy(1, 200_000)  # which takes longer than all that follows
    two.table.costs.allowance_s = 0.0
    assert two.decide(PROMPT).source_reason == "named"
    for _ in range(400):
        two.now += 0.03
        two.table.costs.pulled((SECOND, 0), (FIRST, 0), Pull(1.0, 4000.0, 0.0, 0.0), 3.0, two.now)
    assert two.decide(PROMPT).source_reason == "cost"


def test_a_number_is_the_least_lead_whatever_a_pull_costs_where_sources_are_sampled() -> None:
    for delta, reason in ((2048, "named"), (8192, "below-floor")):
        two = Two(Placement(), P2P(source=WeightedSampling(), min_cached_token_delta=delta), SLOW_LINK)
        two.hold(1, PROMPT)
        two.busy(1, 60_000)
        assert two.decide(PROMPT).source_reason == reason


def test_an_explanation_says_when_each_pods_first_token_would_come_and_from_whom_it_would_pull() -> None:
    two = Two(Placement(), P2P())
    two.hold(1, PROMPT)
    two.busy(1, 60_000)
    decision = two.decide(PROMPT)
    told = explanation(decision)
    first, second = told["candidates"]
    assert (told["chosen"], told["source"]["pod"], told["source_reason"]) == (FIRST, SECOND, "named")
    assert (first["predicted_source"], second["predicted_source"]) == (SECOND, None)
    assert first["predicted_ttft_ms"] == round(decision.expected_s * 1000, 1)
    assert second["predicted_ttft_ms"] > 6000  # what it computes comes first


def test_an_explanation_without_tokens_predicts_nothing() -> None:
    told = explanation(Two(Placement(), P2P()).decide())
    assert [each["predicted_ttft_ms"] for each in told["candidates"]] == [None, None]
    assert [each["predicted_source"] for each in told["candidates"]] == [None, None]


COUNTS = st.integers(0, 20)


@given(data=st.data(), tokens=st.integers(1, 50_000))
def test_what_is_expected_with_a_given_source_is_what_the_forecast_expects_where_it_is_that_one(
    data: st.DataObject, tokens: int
) -> None:
    def candidate(number: int) -> Candidate:
        requests, unanswered = data.draw(COUNTS), data.draw(st.integers(0, 5))
        held = data.draw(st.integers(0, tokens)) // BLOCK * BLOCK
        return Candidate(
            pod=f"http://{number}",
            p2p_host=str(number),
            p2p_port=1,
            cpu_tokens=held,
            any_tokens=held,
            credit=data.draw(st.sampled_from([0.5, 1.0])),
            waiting=data.draw(COUNTS),
            running=data.draw(COUNTS),
            in_flight_requests=requests + unanswered,
            in_flight_unanswered=unanswered,
            in_flight_tokens=1000 * unanswered,
            in_flight_square=1_000_000 * unanswered,
            progress_s=data.draw(st.floats(0, 1)),
            pulls=data.draw(COUNTS),
            serving=data.draw(COUNTS),
        )

    candidates = [candidate(number) for number in range(3)]
    costs = Costs(Priors(prefill=PREFILL, pull=data.draw(st.sampled_from([QUICK_LINK, SLOW_LINK]))))
    request = PlacementRequest(
        request_id="r", prompt_tokens=tokens, block_size=BLOCK, model="m", pulls=data.draw(st.booleans()), costs=costs
    )
    costs.expected(0.0, 0.001)  # as long as the allowance is full, nothing is expected where nobody has anything
    decided = ExpectedSource().choose(request, candidates, candidates[0])
    given_source = first_token_s(request, candidates[0], decided.source)
    assert given_source == pytest.approx(decided.expected_s, rel=1e-6, abs=1e-9)
