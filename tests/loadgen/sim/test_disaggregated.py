"""Fleets in which some pods compute prompts and the others answer."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from config.schema import P2P
from loadgen.sim.arms import ARMS
from loadgen.sim.life import HOP_S
from loadgen.sim.rows import row
from loadgen.sim.simulation import Simulation
from loadgen.workload import Piece, Request
from loadgen.workload.seeds import answer_piece
from scorers import WeightedSampling
from tests.loadgen.sim.fleets import DEMO, all_freed, asked, by_number, simulation

PULLING = replace(ARMS["affinity"], p2p=P2P(min_cached_token_delta=256, source=WeightedSampling()))
COMPUTED_S = HOP_S + 0.006 + 0.032  # a prompt of 320 tokens
HANDED_S = 2 * HOP_S + 0.005 + DEMO.pull_s(320) + DEMO.restore_s(320)
BETWEEN_LEGS_S = COMPUTED_S + HOP_S / 2


def split(pods: int = 3, prefill_pods: int = 1, **changes: object) -> Simulation:
    return simulation(pods, prefill_pods=prefill_pods, **{"arm": "affinity", **changes})  # type: ignore[arg-type]


def conversation() -> list[Request]:
    """A question, an answer of 600 tokens, and one about both."""
    first = Request(number=0, session="a", prompt=(Piece(1, 960),), output_tokens=600)
    said = (*first.prompt, answer_piece(0, 600))
    second = Request(number=1, session="a", prompt=(*said, Piece(2, 200)), output_tokens=5, after=0, pause=1.0)
    return [first, second]


def pulled(run: Simulation, pod: int) -> int:
    return run.fleet.pods[pod].loader.pulled_tokens


def at(run: Simulation, when: float, call: Callable[[], object]) -> None:
    run.clock.at(when, lambda: call() and None)


def test_a_prompt_is_computed_on_one_pod_handed_over_and_answered_on_another() -> None:
    run = split(2)
    (outcome,) = run.run([asked(0, prompt=320, output=3)])
    last_token_s = 0.006 + 0.0001
    assert outcome.first == pytest.approx(COMPUTED_S + HANDED_S + last_token_s + HOP_S)
    assert outcome.ended == pytest.approx(outcome.first + 2 * 0.0042)
    assert (outcome.pod, outcome.source, outcome.error) == (0, None, "")
    assert [pod.engine.computed_tokens for pod in run.fleet.pods.values()] == [320, 1]
    assert (pulled(run, 0), pulled(run, 1)) == (0, 320)
    all_freed(run)


def test_what_is_handed_over_is_no_pull_in_the_figures() -> None:
    run = split(2)
    run.run([asked(0, prompt=320)])
    found = row("", "", 1, run)
    assert (found.pulls, found.pulled_tokens, found.completed) == (0, 0, 1)


def test_without_pulls_the_next_turn_computes_what_was_answered() -> None:
    run = split()
    second = by_number(run.run(conversation()))[1]
    assert (second.gpu_tokens, second.pulled_tokens, second.source) == (960, 0, None)
    assert run.fleet.pods[0].engine.computed_tokens == 960 + 600 + 200
    all_freed(run)


def test_with_pulls_the_next_turn_gets_what_was_answered_from_where_it_was() -> None:
    run = split(arm=PULLING)
    second = by_number(run.run(conversation()))[1]
    assert (second.gpu_tokens, second.pulled_tokens) == (960, 592)  # the last of 600 was never computed
    assert second.source in (1, 2)
    assert row("", "", 1, run).pulled_tokens == 592
    all_freed(run)


def test_a_pod_that_has_answered_is_handed_only_what_is_new() -> None:
    run = split(2)
    run.run(conversation())
    assert pulled(run, 1) == 960 + (1760 - 1552)
    all_freed(run)


def test_legs_stay_among_the_pods_of_their_roles_as_long_as_there_are_any() -> None:
    run = split(5, 2, arm="round-robin")
    outcomes = run.run([asked(number, number * 0.5) for number in range(12)])
    assert {outcome.pod for outcome in outcomes} == {0, 1}
    computed = [pod.engine.computed_tokens for pod in run.fleet.pods.values()]
    assert computed == [600, 600, 4 * 4, 4 * 4, 4 * 4]
    run = split(2)
    at(run, 0.1, lambda: run.remove_pod(1))
    (outcome,) = run.run([asked(0, 0.2)])
    assert (outcome.error, run.fleet.pods[0].engine.computed_tokens) == ("", 100 + 4)
    all_freed(run)


def test_a_pod_that_comes_up_behind_the_others_answers() -> None:
    run = split(2)
    at(run, 0.1, lambda: run.remove_pod(1))
    at(run, 0.2, lambda: run.add_pod(7))
    (outcome,) = run.run([asked(0, 0.5)])
    assert (outcome.error, outcome.pod, run.fleet.pods[7].engine.computed_tokens) == ("", 0, 4)


def test_what_a_pod_lost_after_its_leg_had_is_computed_where_it_is_answered() -> None:
    run = split(2)
    at(run, COMPUTED_S + 1.5 * HOP_S, lambda: run.remove_pod(0))
    (outcome,) = run.run([asked(0, prompt=320)])
    assert (outcome.error, run.fleet.pods[1].engine.computed_tokens) == ("", 320)
    all_freed(run)


@pytest.mark.parametrize(
    ("when", "lost"), [(0.01, 0), (BETWEEN_LEGS_S, 0), (COMPUTED_S + HANDED_S, 1)], ids=["first", "between", "second"]
)
def test_a_request_on_a_pod_that_is_lost_has_failed(when: float, lost: int) -> None:
    run = split(2)
    at(run, when, lambda: run.remove_pod(lost))
    (outcome,) = run.run([asked(0, prompt=320)])
    assert outcome.error == "pod lost"
    all_freed(run)


def test_where_nobody_is_ready_to_answer_a_request_has_failed() -> None:
    run = split(2)
    at(run, BETWEEN_LEGS_S, lambda: run.remove_pod(1))
    at(run, BETWEEN_LEGS_S, lambda: run.drain_pod(0))
    (outcome,) = run.run([asked(0, prompt=320)])
    assert outcome.error == "no_pod_ready"


@pytest.mark.parametrize("after", [0.0001, 0.01, BETWEEN_LEGS_S, COMPUTED_S + HANDED_S / 2, COMPUTED_S + HANDED_S])
def test_a_client_that_leaves_in_either_leg_or_between_them_frees_all(after: float) -> None:
    run = split(2, timeout_s=after)
    (outcome,) = run.run([asked(0, prompt=320)])
    assert (outcome.error, outcome.first) == ("client timeout", None)
    all_freed(run)


def test_nothing_is_learned_of_costs_where_a_prompt_is_handed_over() -> None:
    run = split(2, arm="token-load")
    run.run([asked(number, number * 0.5, prompt=1000) for number in range(9)])
    costs, now = run.fleet.table.costs, run.clock.now
    computing, answering = ((pod.entry.url, 0) for pod in run.fleet.pods.values())
    assert costs.evidence(computing, now) > 0
    assert costs.evidence(answering, now) == 0
    assert not costs.links(computing)
