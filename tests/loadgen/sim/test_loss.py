"""Fleets whose events do not all arrive."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from loadgen.sim.arms import arm_named
from loadgen.sim.life import Outcome
from loadgen.sim.presets import SCENARIOS
from loadgen.sim.rows import Row, row
from loadgen.sim.run import Job, run
from loadgen.sim.scenarios import Scenario
from loadgen.sim.simulation import Settings, Simulation

AGENTS = replace(SCENARIOS["agentic"], dataset={**SCENARIOS["agentic"].dataset, "sessions": 25})
CHATS = replace(SCENARIOS["drain"], timeline=(), requests=900, warm_up_s=0.0)


def simulated(scenario: Scenario, arm: str = "affinity") -> tuple[Row, dict[int, Outcome]]:
    settings = Settings(profile=scenario.pod_profile(), pods=scenario.pods, delivery=scenario.delivery())
    simulation = Simulation(settings, arm_named(arm), seed=1)
    outcomes = simulation.run(scenario.load(1))
    return row("", arm, 1, simulation), {outcome.number: outcome for outcome in outcomes}


def test_with_replay_a_loss_of_some_events_changes_next_to_nothing() -> None:
    (whole, placed), (lossy, placed_lossy) = simulated(CHATS), simulated(replace(CHATS, event_loss=0.05))
    assert (whole.event_gaps, whole.lost_batches) == (0, 0)
    assert lossy.event_gaps > 50
    assert lossy.lost_batches == 0
    assert (lossy.completed, lossy.failed) == (900, 0)
    assert lossy.cached_share == pytest.approx(whole.cached_share, abs=0.01)
    same = sum(placed[number].pod == placed_lossy[number].pod for number in placed)
    assert same >= 0.95 * 900


@pytest.mark.parametrize("arm", ["affinity", "affinity+pull"])
def test_without_replay_a_loss_of_some_events_costs_few_hits(arm: str) -> None:
    (whole, _), (lossy, _) = simulated(CHATS, arm), simulated(replace(CHATS, event_loss=0.05, event_replay=False), arm)
    assert lossy.lost_batches > 50
    assert (lossy.completed, lossy.failed) == (900, 0)
    assert lossy.cached_share == pytest.approx(whole.cached_share, abs=0.05)


@pytest.mark.parametrize("arm", ["affinity", "load+pull"])
def test_it_costs_few_hits_where_nearly_all_of_a_prompt_is_pulled(arm: str) -> None:
    (whole, _), (lossy, _) = (
        simulated(AGENTS, arm),
        simulated(replace(AGENTS, event_loss=0.05, event_replay=False), arm),
    )
    assert lossy.lost_batches > 50
    assert lossy.cached_share == pytest.approx(whole.cached_share, abs=0.05)


def test_a_pod_whose_events_are_lost_for_a_while_is_known_again_by_a_replay_alone(tmp_path: Path) -> None:
    """Sessions go on finding what they said before; without a replay port they cannot."""
    text = """
pods: 3
profile: gpt-oss-120b-h200
dataset: {type: chat, system_tokens: 4000, question_tokens: 1000, turns: 12, think: 3}
arrival: {rate: 1}
requests: 400
event_replay: REPLAY
event_delay_ms: {type: uniform, low: 2, high: 20}
timeline:
  - {at: 20, kind: lose_events, pod: 0, down: 10}
"""
    rows = {}
    for replay in ("true", "false"):
        path = tmp_path / f"{replay}.yaml"
        path.write_text(text.replace("REPLAY", replay))
        rows[replay] = run(Job(str(path), "affinity", 1)).row
    assert (rows["true"].event_gaps, rows["true"].lost_batches) == (1, 0)
    assert (rows["false"].event_gaps, rows["false"].completed) == (1, 400)
    assert rows["false"].lost_batches > 20
    assert rows["false"].cached_share < rows["true"].cached_share


@pytest.mark.parametrize(
    "key", ["event_loss: 1.01", "event_delay_ms: -1", "event_delay_ms: {type: uniform, low: -2, high: 3}"]
)
def test_what_cannot_be_is_refused(key: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(f"pods: 1\ndataset: {{type: random}}\nrequests: 3\n{key}\n")
    with pytest.raises(ValueError, match=key.partition(":")[0]):
        run(Job(str(path), "affinity", 1))
