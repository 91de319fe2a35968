"""What a scenario's keys make of a load."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen.sim.arms import ARMS
from loadgen.sim.presets import SCENARIOS
from loadgen.sim.run import simulation_of
from loadgen.sim.scenarios import Change, Scenario
from loadgen.sim.traced import TRACED
from loadgen.workload import Request

PREFIX: dict[str, Any] = {"type": "shared-prefix", "prefixes": 1, "prefix_tokens": 4000}
TURNS: dict[str, Any] = {"type": "docqa", "conversations": 2, "document_tokens": 800, "turns": 3}


def scenario(**keys: Any) -> Scenario:
    return msgspec.convert({"pods": 2, "dataset": PREFIX, **keys}, Scenario)


def load(**keys: Any) -> list[Request]:
    return list(scenario(**keys).load(1))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_by_name_has_a_load(name: str) -> None:
    assert next(iter(SCENARIOS[name].load(1))).prompt_tokens > 0
    assert SCENARIOS[name].pod_profile().block_size in (16, 64)


def test_until_the_warm_up_is_over_requests_come_at_its_rate() -> None:
    times = [each.at for each in load(arrival={"rate": 10}, warm_up_rate=2, warm_up_s=5.0, requests=30)]
    assert times[:10] == pytest.approx([number / 2 for number in range(10)])
    assert times[10:] == pytest.approx([5.0 + number / 10 for number in range(20)])


def test_no_other_comes_for_a_while_after_the_first() -> None:
    plain, alone = (load(arrival={"rate": 10}, requests=20, alone_s=seconds) for seconds in (0.0, 3.0))
    assert [each.at for each in alone] == pytest.approx([0.0, *(each.at + 3.0 for each in plain[1:])])


def test_in_a_closed_loop_all_wait_for_the_first_one_s_answer_and_a_while() -> None:
    asked = scenario(concurrency=4, requests=8, alone_s=3.0)
    outcomes = simulation_of(asked, ARMS["load"], 1).run(asked.load(1))
    first, *others = sorted(outcomes, key=lambda outcome: outcome.number)
    assert min(outcome.due for outcome in others) == pytest.approx((first.ended or 0.0) + 3.0)
    assert len(others) == 7


def test_again_means_the_same_questions_and_answers_of_its_own() -> None:
    once, twice = load(dataset=TURNS), load(dataset=TURNS, again_s=100.0)
    first, second = twice[:6], twice[6:]
    assert first == once
    assert [each.number for each in twice] == list(range(12))
    assert [each.at for each in second] == [100.0] * 6
    assert [each.after for each in second] == [None, 6, 7, None, 9, 10]
    assert not {each.session for each in first} & {each.session for each in second}
    for before, now in zip(first, second, strict=True):
        assert now.prompt_tokens == before.prompt_tokens
        for said, repeated in zip(before.prompt, now.prompt, strict=True):
            assert (said == repeated) is (said.answer_of is None)
            assert repeated.answer_of == (None if said.answer_of is None else said.answer_of + 6)


def test_turns_of_both_times_go_on_from_their_own_answers() -> None:
    asked = scenario(dataset=TURNS, again_s=100.0)
    run = simulation_of(asked, ARMS["affinity"], 1)
    outcomes = {outcome.number: outcome for outcome in run.run(asked.load(1))}
    assert [outcomes[number].due for number in (6, 9)] == [100.0, 100.0]
    turns = [outcomes[number] for number in (6, 7, 8)]
    assert all((before.ended or 0.0) <= after.due for before, after in pairwise(turns))
    assert all(outcome.gpu_tokens + outcome.cpu_tokens > 700 for outcome in turns)


@pytest.mark.parametrize(("met", "slower_s"), [(True, 0.0), (False, 6.0)])
def test_who_has_not_pulled_before_sets_a_connection_up(met: bool, slower_s: float) -> None:
    asked = scenario(arrival={"rate": 1}, requests=4, alone_s=5.0, met=met)
    outcomes = simulation_of(asked, ARMS["load+pull"], 1).run(asked.load(1))
    first = min((outcome for outcome in outcomes if outcome.pulled_tokens), key=lambda outcome: outcome.due)
    assert (first.first or 0.0) - first.due == pytest.approx(slower_s, abs=0.2)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"prefill_pods": 2}, "prefill_pods must be at least 0 and below 2"),
        ({"prefill_pods": -1}, "prefill_pods"),
        ({"concurrency": 3, "again_s": 5.0}, "again_s"),
        ({"warm_up_rate": 3.0}, "warm_up_rate needs an arrival"),
        ({"again_s": -1.0}, "again_s must be at least 0"),
        ({"pods": 0}, "pods must be at least 1"),
        ({"dataset": None}, "a dataset or a trace"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        scenario(**keys)


@pytest.mark.parametrize("times", [0.0, -1.0])
def test_a_link_without_a_speed_is_refused(times: float) -> None:
    with pytest.raises(ValueError, match="times must be above 0"):
        Change(at=1.0, kind="slow_link", pod=0, times=times)


def test_the_manual_names_every_scenario_every_arm_and_every_key() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "simulation.md").read_text(encoding="utf-8")
    traced = {name.partition("-x")[0] for name in TRACED}
    keys = [field.name for field in msgspec.structs.fields(Scenario)]
    assert [name for name in (*SCENARIOS, *traced, *ARMS, *keys) if f"`{name}`" not in manual] == []
