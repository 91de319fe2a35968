import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.bench.client import LONG_BYTES, Kind, Options, prompts
from tests.bench.index_rows import ROOT
from tests.bench.rows import Row, row

EXPECTED = {
    *(
        f"index.{m}.p{p}.8k"
        for m in ("apply", "apply.free", "frames", "memory", "evict", "evict.single", "remove_pod")
        for p in (8, 64)
    ),
    *(f"index.{m}.p64.8k" for m in ("match.shared", "match.one", "match.miss", "hash")),
    *(f"scale.{m}.{blocks}k" for m in ("match.shared", "match.one", "match.miss", "remove_pod") for blocks in (32, 64)),
    *(f"decision.pods{pods}" for pods in (2, 16, 64)),
    *(f"intake.{measure}" for measure in ("delay.p50", "delay.p99", "rate", "cpu")),
}
DIFFERENCES = ("index.memory", "intake.delay")  # too small in a quick run to be of one sign


def test_a_quick_run_writes_every_row_with_its_fields(tmp_path: Path) -> None:
    out = tmp_path / "build" / "bench.json"
    command = [
        sys.executable,
        "-m",
        "tests.bench",
        "--quick",
        "--no-peers",
        "--only",
        "index,scale,decision,intake",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    rows = msgspec.json.decode(out.read_bytes(), type=list[Row], strict=True)
    assert {each.name for each in rows} == EXPECTED
    assert all(name in done.stdout for name in EXPECTED)
    for each in rows:
        assert each.value > 0 or each.name.startswith(DIFFERENCES)
        assert each.runs == 1
        if each.name.startswith("scale."):
            assert each.ratio is not None
        else:
            assert (each.peer, each.peer_value, each.ratio) == (None, None, None)


def test_a_ratio_is_ours_by_the_peers_median() -> None:
    made = row("name", "µs", [9.0, 1.0, 2.0], "peer", [4.0, 8.0, 0.0])
    assert (made.value, made.peer, made.peer_value, made.ratio, made.runs) == (2.0, "peer", 4.0, 0.5, 3)


def test_a_peer_that_measured_nothing_is_not_named() -> None:
    made = row("name", "µs", [1.0], "peer", [])
    assert (made.peer, made.peer_value, made.ratio) == (None, None, None)


@pytest.mark.parametrize(("kind", "distinct"), [("long", 16), ("fresh", 40)])
def test_long_prompts_are_of_one_size_whichever_prompt_it_is(kind: Kind, distinct: int) -> None:
    options = Options(port=1, kind=kind, connections=1, requests=1, seconds=1.0, pids=[])
    source = prompts(options, chunks=0)
    bodies = [source().partition(b"\r\n\r\n")[2] for _ in range(40)]
    assert all(LONG_BYTES < len(body) < LONG_BYTES + 200 for body in bodies)
    assert len(set(bodies)) == distinct
