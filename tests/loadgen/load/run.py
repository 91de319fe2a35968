"""`p2p-loadgen run` as its users start it, at full size: what it costs, and whether it keeps to its schedule.

The server is another process on a core of its own, cheap enough not to be what is measured; the client has one core.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.loadgen.load.server import serving


class Plan(NamedTuple):
    """`streams` at once, each of `seconds`, an event every `pace` seconds; requests come for as long as `steady_s`
    after the first of them have ended.
    """

    streams: int = 5000
    seconds: float = 20.0
    pace: float = 0.2
    steady_s: float = 20.0

    @property
    def rate(self) -> float:
        """Requests a second that keep so many streams open."""
        return self.streams / self.seconds


class Report(NamedTuple):
    """The client's figures, and what its process took in all."""

    row: dict[str, Any]
    cpu_s: float
    wall_s: float
    resident_mib: float


def run(plan: Plan, folder: Path, *, timeout_s: float = 300.0) -> Report:
    """Send the load and read what came of it."""
    cores = sorted(os.sched_getaffinity(0))
    results = folder / "out.json"
    with serving(core=cores[0]) as url:
        command = [
            *(sys.executable, "-m", "loadgen", "run", url, "--model", "load-model", "--quiet"),
            *("--rate", str(plan.rate), "--warm-up", f"{plan.seconds}s", "--duration", str(plan.steady_s)),
            *("--set", "input_tokens=64", "--set", f"output_tokens={round(plan.seconds / plan.pace)}"),
            *("--extra-body", json.dumps({"pace": plan.pace}), "--json", str(results)),
        ]
        process = subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, {cores[-1]}))  # noqa: PLW1509
        began = os.times().elapsed
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the client ended with {process.returncode}")
    row = json.loads(results.read_text())[0]
    return Report(row, usage.ru_utime + usage.ru_stime, os.times().elapsed - began, usage.ru_maxrss / 1024)
