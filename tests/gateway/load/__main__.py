"""`make streams`: the full size; what came of it on standard output, exit code 1 where anything is wrong."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.gateway.load.run import Plan, Report, run

_MIB = 1 << 20


def told(plan: Plan, report: Report) -> str:
    """The report for a person."""
    tally, memory = report.tally, report.memory
    p50, p99, most = (1e3 * delay for delay in tally.delays_s)
    rows = {
        "requests": f"{tally.sent}, of which {tally.asked_again} for the rest of a broken one",
        "complete": f"{tally.complete}, byte-equal",
        "broken off": f"{tally.broken}, with an error event after a true beginning",
        "left": f"{len(tally.left)}, known to the pod after {1e3 * report.aborts_s[0]:.0f} ms in the median, "
        f"{1e3 * report.aborts_s[1]:.0f} ms at most",
        "slow readers": f"{plan.slow} at a time, {sum(tally.slow.values())} of {len(tally.slow)} cut off, "
        f"pods at most {report.ahead_bytes / _MIB:.1f} MiB ahead",
        "memory, MiB": f"{memory.idle / _MIB:.0f} idle, {memory.ramped / _MIB:.0f} after ramp-up, "
        f"{memory.most / _MIB:.0f} at most from then on, {memory.end / _MIB:.0f} at the end",
        "gateway CPU": f"{report.cpu_s:.1f} s of {report.seconds:.1f} s",
        "event delay": f"{p50:.1f} ms median, {p99:.1f} ms p99, {most:.0f} ms at most, pod and reader included",
        "counted": ", ".join(f"{count} with status {status}" for status, count in sorted(report.counted.items())),
    }
    lines = [
        f"{plan.streams} streams of {plan.seconds:.0f} s, an event every {plan.pace} s, {plan.pods} pods, one killed"
    ]
    lines += [f"{name:14}{row}" for name, row in rows.items()]
    lines += [f"WRONG         {each}" for each in report.wrong]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Parse, run, tell."""
    parser = argparse.ArgumentParser(prog="make streams", description=__doc__)
    parser.add_argument("--streams", type=int, default=Plan.streams)
    parser.add_argument("--seconds", type=float, default=Plan.seconds)
    parser.add_argument("--slow", type=int, default=Plan.slow)
    given = parser.parse_args()
    plan = Plan(streams=given.streams, seconds=given.seconds, slow=given.slow)
    with tempfile.TemporaryDirectory() as folder:
        report = run(plan, Path(folder))
    sys.stdout.write(told(plan, report))
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
