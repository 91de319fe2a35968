import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from loadgen import cli
from loadgen.report.plots import Missing
from loadgen.sim.plots import plot
from loadgen.sim.rows import Row, row
from loadgen.sim.simulation import Simulation
from tests.loadgen.sim.test_simulation import asked, simulation

SCENARIO = """
pods: 2
profile: demo
dataset: {type: shared-prefix, prefixes: 2, prefix_tokens: 500, question_tokens: 20, output_tokens: 4}
arrival: {rate: 20}
requests: 10
"""


def rows() -> list[Row]:
    run: Simulation = simulation()
    run.run([asked(number) for number in range(3)])
    one = row("few", "lean", 1, run)
    other = replace(one, arm="mean", completed=0, failed=3, median_ttft_ms=0.0, p90_ttft_ms=0.0, p99_ttft_ms=0.0)
    return [one, replace(one, seed=2, median_ttft_ms=100.0), other, replace(other, seed=2, completed=2, failed=1)]


@pytest.mark.parametrize(("name", "magic"), [("out.png", b"\x89PNG"), ("out.svg", b"<?xml")])
def test_simulations_are_drawn(tmp_path: Path, name: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "small.yaml").write_text(SCENARIO)
    file = tmp_path / name
    options = ["--arms", "load,affinity", "--seeds", "2", "--processes", "1", "--plot", str(file)]
    assert cli.main(["sim", str(tmp_path / "small.yaml"), *options]) == 0
    assert file.read_bytes().startswith(magic)


def test_who_failed_is_named_beside_the_arm(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "out.svg"
    plot(file, [*rows(), replace(rows()[0], scenario="many")])
    drawn = file.read_text()
    for text in ("few", "many", "lean", "mean", "4 of 6 failed", "p99", "TTFT, ms", "answered requests a second"):
        assert f"<!-- {text} -->" in drawn or f" {text} -->" in drawn
    assert drawn.count("failed") == 1


def test_nothing_runs_for_a_plot_that_cannot_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["sim", "one-hot", "--plot", str(tmp_path / "out.png")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "p2p-gateway[report]" in line
    with pytest.raises(Missing):
        plot(tmp_path / "out.png", rows())
    with pytest.raises(ValueError, match="nothing to draw"):
        plot(tmp_path / "out.png", [])
