import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loadgen import faults
from loadgen.cli import main


@contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``p2p-loadgen pod`` as its user runs it; interrupted at the end, which it takes in order."""
    command = [sys.executable, "-W", "error", "-m", "loadgen", "pod", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            os.kill(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (0, "")


def asked(url: str, body: object = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as response:
        return response.status, response.read().decode()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def pods(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    described: dict[str, list[dict[str, Any]]] = json.loads(line(process))
    return described["pods"]


def test_pods_are_served_until_interrupted() -> None:
    with serving("--count", "2", "--ranks", "2") as process:
        assert line(process) == "pods:\n"
        entry = "".join(line(process) for _ in range(5))
        pattern = r"  - url: (http://127\.0\.0\.1:\d+)\n    kv_events: tcp:.*\n    kv_replay: tcp:.*\n    p2p: .*\n"
        found = re.fullmatch(pattern + r"    data_parallel_size: 2\n", entry)
        assert found is not None, entry
        assert asked(f"{found[1]}/health") == (200, "")


def test_json_is_a_configuration_for_scripts() -> None:
    with serving("--count", "2", "--json") as process:
        one, other = pods(process)
        assert list(one) == ["url", "kv_events", "kv_replay", "p2p"]
        assert one["url"] != other["url"]
        assert {asked(f"{pod['url']}/health") for pod in (one, other)} == {(200, "")}


def test_the_profile_and_what_is_said_otherwise_are_what_serves(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("block_size: 8\nmax_model_len: 512\n", encoding="utf-8")
    options = ("--gpu-blocks", "77", "--cpu-blocks", "0", "--speed", "100", "--event-delay-ms", "5")
    with serving("--profile", str(mine), *options, "--json") as process:
        (pod,) = pods(process)
        _, metrics = asked(f"{pod['url']}/metrics")
        assert 'block_size="8"' in metrics
        assert 'num_gpu_blocks="77"' in metrics
        assert json.loads(asked(f"{pod['url']}/v1/models")[1])["data"][0]["max_model_len"] == 512


def test_faults_are_taken_when_asked_for() -> None:
    with serving("--faults", "--json") as process:
        (pod,) = pods(process)
        assert asked(f"{pod['url']}/fault", {"kind": "stall", "seconds": 0.1})[0] == 200
        assert asked(f"{pod['url']}/v1/completions", {"prompt": [7], "max_tokens": 1})[0] == 200


def test_every_profile_and_fault_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pod", "--help"])
    said = capsys.readouterr().out
    for shown, does in faults.described():
        assert shown in said
        assert does in said
    assert "gpt-oss-120b-h200" in said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--profile", "huge"], "no profile and no file 'huge'; there are demo"),
        (["--gpu-blocks", "1"], "command line: $: gpu_blocks x block_size must hold"),
        (["--cpu-blocks", "-1"], "command line: $.cpu_blocks: Expected `int` >= 0"),
        (["--speed", "0"], "command line: $.speed: Expected `float` > 0.0"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert main(["pod", *arguments]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"p2p-loadgen: {reason}")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("delay", ["-1", "inf", "nan", "soon"])
def test_a_delay_is_a_duration(capsys: pytest.CaptureFixture[str], delay: str) -> None:
    with pytest.raises(SystemExit):
        main(["pod", "--event-delay-ms", delay])
    assert "argument --event-delay-ms" in capsys.readouterr().err
