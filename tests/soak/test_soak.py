"""A small soak, and that a soak finds what it is there to find."""

from random import Random

import pytest

from loadgen.sim.life import Outcome
from tests.engine.asking import Told
from tests.soak.comparing import is_alike
from tests.soak.faults import Fault
from tests.soak.load import Asked
from tests.soak.real import cut_off, lost, repeats
from tests.soak.virtual import faults, lost_requests, soak

POD, OTHER = "http://a", "http://b"


@pytest.mark.parametrize("arm", ["expected-ttft+pull", "load+pull"])
def test_a_fleet_to_which_something_happens_all_the_time_loses_nothing(arm: str) -> None:
    found = soak(4.0, arm, seed=2)
    assert found.wrong == []
    assert found.requests == found.answered + sum(found.cut_off)
    assert found.pulls > 0
    assert {"restart", "drain", "slow_link", "lose_events"} <= found.faults.keys()


def test_what_happens_to_a_fleet_leaves_two_pods_and_comes_one_thing_at_a_time() -> None:
    for seed in range(20):
        up, until = set(range(4)), dict[int, float]()
        for change in sorted(faults(Random(seed), 1800.0, 4), key=lambda change: change.at):
            up |= {pod for pod, back in until.items() if back <= change.at and back > 0}
            assert change.at >= until.get(change.pod, 0.0)
            if change.kind == "add":
                up.add(change.pod)
                continue
            assert change.pod in up
            until[change.pod] = change.at + change.down
            if change.kind == "drain":
                until[change.pod] = float("inf")
            if change.kind in ("drain", "restart"):
                up.remove(change.pod)
            assert len(up) >= 2


def outcome(number: int, *, error: str = "", pod: int = 0, due: float = 10.0) -> Outcome:
    return Outcome(number=number, session="", phase="", prompt_tokens=1, output_tokens=1, due=due, pod=pod, error=error)


def test_a_request_without_an_end_or_with_two_or_with_an_error_of_its_own_is_found() -> None:
    timeline = tuple(each for each in faults(Random(1), 1800.0, 4) if each.kind == "restart")
    pod, at = timeline[0].pod, timeline[0].at
    was_there = outcome(0, error="pod lost", pod=pod, due=at - 1.0)
    assert not list(lost_requests({0, 1}, [was_there, outcome(1)], timeline))
    assert list(lost_requests({0, 1}, [outcome(0)], timeline))
    assert list(lost_requests({0}, [outcome(0), outcome(0)], timeline))
    assert list(lost_requests({0}, [outcome(0, error="client timeout")], timeline))
    assert list(lost_requests({0}, [outcome(0, error="pod lost", pod=99)], timeline))


def asked(told: Told, *, began: float = 10.0, ended: float = 12.0, repeats: str | None = None) -> Asked:
    return Asked(began, ended, told, 0, repeats)


def test_only_what_broke_off_behind_its_first_byte_as_its_own_pod_was_killed_may_fail() -> None:
    kill = Fault("kill", POD, 11.0, 40.0)
    broken = Told(0.1, pod=POD, error="broken off", broken=True)
    assert cut_off(asked(broken), [kill])
    assert not list(lost([asked(broken)], [kill]))
    for each, happened in (
        (asked(broken._replace(pod=OTHER)), kill),
        (asked(broken), kill._replace(kind="stop")),
        (asked(broken, ended=10.5), kill),
        (asked(broken, began=41.0, ended=42.0), kill),
        (asked(broken._replace(broken=False)), kill),
        (asked(Told(0.1, error="503")), kill),
    ):
        assert list(lost([each], [happened]))


def test_answers_that_come_out_otherwise_are_counted() -> None:
    told = Told(0.1, text="x")
    answers = [
        asked(told),
        asked(told, repeats="x"),
        asked(told, repeats="y"),
        asked(Told(0.1, error="e"), repeats="x"),
    ]
    assert repeats(answers) == (2, 1)


def test_what_rounds_otherwise_is_alike_and_what_is_something_else_is_not() -> None:
    held = {"a": -0.6, "b": -0.9, "c": -3.0}
    assert is_alike(held, held)
    assert is_alike(held, {"b": -0.65, "a": -0.8, "d": -3.0})
    assert not is_alike(held, {"x": -0.6, "y": -0.9, "z": -3.0})
    assert not is_alike(held, {"a": -4.0, "b": -0.1, "c": -3.0})
    assert not is_alike(held, {"x": -0.5, "a": -0.9, "b": -3.0})
