import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen import cli
from loadgen.sim.run import Job, run

SCENARIO = """
pods: 3
profile: demo
dataset: {type: shared-prefix, prefixes: 6, prefix_tokens: 4000, question_tokens: 64, output_tokens: 8}
arrival: {rate: 12, cv: 1.0}
requests: 60
timeline:
  - {at: 2.0, kind: restart, pod: 1, down: 1.0}
"""
NAMES = {
    "scenario", "arm", "seed", "completed", "failed", "request_throughput", "mean_ttft_ms", "median_ttft_ms",
    "p90_ttft_ms", "p99_ttft_ms", "pulls", "pulled_tokens", "recomputed_tokens",
}  # fmt: skip


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return str(path)


@pytest.mark.parametrize("arm", ["load+pull", "affinity", "round-robin", "random"])
def test_the_same_seed_comes_to_the_same_row_and_another_to_another(scenario: str, arm: str) -> None:
    first = run(Job(scenario, arm, 1)).row
    assert run(Job(scenario, arm, 1)).row == first
    assert msgspec.structs.replace(run(Job(scenario, arm, 2)).row, seed=1) != first
    assert first.completed + first.failed == 60


def test_another_process_with_another_hash_seed_comes_to_the_same_row(scenario: str) -> None:
    program = """if True:
        import sys, msgspec
        from loadgen.sim.run import Job, run
        print(msgspec.json.encode(run(Job(sys.argv[1], "load+pull", 1)).row).decode())
    """
    rows = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program, scenario],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        )
        rows.add(done.stdout.strip())
    assert rows == {msgspec.json.encode(run(Job(scenario, "load+pull", 1)).row).decode()}
    assert json.loads(rows.pop())["pulled_tokens"] > 0


def test_rows_have_the_names_that_others_rely_on(scenario: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "rows.json"
    arguments = ["sim", scenario, "--arms", "load,load+pull", "--seeds", "2", "--processes", "1", "--json", str(out)]
    assert cli.main(arguments) == 0
    rows = json.loads(out.read_text())
    assert [(each["scenario"], each["arm"], each["seed"]) for each in rows] == [
        (scenario, arm, seed) for arm in ("load", "load+pull") for seed in (1, 2)
    ]
    assert all(each.keys() >= NAMES for each in rows)
    assert "load+pull" in capsys.readouterr().out


def test_processes_beside_each_other_come_to_the_same_rows(scenario: str, tmp_path: Path) -> None:
    rows = []
    for processes in ("1", "2"):
        out = tmp_path / f"{processes}.json"
        assert cli.main(["sim", scenario, "--arms", "load,affinity", "--processes", processes, "--json", str(out)]) == 0
        rows.append(json.loads(out.read_text()))
    assert rows[0] == rows[1]


def test_what_a_request_was_decided_by_is_told(scenario: str, capsys: Any) -> None:
    assert cli.main(["sim", scenario, "--arms", "load+pull", "--processes", "1", "--explain-request", "3"]) == 0
    told = json.loads(capsys.readouterr().out.partition("seed 1:\n")[2])
    assert told["tokens"] == 4064
    assert len(told["candidates"]) == 3
    assert told["chosen"] in {candidate["pod"] for candidate in told["candidates"]}
    assert told["source_reason"] in {"named", "self", "below-floor", "no-holder"}


BROKEN = {
    "bad-yaml.yaml": "pods: [1,\n  2: }",
    "no-mapping.yaml": "- 1\n",
    "no-field.yaml": "pods: 2\npodz: 3\ndataset: {type: random}\n",
    "no-dataset.yaml": "pods: 2\ndataset: {type: nonsense}\n",
    "no-profile.yaml": "pods: 2\nprofile: nonsense\ndataset: {type: random}\n",
    "no-pod.yaml": SCENARIO.replace("pod: 1", "pod: 9"),
    "no-trace.yaml": "pods: 2\ntrace: {type: mooncake, path: nowhere.jsonl}\n",
}


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["one-hot", "--arms", "nonsense"],
        ["one-hot", "--arms", "nowhere.yaml"],
        ["nowhere.yaml"],
        ["one-hot", "--seeds", "0"],
        ["one-hot", "--processes", "0"],
        ["one-hot", "--json", "/nowhere/at/all.json"],
        ["one-hot", "--plot", "/nowhere/at/all.png"],
        ["one-hot", "--plot", "rows.pdf"],
        ["mooncake-synthetic"],
        ["aiperf-agentic"],
        ["mooncake-synthetic", "--traces", "/nowhere"],
        ["mooncake-synthetic-x3", "--traces", "."],
        ["aiperf-agentic", "--traces", "."],
        *([name] for name in BROKEN),
        ["one-hot", "--arms", "bad-yaml.yaml"],
    ],
    ids=" ".join,
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sim", "--processes", "1", *arguments]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("p2p-loadgen: ")
