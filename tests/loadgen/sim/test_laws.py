"""What was measured on real fleets, and a model has to come to: figures as published."""

import pytest
from msgspec.structs import replace

from loadgen.profile import profile_named
from loadgen.sim.arms import arm_named
from loadgen.sim.presets import SCENARIOS
from loadgen.sim.rows import Row, row
from loadgen.sim.scenarios import Arrival, Scenario
from loadgen.sim.simulation import Settings, Simulation

PROFILE = profile_named("gpt-oss-120b-h200")


def simulated(scenario: Scenario, arm: str, seed: int = 1) -> Row:
    settings = Settings(
        profile=scenario.pod_profile(),
        pods=scenario.pods,
        concurrency=scenario.concurrency,
        client_timeout_s=scenario.client_timeout_s,
    )
    simulation = Simulation(settings, arm_named(arm), seed)
    simulation.run(scenario.load(seed))
    return row("", arm, seed, simulation, warm_up_s=scenario.warm_up_s)


def a_part(name: str, *, of: int, seconds: float, warm_up_s: float, **changes: object) -> Scenario:
    """A scenario on a part of its fleet and of its requests, with all of its prefixes."""
    scenario = SCENARIOS[name]
    assert scenario.arrival is not None
    rate = scenario.arrival.rate / of
    pods, requests = scenario.pods // of, int(rate * seconds)
    return replace(scenario, pods=pods, arrival=Arrival(rate=rate), requests=requests, warm_up_s=warm_up_s, **changes)


@pytest.mark.parametrize(("name", "published"), [("pool-uniform", 10.0), ("hot-64", 13.2)])
def test_without_pulls_a_fleet_ends_at_its_recompute_ceiling(name: str, published: float) -> None:
    """Pods ÷ (prefill · share that is not resident), where nothing is kept beside the GPU."""
    only_gpu = {"cpu_blocks": 0}
    alone = a_part(name, of=4, seconds=120, warm_up_s=0.0, profile_changes=only_gpu, client_timeout_s=1e4)
    assert simulated(alone, "random").request_throughput * 4 == pytest.approx(published, rel=0.15)


def test_under_affinity_the_median_request_is_a_hit_and_pulls_almost_never_happen() -> None:
    found = simulated(a_part("pool-uniform", of=1, seconds=60, warm_up_s=30.0), "affinity+pull")
    computed_ms = (PROFILE.request_fixed_ms + PROFILE.step_fixed_ms) + PROFILE.prefill_s(48_256, 0) * 1e3
    assert found.median_ttft_ms < computed_ms / 20
    assert found.pulls < 0.05 * found.completed


def test_prefixes_that_fit_one_pod_are_a_control() -> None:
    """0.31 times its cache: with pulls or without, what is asked for is answered."""
    scenario = a_part("hot-8", of=4, seconds=60, warm_up_s=30.0)
    for arm in ("affinity", "load", "load+pull", "token-load"):
        found = simulated(scenario, arm)
        assert found.request_throughput == pytest.approx(12.0, rel=0.05)
        assert found.median_ttft_ms < 60


def test_on_conversations_about_documents_the_published_load_arms_come_in_their_order() -> None:
    scenario = replace(SCENARIOS["docqa-8"], dataset={**(SCENARIOS["docqa-8"].dataset or {}), "conversations": 64})
    rates = [simulated(scenario, arm).request_throughput for arm in ("load", "load+pull", "token-load")]
    assert rates[0] * 1.3 < rates[1] < rates[2]
