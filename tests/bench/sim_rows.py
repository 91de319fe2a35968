"""The simulator against `dynamo.replay`, on the same traces in turns; and how large a fleet it simulates how fast.

The recorded traces are read from `$P2P_GATEWAY_BENCH_TRACES`; without it both get one that is made here.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from loadgen.workload.traces import BLOCK_TOKENS
from tests.bench import environment, sim_made
from tests.bench.index_rows import ROOT
from tests.bench.rows import Row, collected, row
from tests.bench.sim_ours import PODS, PROFILE

TRACES: Final = "P2P_GATEWAY_BENCH_TRACES"
_RECORDED: Final = ("conversation", "synthetic")
_SPEEDS: Final = (1, 3)
_ROUNDS: Final = 3
_MADE_REQUESTS: Final = 2_000
_QUICK_MADE_REQUESTS: Final = 60
_FLEET: Final = (1_000, 100_000)  # pods and requests
_QUICK_FLEET: Final = (20, 500)
_UNITS: Final = {"ttft_mean": "ms", "reuse": "of 1", "seconds": "s"}
_DEADLINE_S: Final = 1_200
_FLEET_DEADLINE_S: Final = 3_600


class _Report(msgspec.Struct):
    """What of the peer's report is compared."""

    completed_requests: int
    num_requests: int
    mean_ttft_ms: float
    prefix_cache_reused_ratio: float


def rows(*, rounds: int, quick: bool, peers: bool) -> list[Row]:
    """All rows; the fleet is simulated once."""
    peer_python = _peer() if peers else None
    made: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, trace in _traces(Path(folder), quick=quick).items():
            for speed in _SPEEDS:
                made += _compared(name, trace, speed, min(rounds, _ROUNDS), peer_python)
    fleet = _ours("tests.bench.sim_fleet", *(_QUICK_FLEET if quick else _FLEET), deadline_s=_FLEET_DEADLINE_S)
    made.append(row("sim.fleet.seconds", "s", [fleet["seconds"]]))
    made.append(row("sim.fleet.memory", "MB", [fleet["memory"]]))
    return made


def _compared(name: str, trace: Path, speed: int, rounds: int, peer_python: str | None) -> list[Row]:
    """Ours and the peer's, in turns."""
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(_timed(lambda: _ours("tests.bench.sim_ours", trace, speed, deadline_s=_DEADLINE_S)))
        if peer_python:
            theirs.append(_timed(lambda: _replayed(peer_python, trace, speed)))
    values, peers_values = collected(ours), collected(theirs)
    return [
        row(
            f"sim.{name}.x{speed}.{measure}",
            unit,
            values[measure],
            f"{environment.DYNAMO_REPLAY} replay",
            peers_values.get(measure, ()),
        )
        for measure, unit in _UNITS.items()
    ]


def _traces(folder: Path, *, quick: bool) -> dict[str, Path]:
    """By name. SystemExit where the recorded ones are said to be somewhere and are not."""
    directory = os.environ.get(TRACES)
    if directory and not quick:
        found = {name: Path(directory).resolve() / f"mooncake_{name}_trace.jsonl" for name in _RECORDED}
        for trace in found.values():
            if not trace.is_file():
                sys.exit(f"bench: sim: ${TRACES} has no {trace.name}")
        return found
    if not quick:
        sys.stderr.write(f"bench: sim: no ${TRACES}: on a trace that is made here\n")
    trace = folder / "made.jsonl"
    sim_made.write(trace, _QUICK_MADE_REQUESTS if quick else _MADE_REQUESTS)
    return {"made": trace}


def _peer() -> str | None:
    try:
        return str(environment.peer(environment.DYNAMO_REPLAY) / "python")
    except environment.PeerMissing as reason:
        sys.stderr.write(f"bench: sim without a peer: {reason}\n")
        return None


def _ours(module: str, *arguments: object, deadline_s: float) -> dict[str, float]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=deadline_s)
    return msgspec.json.decode(done.stdout, type=dict[str, float])


def _replayed(python: str, trace: Path, speed: int) -> dict[str, float]:
    """What `_ours` has of the same, by the peer."""
    engine = {
        "block_size": PROFILE.block_size,
        "num_gpu_blocks": PROFILE.gpu_blocks,
        "max_num_seqs": PROFILE.max_running,
        "max_num_batched_tokens": PROFILE.token_budget,
    }
    command = [python, "-m", "dynamo.replay", str(trace), "--num-workers", str(PODS)]
    command += ["--replay-mode", "offline", "--router-mode", "round_robin"]
    command += ["--trace-block-size", str(BLOCK_TOKENS), "--arrival-speedup-ratio", str(speed)]
    command += ["--extra-engine-args", msgspec.json.encode(engine).decode()]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        subprocess.run(
            [*command, "--report-json", str(out)],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=_DEADLINE_S,
            env=os.environ | {"DYN_LOG": "error"},
        )
        report = msgspec.json.decode(out.read_bytes(), type=_Report)
    assert report.completed_requests == report.num_requests
    return {"ttft_mean": report.mean_ttft_ms, "reuse": report.prefix_cache_reused_ratio}


def _timed(call: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    """What a call returns, and the seconds it took by the clock: of the whole process, its start included."""
    began = time.perf_counter()
    values = call()
    return {**values, "seconds": time.perf_counter() - began}
