"""Runs simulations, several at a time, and what happens to a fleet meanwhile."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from loadgen.sim.arms import Arm, arm_named
from loadgen.sim.presets import scenario_named
from loadgen.sim.rows import Row, row
from loadgen.sim.scenarios import Change, Scenario
from loadgen.sim.simulation import Settings, Simulation


class Job(NamedTuple):
    """One simulation, by names; what its request number `explain` was decided by is to be told.

    `traces`: where recorded loads are.
    """

    scenario: str
    arm: str
    seed: int
    explain: int | None = None
    traces: Path | None = None


class Done(NamedTuple):
    """A job's row, and the explanation that it was asked for."""

    row: Row
    explained: dict[str, Any] | None


def run(job: Job) -> Done:
    """Raises ValueError for names or parameters that do not exist. The same job comes to the same row."""
    scenario = scenario_named(job.scenario, job.traces)
    simulation = simulation_of(scenario, arm_named(job.arm), job.seed)
    if job.explain is not None:
        simulation.to_explain = frozenset({job.explain})
    simulation.run(scenario.load(job.seed))
    explained = simulation.explained.get(job.explain) if job.explain is not None else None
    made = row(job.scenario, job.arm, job.seed, simulation, warm_up_s=scenario.warm_up_s)
    return Done(made, explained)


def simulation_of(scenario: Scenario, arm: Arm, seed: int) -> Simulation:
    """The scenario's fleet, and what is going to happen to it, without its load. Raises ValueError as `run` does."""
    settings = Settings(
        profile=scenario.pod_profile(),
        pods=scenario.pods,
        concurrency=scenario.concurrency,
        client_timeout_s=scenario.client_timeout_s,
        met=scenario.met,
        prefill_pods=scenario.prefill_pods,
        delivery=scenario.delivery(),
    )
    simulation = Simulation(settings, arm, seed)
    for change in scenario.timeline:
        simulation.clock.at(change.at, _happening(simulation, change))
    return simulation


def _happening(simulation: Simulation, change: Change) -> Callable[[], None]:
    match change.kind:
        case "add":
            return lambda: simulation.add_pod(change.pod)
        case "lose":
            return lambda: simulation.remove_pod(change.pod)
        case "drain":
            return lambda: simulation.drain_pod(change.pod)
        case "restart":
            return lambda: simulation.restart_pod(change.pod, change.down)
        case "lose_events":
            return lambda: simulation.lose_events(change.pod, change.down)
        case "slow_link":
            return lambda: simulation.slow_link(change.pod, change.down, change.times)


def run_all(jobs: Iterable[Job], processes: int) -> Iterator[Done]:
    """All of them, each as it ends, `processes` at a time."""
    if processes == 1:
        yield from map(run, jobs)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run, job) for job in jobs]):
            yield done.result()
