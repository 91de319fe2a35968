"""A fleet in virtual time places a burst as the gateway does: by what is under way, before any event."""

import pytest

from index.expected import TTL_S
from loadgen.profile import PROFILES
from loadgen.sim.arms import ARMS
from loadgen.sim.simulation import Settings, Simulation
from loadgen.workload import Piece, Request

PREFIX = 4000
BURST = 8


def burst(arm: str, *, blind: bool = False, first: int = 0) -> Simulation:
    """Eight requests on a new prefix come at once to three idle pods, after `first` tokens for two of these."""
    run = Simulation(Settings(profile=PROFILES["gpt-oss-120b-h200"], pods=3), ARMS[arm], seed=1)
    if blind:
        run.fleet.table.expected.placed = lambda *_: None  # type: ignore[method-assign]
    before = [asked(90 + number, first) for number in range(2)] if first else []
    run.run([*before, *(asked(number, 100, Piece(1, PREFIX)) for number in range(BURST))])
    return run


def asked(number: int, own: int, *prefix: Piece) -> Request:
    return Request(
        number=number, session=str(number), prompt=(*prefix, Piece(1000 + number, own)), output_tokens=5, at=0.0
    )


def computed(run: Simulation) -> int:
    return sum(pod.engine.computed_tokens for pod in run.fleet.pods.values())


def pods_of_burst(run: Simulation) -> set[int | None]:
    return {outcome.pod for outcome in run.outcomes if outcome.number < BURST}


@pytest.mark.parametrize(("arm", "first"), [("affinity", 0), ("affinity+pull", 0), ("token-load", 3000)])
def test_a_burst_is_computed_once_and_without_knowing_of_what_is_under_way_several_times(arm: str, first: int) -> None:
    seeing, blind = burst(arm, first=first), burst(arm, first=first, blind=True)
    assert len(pods_of_burst(seeing)) == 1
    assert computed(seeing) - 2 * first < 2 * PREFIX
    assert len(pods_of_burst(blind)) == 3
    assert computed(blind) - 2 * first > 3 * PREFIX
    assert all(not outcome.error for outcome in (*seeing.outcomes, *blind.outcomes))


def test_nothing_is_expected_any_more_when_all_has_ended() -> None:
    run = burst("affinity+pull")
    run.clock.run(run.clock.now + TTL_S)
    assert run.fleet.table.expected.match({}, run.clock.now) == {}
    assert not run.fleet.table.expected


def test_nothing_is_expected_of_a_pod_that_is_lost() -> None:
    run = Simulation(Settings(profile=PROFILES["gpt-oss-120b-h200"], pods=1), ARMS["affinity"], seed=1)
    run.clock.at(0.01, lambda: run.remove_pod(0))
    run.clock.at(0.011, lambda: run.add_pod(0))
    run.clock.at(0.012, lambda: seen.append(len(run.fleet.table.expected)))
    seen: list[int] = []
    run.run([asked(number, 100, Piece(1, PREFIX)) for number in range(BURST)])
    assert seen == [0]
