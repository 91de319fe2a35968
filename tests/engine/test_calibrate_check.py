"""`p2p-gateway check` and `calibrate` on two real pods: right ones are found right, and pulls cost what they cost."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scorers import Costs
from tests.engine.pods import Pod

pytestmark = pytest.mark.engine

LENGTHS = (512, 6000)
ROUNDS = 5  # what shares the machine moves single times by a factor
DEADLINE_S = 240


@pytest.fixture
def config(pods: tuple[Pod, ...], tmp_path: Path) -> Path:
    entries = [{"url": pod.url, "p2p": f"127.0.0.1:{pod.parameters.p2p_port}"} for pod in pods]
    file = tmp_path / "gateway.yaml"
    file.write_text(json.dumps({"pods": entries}))
    return file


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    print(f"\n{done.stdout}{done.stderr}")
    return done


def test_a_real_pair_is_found_able_to_pull(pods: tuple[Pod, ...], config: Path) -> None:
    done = command("check", "--config", config, "--json")
    findings: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.returncode == 0
    # The pair is started with a CPU tier that is smaller than its GPU's, which shows once it has been full.
    assert {each["check"] for each in findings if each["level"] in ("warn", "FAIL")} <= {"cpu-size"}
    good = {each["check"] for each in findings if each["level"] == "ok"}
    assert good >= {"model", "events", "replay", "cpu-tier", "generated", "self-describing", "p2p-port", "details"}
    assert good >= {"alike", "pull"}
    assert [(each["pod"], each["peer"]) for each in findings if each["check"] == "pull"] == [
        (pods[0].url, pods[1].url),
        (pods[1].url, pods[0].url),
    ]


def test_a_real_pair_is_calibrated(pods: tuple[Pod, ...], config: Path, tmp_path: Path) -> None:
    told, saved, drawn = tmp_path / "result.json", tmp_path / "costs.json", tmp_path / "plot.png"
    lengths = ("--lengths", ",".join(map(str, LENGTHS)), "--rounds", str(ROUNDS))
    files = ("--json", told, "--save", saved, "--plot", drawn)
    done = command("calibrate", "--config", config, "--pods", ",".join(pod.url for pod in pods), *lengths, *files)
    assert done.returncode == 0
    result = json.loads(told.read_bytes())
    for way in result["pairs"]:
        assert [row["tokens"] for row in way["rows"]] == list(LENGTHS)
        longest = way["rows"][-1]
        assert longest["moved_bytes"] > 0
        assert longest["pulled_tokens"] >= longest["tokens"] - 64
        assert longest["samples"] == ROUNDS
        assert longest["pull_ms"] < longest["recompute_ms"]
        assert longest["local_ms"] < longest["recompute_ms"]
        assert way["measured_crossover"] in LENGTHS
        assert way["transport"] == "same-host"
    assert drawn.read_bytes().startswith(b"\x89PNG")
    costs = Costs()
    costs.restore(json.loads(saved.read_bytes())["costs"])
    assert {price.source[0] for price in costs.pairs(0.0)} == {pod.url for pod in pods}
