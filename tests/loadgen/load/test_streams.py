"""`python -m tests.loadgen.load` in small: the client keeps to its schedule, and sees events when they come."""

import json
from pathlib import Path

import pytest

from tests.loadgen.load.run import Plan, run

SMALL = Plan(streams=300, seconds=2.0, pace=0.1, steady_s=2.0)


def test_hundreds_of_streams_are_on_time(tmp_path: Path) -> None:
    row = run(SMALL, tmp_path).row
    assert (row["failed"], row["unfinished"], row["not_sent"]) == (0, 0, 0)
    assert row["completed"] == pytest.approx(SMALL.rate * SMALL.steady_s, rel=0.25)  # Poisson's
    assert row["total_output_tokens"] == row["completed"] * 20
    # Loose, since the machine may be busy: a client that cannot keep up falls behind more and more.
    assert row["median_itl_ms"] == pytest.approx(100.0, abs=50.0)
    assert row["median_schedule_delay_ms"] < 1000.0
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert {len(json.loads(line)["itl_ms"]) for line in lines} == {19}
