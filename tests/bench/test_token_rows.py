"""What the rows of `tokens` claim, in small."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.bench import token_gateway, token_rows
from tests.bench.token_workload import TURNS, Workload

_TOKENS = 16_000


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload(quick=True)


def test_the_turns_of_a_conversation_begin_with_the_turns_before(workload: Workload) -> None:
    bodies = workload.conversation(1, _TOKENS)
    assert len(bodies) == TURNS + 1
    for before, after in pairwise(bodies):
        assert after.startswith(before[: before.index(b'],"tools"')])


def test_a_turn_of_a_long_conversation_costs_a_fraction_of_its_whole(workload: Workload) -> None:
    ours, whole = token_rows.turn_costs(workload.files, workload.conversation(2, _TOKENS))
    assert 5 * ours["turn20.cpu"] < whole["turn20.cpu"]


def test_without_vllm_a_line_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P2P_GATEWAY_ENGINE_HOME", "/nonexistent")
    with token_gateway.renderer(Path(), Path()) as url:
        assert url is None
    assert capsys.readouterr().err.splitlines() == [
        "bench: tokens without vLLM: its environment is not built (`make engine` does)"
    ]
