"""What a gateway learns of a modelled fleet's costs, against what the profile says, and what it does with it."""

import statistics
from array import array
from collections.abc import Iterator
from math import ceil
from random import Random
from typing import Any, Final

import pytest
from msgspec.structs import replace

from gateway.tokens import TokenIds
from index import BlockStored, Tier
from loadgen.profile import PROFILES
from loadgen.sim.arms import ARMS
from loadgen.sim.presets import SCENARIOS
from loadgen.sim.rows import Row, row
from loadgen.sim.simulation import Outcome, Settings, Simulation
from loadgen.workload import Piece, Request
from scorers import Costs, Prefill, Priors, Pull

PROFILE: Final = PROFILES["gpt-oss-120b-h200"]
PREFILLED: Final = (4_000, 16_000, 48_000)
PULLED: Final = (16_000, 48_000)
RIGHT: Final = Priors(prefill=Prefill(0.024, 2.5e-5, 3.13e-10, 2e-4), pull=Pull(0.002, 4.1e-6, 1.0, 0.001))
"""What the profile costs, by and large."""


def prefill_s(tokens: int) -> float:
    """By the profile: a prompt that is alone, of several steps where it is long."""
    steps = ceil(tokens / PROFILE.token_budget)
    return PROFILE.ms(PROFILE.request_fixed_ms + steps * PROFILE.step_fixed_ms) + PROFILE.prefill_s(tokens, 0)


def pull_s(tokens: int) -> float:
    """By the profile: between idle pods that have met."""
    return PROFILE.ms(PROFILE.pull_fixed_ms) + PROFILE.pull_s(tokens) + PROFILE.restore_s(tokens)


def off_by(factor: float) -> Priors:
    return Priors(
        prefill=Prefill(*(factor * each for each in RIGHT.prefill)),
        pull=Pull(*(factor * each for each in RIGHT.pull)),
    )


def documents(requests: int, *, rate: float, seed: int, each: int = 4) -> Iterator[Request]:
    """Of 4,000 to 48,000 tokens, for a while each with some questions; what was asked about before comes no more."""
    rng = Random(seed)
    lengths = [rng.choice((4_000, 8_000, 16_000, 32_000, 48_000)) for _ in range(requests // each)]
    turns = sorted((number // each + rng.uniform(0, 12), number // each) for number in range(len(lengths) * each))
    at = 0.0
    for number, (_, document) in enumerate(turns):
        at += rng.expovariate(rate)
        question = Piece(100_000 + number, rng.randint(50, 1_500))
        yield Request(
            number=number,
            session=str(number),
            prompt=(Piece(document, lengths[document]), question),
            output_tokens=rng.randint(1, 40),
            at=at,
        )


def simulation(arm: str, *, pods: int, costs: Costs | None = None, seed: int = 1) -> Simulation:
    made = Simulation(Settings(profile=PROFILE, pods=pods), ARMS[arm], seed)
    if costs is not None:
        made.fleet.table.costs = costs
    return made


def mean_ttft(outcomes: list[Outcome]) -> float:
    assert not any(outcome.error for outcome in outcomes)
    return statistics.fmean((outcome.first or 0.0) - outcome.due for outcome in outcomes)


# --- what is learned


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("factor", [10.0, 1.0, 0.1])
def test_what_a_profile_costs_is_found_within_200_requests_from_beliefs_that_are_off_tenfold(
    factor: float, seed: int
) -> None:
    run = simulation("load+pull", pods=4, costs=Costs(off_by(factor)), seed=seed)
    run.run(documents(200, rate=3.0, seed=seed))
    costs, now = run.fleet.table.costs, run.clock.now
    ranks = [(pod.entry.url, 0) for pod in run.fleet.pods.values()]
    for tokens in PREFILLED:
        for price in (costs.usual_prefill(), *map(costs.prefill, ranks)):
            assert price.seconds(tokens, tokens**2) == pytest.approx(prefill_s(tokens), rel=0.25)
    pairs = [pair.pull for pair in costs.pairs(now) if pair.evidence >= 3]
    assert len(pairs) >= 4
    for tokens in PULLED:
        found = [pull.seconds(tokens, 0.0) for pull in (costs.usual_pull(), *pairs)]
        assert found[0] == pytest.approx(pull_s(tokens), rel=0.35)
        assert statistics.median(found) == pytest.approx(pull_s(tokens), rel=0.35)


def test_a_link_that_gets_three_times_slower_is_followed_within_100_pulls_and_said_to_be_slow() -> None:
    """Of two pods one begins to pull at a third of the speed; the other does not."""
    run = simulation("load+pull", pods=2)
    costs, (slow, steady) = run.fleet.table.costs, run.fleet.pods.values()
    link = (steady.entry.url, 0), (slow.entry.url, 0)
    told: list[tuple[float, bool]] = []
    pulled = costs.pulled

    def counted(source: Any, consumer: Any, terms: Pull, seconds: float, now: float, beside: float) -> None:
        pulled(source, consumer, terms, seconds, now, beside)
        if (source, consumer) == link:
            told.append((now, costs.slowed(*link)))

    costs.pulled = counted  # type: ignore[method-assign]
    changed_at = 400.0
    # Over all, a third of the speed: the copy to the GPU, which is part of a pull, stays as it is.
    copy_us = PROFILE.restore_s(1) * 1e6
    thrice = replace(
        PROFILE,
        pull_fixed_ms=3 * PROFILE.pull_fixed_ms,
        pull_us_per_token=3 * PROFILE.pull_us_per_token + 2 * copy_us,
    )
    run.clock.at(changed_at, lambda: setattr(slow.loader, "profile", thrice))
    run.run(documents(1_620, rate=1.5, seed=1))

    before = [slowed for at, slowed in told if at < changed_at]
    after = [slowed for at, slowed in told if at >= changed_at]
    assert len(before) > 40
    assert 80 < len(after) <= 100
    assert (any(before), any(after)) == (False, True)
    for tokens in PULLED:
        assert costs.pull(*link).seconds(tokens, 0.0) == pytest.approx(3 * pull_s(tokens), rel=0.25)
        assert costs.pull(*reversed(link)).seconds(tokens, 0.0) == pytest.approx(pull_s(tokens), rel=0.35)


# --- what is done with it


class Untried(Costs):
    """Nothing may be spent on tries."""

    def expected(self, seconds: float, tried_s: float) -> None:
        del seconds
        assert tried_s == 0.0
        self.allowance_s = 0.0


class Counted(Costs):
    tries = 0

    def expected(self, seconds: float, tried_s: float) -> None:
        self.tries += tried_s > 0.0
        super().expected(seconds, tried_s)


@pytest.mark.parametrize("rate", [6.0, 10.0])
def test_to_try_what_pulls_cost_takes_less_than_a_hundredth_of_the_time_to_the_first_token(rate: float) -> None:
    # So many requests that a mean tells a hundredth: another decision early on leads to another queue for a while.
    means: dict[type[Costs], list[float]] = {Untried: [], Counted: []}
    tries = 0
    for seed in range(1, 6):
        for kind, found in means.items():
            costs = kind(RIGHT)
            costs.expected(0.0, 0.0)
            run = simulation("expected-ttft+pull", pods=4, costs=costs, seed=seed)
            found.append(mean_ttft(run.run(documents(1_600, rate=rate, seed=seed, each=8))))
            tries += costs.tries if isinstance(costs, Counted) else 0
    assert tries > 0
    assert statistics.fmean(means[Counted]) <= 1.01 * statistics.fmean(means[Untried])


@pytest.mark.parametrize("held", [True, False])
def test_two_gateways_that_do_not_see_each_others_requests_spread_a_burst_over_the_fleet(held: bool) -> None:
    """64 requests come at once, in turn to one and the other: for a prefix that all pods hold, or for new ones."""
    prefix, size = range(8_000), PROFILE.block_size
    gateways = [simulation("expected-ttft+pull", pods=8, seed=seed).fleet for seed in (1, 2)]
    for fleet in gateways if held else ():
        for pod in fleet.pods.values():
            blocks = range(10_000, 10_000 + len(prefix) // size)
            fleet.index.apply(pod.publisher, [BlockStored(blocks, None, array("I", prefix), size, Tier.GPU)])
    went: list[int] = []
    for number in range(64):
        fleet = gateways[number % 2]
        prompt = TokenIds("I", [*(prefix if held else ()), *range(1_000_000 + 500 * number, 1_000_500 + 500 * number)])
        decision, pod, _ = fleet.decide(str(number), prompt, str(number))
        assert (max(each.any_tokens for each in decision.candidates) > 0) == held
        decision.leased(fleet.table)
        went.append(pod.number)
    share = len(went) / 8
    assert len(set(went)) == 8
    assert max(map(went.count, went)) <= 2 * share


def rows(scenario: str, arm: str, seeds: range, *, warm_up_s: float | None = None, **changes: Any) -> list[Row]:
    made, found = replace(SCENARIOS[scenario], **changes), []
    settings = Settings(
        profile=made.pod_profile(),
        pods=made.pods,
        concurrency=made.concurrency,
        client_timeout_s=made.client_timeout_s,
        met=made.met,
    )
    for seed in seeds:
        run = Simulation(settings, ARMS[arm], seed)
        run.run(made.load(seed))
        found.append(row(scenario, arm, seed, run, warm_up_s=made.warm_up_s if warm_up_s is None else warm_up_s))
    return found


@pytest.mark.parametrize(("rate", "least"), [(12, 0.95), (24, 0.95), (48, 0.0)])
def test_where_a_pod_holds_all_that_is_hot_pulls_change_next_to_nothing(rate: int, least: float) -> None:
    """At the full rate who is popular has more to answer than a pod does at ease, and another copy may help."""
    seeds, arrival = range(1, 4), replace(SCENARIOS["hot-8"].arrival, rate=rate)
    pulling, computing = (
        statistics.fmean(each.mean_ttft_ms for each in found)
        for found in (
            rows("hot-8", arm, seeds, warm_up_s=10.0, requests=1_200, arrival=arrival)
            for arm in ("expected-ttft+pull", "expected-ttft")
        )
    )
    assert least * computing <= pulling <= 1.05 * computing


@pytest.mark.parametrize(
    ("scenario", "changes"),
    [
        ("docqa-8", {}),
        ("pool-uniform", {"requests": 24 * 50, "warm_up_s": 25.0}),
        ("hot-64", {"requests": 48 * 25}),
    ],
)
def test_to_pull_is_at_most_3_in_100_worse_than_to_compute_for_one_in_ten(
    scenario: str, changes: dict[str, Any]
) -> None:
    seeds = range(1, 4)
    pulling, computing = (
        statistics.median(each.p90_ttft_ms for each in rows(scenario, arm, seeds, **changes))
        for arm in ("expected-ttft+pull", "expected-ttft")
    )
    assert pulling <= 1.03 * computing
