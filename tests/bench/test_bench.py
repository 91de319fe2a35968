import re
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import msgspec
import pytest

from tests.bench import proxy_rows
from tests.bench.__main__ import main
from tests.bench.chats import LONG_BYTES
from tests.bench.client import Kind, prompts
from tests.bench.environment import PeerMissing, Pin
from tests.bench.index_rows import ROOT
from tests.bench.peers import Peer
from tests.bench.processes import NotReady
from tests.bench.routers import Backend, Router
from tests.bench.rows import Row, row

EXPECTED = {
    *(f"index.{m}.p{p}.8k" for m in ("frames", "memory", "evict", "evict.single", "remove_pod") for p in (8, 64)),
    *(f"index.apply{way}.p{p}.8k" for way in ("", ".free", ".queued", ".queued.core") for p in (8, 64)),
    *(f"index.{m}.p64.8k" for m in ("match.shared", "match.one", "match.miss", "hash")),
    *(f"scale.{m}.{blocks}k" for m in ("match.shared", "match.one", "match.miss", "remove_pod") for blocks in (32, 64)),
    *(f"decision.{what}{pods}" for what in ("pods", "choice") for pods in (2, 16, 64)),
    *(f"metrics.{m}.pods{pods}" for m in ("scrape", "page", "request") for pods in (8, 128)),
    *(f"intake.{measure}" for measure in ("delay.p50", "delay.p99", "rate", "cpu")),
    *(f"tokens.{turn}.{m}" for m in ("cpu", "latency") for turn in ("turn1", "turn10", "turn20", "short")),
    *(f"tokens.{turn}.path.cpu" for turn in ("turn20", "short", "again")),
    *(f"tokens.stall.{measure}" for measure in ("p50", "p99", "max")),
    *(f"sim.made.{speed}.{measure}" for speed in ("x1", "x3") for measure in ("ttft_mean", "reuse", "seconds")),
    *(f"sim.fleet.{measure}" for measure in ("seconds", "memory")),
    *(f"proxy.{kind}.{measure}" for kind in ("small", "long", "turn", "fresh") for measure in ("cpu", "rate")),
    *(f"proxy.small.{m}" for m in ("c1.rate", "c1.latency", "c64.rate", "cpu.logged", "plain.cpu", "plain.rate")),
    *(f"proxy.turn.local.{m}" for m in ("cpu", "rate")),
    *(f"proxy.stream.{measure}" for measure in ("cpu", "ttft.p50", "ttft.p99")),
    "proxy.rss",
    *(f"proxy.floor.{kind}.{measure}" for kind in ("small", "long") for measure in ("cpu", "rate")),
    *(f"proxy.floor.stream.{measure}" for measure in ("cpu", "ttft.p50", "ttft.p99")),
    "proxy.floor.rss",
}
DIFFERENCES = (
    "index.memory",
    "intake.delay",
    "tokens.stall",
    "proxy.stream.ttft",
    "proxy.floor.stream.ttft",
)  # too small in a quick run to be of one sign
COMPARED = re.compile(r"scale\.|metrics\.scrape\.|tokens\.(\w+\.cpu|stall\.)")
"""Rows whose peer is there without being installed."""


def test_a_quick_run_writes_every_row_with_its_fields(tmp_path: Path) -> None:
    out = tmp_path / "build" / "bench.json"
    command = [
        sys.executable,
        "-m",
        "tests.bench",
        "--quick",
        "--no-peers",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "without their tokens" not in done.stderr
    (dated,) = out.parent.glob("bench-20??-*Z.json")
    assert dated.read_bytes() == out.read_bytes()
    rows = msgspec.json.decode(out.read_bytes(), type=list[Row], strict=True)
    assert all(each.machine for each in rows)
    assert {each.name for each in rows} == EXPECTED
    assert all(name in done.stdout for name in EXPECTED)
    for each in rows:
        assert each.value > 0 or each.name.startswith(DIFFERENCES)
        assert each.runs == 1
        if COMPARED.match(each.name):
            assert each.ratio is not None
        else:
            assert (each.peer, each.peer_value, each.ratio) == (None, None, None)


def test_a_ratio_is_ours_by_the_peers_median() -> None:
    made = row("name", "µs", [9.0, 1.0, 2.0], "peer", [4.0, 8.0, 0.0])
    assert (made.value, made.peer, made.peer_value, made.ratio, made.runs) == (2.0, "peer", 4.0, 0.5, 3)


def test_a_peer_that_measured_nothing_is_not_named() -> None:
    made = row("name", "µs", [1.0], "peer", [])
    assert (made.peer, made.peer_value, made.ratio) == (None, None, None)


@pytest.mark.parametrize(("kind", "distinct"), [("long", 16), ("fresh", 40), ("turn", 40)])
def test_long_prompts_are_of_one_size_whichever_prompt_it_is(kind: Kind, distinct: int) -> None:
    bodies = _bodies(kind, 40)
    assert all(LONG_BYTES < len(body) < LONG_BYTES + 400 for body in bodies)
    assert len(set(bodies)) == distinct


def test_every_conversation_takes_its_next_turn_on_all_that_was_said_in_it() -> None:
    chats = [msgspec.json.decode(body)["messages"] for body in _bodies("turn", 3 * 32)]
    for earlier, later in zip(chats, chats[32:], strict=False):
        assert later[: len(earlier)] == earlier
        assert [message["role"] for message in later[len(earlier) :]] == ["assistant", "user"]


class _Absent(AbstractContextManager[Router]):
    def __enter__(self) -> Router:
        raise NotReady("started\nno such option")

    def __exit__(self, *_: object) -> None:
        raise AssertionError


def test_a_peer_that_cannot_be_had_or_does_not_start_is_left_out_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(pin: Pin) -> Path:
        if pin.package == "unpublished":
            raise PeerMissing(f"{pin}: nothing of that name")
        return tmp_path

    def start(programs: Path, backends: list[Backend], logs: Path) -> AbstractContextManager[Router]:
        assert programs == tmp_path
        return _Absent()

    monkeypatch.setattr("tests.bench.environment.peer", installed)
    peers = {"one": Peer(Pin("unpublished", "1"), "", start), "two": Peer(Pin("broken", "2"), "", start)}
    with ExitStack() as stack:
        assert proxy_rows._started(peers, [], tmp_path, stack) == []
    assert capsys.readouterr().err.splitlines() == [
        "bench: proxy: one left out: unpublished 1: nothing of that name",
        "bench: proxy: two left out: no such option",
    ]


def test_a_peer_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "proxy", "--peers", "nobody"])
    assert "round_robin" in capsys.readouterr().err


def _bodies(kind: Kind, number: int) -> list[bytes]:
    source = prompts(kind, chunks=0, first=7)
    return [source().partition(b"\r\n\r\n")[2] for _ in range(number)]
