"""Arms place as a gateway's configuration of the same words does."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from config.presets import PRESETS
from config.schema import P2P, Placement
from loadgen.profile import PROFILES
from loadgen.sim.arms import ARMS, Arm, arm_named
from loadgen.sim.life import Outcome
from loadgen.sim.simulation import Settings, Simulation
from loadgen.workload import Piece, Request
from scorers import NoHitLru, SessionAffinity, WeightedSampling

TURNS = 6
SESSIONS = 9


def conversation() -> list[Request]:
    """Turns that have nothing in common but their sessions, one every half second."""
    return [
        Request(
            number=number,
            session=f"s{number % SESSIONS}",
            prompt=(Piece(number, 100),),
            output_tokens=5,
            at=number / 2,
        )
        for number in range(SESSIONS * TURNS)
    ]


def outcomes(arm: Arm) -> Sequence[Outcome]:
    return Simulation(Settings(profile=PROFILES["demo"], pods=3), arm, seed=1).run(conversation())


def pods_of_sessions(arm: Arm) -> list[set[int | None]]:
    found = outcomes(arm)
    return [{each.pod for each in found if each.session == f"s{number}"} for number in range(SESSIONS)]


def test_published_arms_pull_as_published_and_the_gateways_own_as_costs_say() -> None:
    published = P2P(source=WeightedSampling(), min_cached_token_delta=2048)
    assert [ARMS[f"{name}+pull"].p2p for name in ("affinity", "load", "token-load")] == [published] * 3
    own = ARMS["expected-ttft+pull"]
    assert (own.placement.scorers, own.placement.picker) == (Placement().scorers, Placement().picker)
    assert own.p2p == P2P()


@pytest.mark.parametrize("name", PRESETS)
def test_arms_are_the_presets_with_pulls_and_without(name: str) -> None:
    off, on = ARMS[name], ARMS[f"{name}+pull"]
    assert off.placement == on.placement == Placement(preset=name)
    assert (off.placement.scorers, off.placement.picker) == PRESETS[name]
    assert (off.p2p.enabled, on.p2p.enabled) == (False, True)


def test_sessions_stay_where_they_were() -> None:
    pods = pods_of_sessions(Arm(placement=Placement(scorers=(SessionAffinity(),))))
    assert [len(each) for each in pods] == [1] * SESSIONS
    assert len(set.union(*pods)) > 1
    assert max(map(len, pods_of_sessions(ARMS["random"]))) > 1


def test_prompts_that_nobody_holds_go_round() -> None:
    found = outcomes(Arm(placement=Placement(scorers=(NoHitLru(),))))
    went = [each.pod for each in sorted(found, key=lambda each: each.number)]
    assert all({*went[first : first + 3]} == {0, 1, 2} for first in range(0, len(went), 3))


def test_pods_are_taken_in_turn_whatever_the_file_says_besides(tmp_path: Path) -> None:
    file = tmp_path / "arm.yaml"
    file.write_text("placement: {preset: load}\nin_turn: true\n", encoding="utf-8")
    went = [each.pod for each in sorted(outcomes(arm_named(str(file))), key=lambda each: each.number)]
    assert went == [number % 3 for number in range(SESSIONS * TURNS)]


ELSEWHERE = """
class LastPod:
    def score(self, request, candidates):
        last = max(candidate.pod for candidate in candidates)
        return [float(candidate.pod == last) for candidate in candidates]
"""


def test_a_scorer_of_somebody_else_places_in_a_simulation_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere_for_arms.py").write_text(ELSEWHERE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "arm.yaml"
    file.write_text("placement: {scorers: [{type: 'elsewhere_for_arms:LastPod'}]}\n", encoding="utf-8")
    assert {each.pod for each in outcomes(arm_named(str(file)))} == {2}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("placement: {scorers: [{type: 'nowhere_at_all:X'}]}", "No module named 'nowhere_at_all'"),
        ("placement: {preset: load, picker: {type: random}}", "preset and picker exclude each other"),
        ("placement: 7", "Expected `object`, got `int`"),
        ("[1]", "Expected `object`, got `array`"),
    ],
)
def test_what_is_wrong_with_an_arm_is_said(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "arm.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=reason):
        arm_named(str(file))


def test_a_preset_of_a_file_is_that_of_the_same_name(tmp_path: Path) -> None:
    file = tmp_path / "arm.yaml"
    file.write_text("placement: {preset: token-load}\n", encoding="utf-8")
    assert replace(arm_named(str(file)), p2p=ARMS["token-load"].p2p) == ARMS["token-load"]
