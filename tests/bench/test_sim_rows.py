from pathlib import Path

import msgspec
import pytest

from loadgen.workload.traces import BLOCK_TOKENS, mooncake
from tests.bench import sim_made, sim_rows


def lines(path: Path, requests: int) -> list[sim_made.Line]:
    sim_made.write(path, requests)
    return [msgspec.json.decode(line, type=sim_made.Line) for line in path.read_bytes().splitlines()]


def test_the_made_trace_is_the_same_every_time_and_in_mooncakes_form(tmp_path: Path) -> None:
    made = lines(tmp_path / "one.jsonl", 500)
    assert made == lines(tmp_path / "two.jsonl", 500)
    assert len(made) == 500
    read = list(mooncake(tmp_path / "one.jsonl"))
    assert [each.prompt_tokens for each in read] == [line.input_length for line in made]
    assert [each.output_tokens for each in read] == [line.output_length for line in made]


def test_a_turn_of_the_made_trace_begins_with_all_full_blocks_of_the_turn_before(tmp_path: Path) -> None:
    made = lines(tmp_path / "trace.jsonl", 500)
    known: set[tuple[int, ...]] = set()
    grown = 0
    for line in made:
        full = line.hash_ids[: line.input_length // BLOCK_TOKENS]
        grown += any(tuple(full[:end]) in known for end in range(2, len(full) + 1))
        known.add(tuple(full))
        assert line.hash_ids[0] == 0
    assert 200 < grown < 450
    partial = [line.hash_ids[-1] for line in made if line.input_length % BLOCK_TOKENS]
    assert len(set(partial)) == len(partial)


def test_recorded_traces_are_used_where_they_are_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sim_rows.TRACES, str(tmp_path))
    for name in ("conversation", "synthetic"):
        (tmp_path / f"mooncake_{name}_trace.jsonl").touch()
    assert sim_rows._traces(tmp_path, quick=False) == {
        "conversation": tmp_path / "mooncake_conversation_trace.jsonl",
        "synthetic": tmp_path / "mooncake_synthetic_trace.jsonl",
    }
    assert list(sim_rows._traces(tmp_path, quick=True)) == ["made"]


def test_a_directory_without_the_recorded_traces_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sim_rows.TRACES, str(tmp_path))
    with pytest.raises(SystemExit, match=r"has no mooncake_conversation_trace\.jsonl"):
        sim_rows._traces(tmp_path, quick=False)


def test_without_recorded_traces_one_is_made_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(sim_rows.TRACES, raising=False)
    assert sim_rows._traces(tmp_path, quick=False) == {"made": tmp_path / "made.jsonl"}
    assert sim_rows.TRACES in capsys.readouterr().err
