"""Small simulated fleets, their loads, and what has to be so when a load has ended."""

from collections.abc import Sequence

from index import Tier
from loadgen.profile import PROFILES, PodProfile
from loadgen.sim.arms import ARMS, Arm
from loadgen.sim.life import Outcome
from loadgen.sim.simulation import Settings, Simulation
from loadgen.workload import Piece, Request
from tests.loadgen.sim.pods import nothing_in_use

DEMO = PROFILES["demo"]


def asked(number: int, at: float = 0.0, *, prompt: int = 100, output: int = 5, seed: int | None = None) -> Request:
    piece = Piece(number if seed is None else seed, prompt)
    return Request(number=number, session=str(number), prompt=(piece,), output_tokens=output, at=at)


def simulation(
    pods: int = 2,
    *,
    profile: PodProfile = DEMO,
    arm: str | Arm = "token-load",
    concurrency: int | None = None,
    timeout_s: float = 600.0,
    prefill_pods: int = 0,
) -> Simulation:
    settings = Settings(
        profile=profile, pods=pods, concurrency=concurrency, client_timeout_s=timeout_s, prefill_pods=prefill_pods
    )
    return Simulation(settings, ARMS[arm] if isinstance(arm, str) else arm, seed=1)


def by_number(outcomes: Sequence[Outcome]) -> dict[int, Outcome]:
    """All of them, each of which is there once."""
    found = {outcome.number: outcome for outcome in outcomes}
    assert len(found) == len(outcomes)
    return found


def all_freed(simulation: Simulation) -> None:
    """Nothing is under way anywhere, and the gateway's books say so; its index holds what the pods hold."""
    simulation.clock.run(simulation.clock.now + 5.0)
    assert not simulation._under_way
    for pod in simulation.fleet.pods.values():
        assert (pod.engine.waiting, pod.engine.running) == (0, 0)
        nothing_in_use(pod.engine.memory)
        assert (pod.entry.in_flight[0].requests, pod.entry.in_flight[0].tokens) == (0, 0)
        memory = pod.engine.memory
        held = {Tier.GPU: memory.gpu.idle + 1, Tier.CPU: len(memory.cpu)}  # and the prompt that tells of a block size
        assert simulation.fleet.index.blocks(pod.publisher) == held
    assert simulation.fleet.index.publishers() == tuple(pod.publisher for pod in simulation.fleet.pods.values())
    simulation.fleet.index.check_invariants()
