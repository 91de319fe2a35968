"""Scenarios whose load lies in a directory."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen import cli
from loadgen.sim.presets import SCENARIOS, scenario_named
from loadgen.sim.traced import TRACED

MOONCAKE = [
    {"timestamp": 1000 * number, "input_length": 1100, "output_length": 4, "hash_ids": [0, 1, number + 2]}
    for number in range(12)
]
AIPERF = [
    {"session_id": f"s{number % 3}", "input_length": 600, "output_length": 4, "hash_ids": [2 * number, 2 * number + 1]}
    | ({"timestamp": 500.0 * number} if number < 3 else {"delay": 800.0})
    for number in range(9)
]


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_no_name_is_taken_twice() -> None:
    assert not SCENARIOS.keys() & TRACED.keys()


@pytest.mark.parametrize("prefix", ["", "mooncake_"])
def test_a_trace_is_found_by_the_name_it_was_published_under_and_by_one_with_the_publisher(
    prefix: str, tmp_path: Path
) -> None:
    write(tmp_path / f"{prefix}toolagent_trace.jsonl", MOONCAKE)
    for speed, name in ((1, "mooncake-toolagent"), (3, "mooncake-toolagent-x3"), (5, "mooncake-toolagent-x5")):
        scenario = scenario_named(name, tmp_path)
        assert [request.at for request in scenario.load(1)] == [number / speed for number in range(12)]
        assert (scenario.pods, scenario.profile) == (8, "gpt-oss-120b-h200")


def test_what_was_recorded_is_replayed_to_its_end_in_other_processes_too(tmp_path: Path) -> None:
    write(tmp_path / "conversation_trace.jsonl", MOONCAKE)
    write(tmp_path / "some.jsonl", AIPERF)
    out = tmp_path / "rows.json"
    names = ["mooncake-conversation-x5", "aiperf-agentic"]
    options = ["--arms", "affinity", "--traces", str(tmp_path), "--processes", "2", "--json", str(out)]
    assert cli.main(["sim", *names, *options]) == 0
    rows = json.loads(out.read_text())
    assert [(row["scenario"], row["completed"], row["failed"]) for row in rows] == [(names[0], 12, 0), (names[1], 9, 0)]
    assert all(row["cached_share"] > 0.3 for row in rows)


@pytest.mark.parametrize(("files", "said"), [((), "no files are"), (("a.jsonl", "b.jsonl"), "2 files are")])
def test_which_file_is_meant_has_to_be_clear(files: tuple[str, ...], said: str, tmp_path: Path) -> None:
    write(tmp_path / "synthetic_trace.jsonl", MOONCAKE)
    for file in files:
        write(tmp_path / file, AIPERF)
    with pytest.raises(ValueError, match=rf"{said} \*\.jsonl in the form of aiperf"):
        scenario_named("aiperf-agentic", tmp_path)
