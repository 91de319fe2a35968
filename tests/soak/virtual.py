"""A fleet in virtual time to which something happens all the time, and what has to be so when that has ended.

Pods are lost and come back, drain, are added, tell nothing of their blocks for a while, and have slow links, as a seed
decides. The gateway's part is its own: its pod table, index, decisions and leases.
"""

from collections import Counter
from collections.abc import Iterator
from random import Random
from time import perf_counter
from typing import Final

import msgspec
from msgspec.structs import replace

from loadgen.sim.arms import arm_named
from loadgen.sim.life import Outcome
from loadgen.sim.run import simulation_of
from loadgen.sim.scenarios import Arrival, Change, Scenario
from loadgen.sim.simulation import Simulation
from loadgen.workload.datasets.distributions import Uniform
from tests.loadgen.sim.fleets import all_freed

_CALM_S: Final = 60.0  # before the first fault, and after the last one
_RESUME_S: Final = 60.0  # from a fault's end to the next pull anywhere in the fleet
_LEFT: Final = 2  # pods, whatever happens
_BY_RULE: Final = (
    "load+pull"  # who leads is pulled from; the other arms pull where that is quicker, which it need not be
)
_FLEET: Final = Scenario(
    pods=4,
    dataset={
        "type": "chat",
        "system_tokens": 4_000,
        "question_tokens": {"type": "uniform", "low": 1_000, "high": 3_000},
        "turns": 10,
        "think": {"type": "lognormal", "median": 15, "mean": 20},
    },
    event_delay_ms=Uniform(low=2.0, high=20.0),
)
_SESSIONS_A_SECOND: Final = 0.5
_TURNS: Final = 10


class Soaked(msgspec.Struct, kw_only=True):
    """What came of one fleet. `wrong`: what must not be.

    `cut_off`: requests whose pod was lost while they were on it, before and after their first token: the model asks no
    other pod. `resumed_s`: from each fault's end to the next pull, the longest.
    """

    arm: str
    seed: int
    minutes: float
    faults: dict[str, int]
    requests: int
    answered: int
    cut_off: tuple[int, int]
    pulls: int
    pulled_tokens: int
    resumed_s: float
    took_s: float
    wrong: list[str] = []


def faults(rng: Random, seconds: float, pods: int) -> Iterator[Change]:
    """What happens to a fleet, in the order of time. Never to fewer than two pods, and to each one thing at a time."""
    busy = dict.fromkeys(range(pods), 0.0)  # pod → when it is as before
    kinds = ("restart", "restart", "drain", "slow_link", "lose_events")
    now = _CALM_S
    while now < seconds - _CALM_S:
        free = [pod for pod, until in busy.items() if until <= now]
        if len(free) > _LEFT:
            kind, pod, down = rng.choice(kinds), rng.choice(free), rng.uniform(5.0, 40.0)
            yield Change(at=now, kind=kind, pod=pod, down=down, times=rng.uniform(5.0, 100.0))  # type: ignore[arg-type]
            busy[pod] = now + down + 5.0
            if kind == "drain":  # another one comes in its place
                del busy[pod]
                new = pods = pods + 1
                yield Change(at=now + down, kind="add", pod=new)
                busy[new] = now + down + 5.0
        now += rng.expovariate(1 / 15.0)


def soak(minutes: float, arm: str, seed: int) -> Soaked:
    """Run one fleet for so long, and look at what is left."""
    seconds, began = minutes * 60.0, perf_counter()
    timeline = tuple(sorted(faults(Random(seed), seconds, _FLEET.pods), key=lambda change: change.at))
    load = replace(
        _FLEET,
        arrival=Arrival(rate=_SESSIONS_A_SECOND, cv=1.0),
        requests=int(seconds * _SESSIONS_A_SECOND * _TURNS),
        timeline=timeline,
    )
    simulation = simulation_of(load, arm_named(arm), seed)
    sent = list(load.load(seed))
    outcomes = simulation.run(sent)
    pods = list(simulation.fleet.all_ever())
    pulls, tokens = (sum(getattr(pod.loader, name) for pod in pods) for name in ("pulls", "pulled_tokens"))
    lost = [outcome for outcome in outcomes if outcome.error == "pod lost"]
    resumed = list(_resumed(timeline, outcomes, seconds))  # of an arm that need not pull, this is only told
    return Soaked(
        arm=arm,
        seed=seed,
        minutes=minutes,
        faults=Counter(change.kind for change in timeline),
        requests=len(sent),
        answered=sum(not outcome.error for outcome in outcomes),
        cut_off=(sum(outcome.first is None for outcome in lost), sum(outcome.first is not None for outcome in lost)),
        pulls=pulls,
        pulled_tokens=tokens,
        resumed_s=max(resumed, default=0.0),
        took_s=perf_counter() - began,
        wrong=[
            *lost_requests({request.number for request in sent}, outcomes, timeline),
            *_left(simulation),
            *(f"no pull for {took:.0f} s after a fault" for took in resumed if took > _RESUME_S and arm == _BY_RULE),
        ],
    )


def lost_requests(sent: set[int], outcomes: list[Outcome], timeline: tuple[Change, ...]) -> Iterator[str]:
    """Requests without an end, with two, or without an answer for another reason than that their pod was lost."""
    ends = Counter(outcome.number for outcome in outcomes)
    if sent != ends.keys() or len(ends) != len(outcomes):
        yield f"{len(sent)} requests have come to {len(outcomes)} ends, of {len(ends)} requests"
    losses = [(change.pod, change.at) for change in timeline if change.kind == "restart"]
    for outcome in outcomes:
        was_there = any(pod == outcome.pod and at >= outcome.due for pod, at in losses)
        if outcome.error and not (outcome.error == "pod lost" and was_there):
            yield f"request {outcome.number} at {outcome.due:.1f} s on pod {outcome.pod}: {outcome.error}"


def _left(simulation: Simulation) -> Iterator[str]:
    """Leases that are not given back, blocks in use, an index that believes what pods do not hold."""
    try:
        all_freed(simulation)
    except AssertionError as error:
        yield f"something is left: {error}"


def _resumed(timeline: tuple[Change, ...], outcomes: list[Outcome], seconds: float) -> Iterator[float]:
    """How long after each fault's end it took until a request was placed that pulled something."""
    pulled = sorted(outcome.due for outcome in outcomes if outcome.pulled_tokens)
    for change in timeline:
        over = change.at + (0.0 if change.kind == "add" else change.down)
        yield next((at - over for at in pulled if at >= over), seconds)
