"""`python -m tests.loadgen.load`: the full size, 5,000 streams; exit code 1 where the client fell behind."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.loadgen.load.run import Plan, run

USUAL = Plan()
LATE_MS = 100.0  # at p99: a client that cannot keep up is seconds late


def main() -> int:
    """Parse, run, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.loadgen.load", description=__doc__)
    parser.add_argument("--streams", type=int, default=USUAL.streams)
    parser.add_argument("--seconds", type=float, default=USUAL.seconds)
    parser.add_argument("--pace", type=float, default=USUAL.pace)
    given = parser.parse_args()
    plan = Plan(streams=given.streams, seconds=given.seconds, pace=given.pace, steady_s=given.seconds)
    with tempfile.TemporaryDirectory() as folder:
        report = run(plan, Path(folder))
    row, chunks = report.row, plan.streams / plan.pace
    lines = [
        f"{plan.streams} streams of {plan.seconds:g} s, {chunks:,.0f} events/s; the client on one core",
        f"completed       {row['completed']}, failed {row['failed']}, {row['max_concurrent_requests']} at once",
        "schedule delay  {:.2f} ms median, {:.2f} ms p99, {:.1f} ms at most".format(
            *(row[f"{part}_schedule_delay_ms"] for part in ("median", "p99", "max"))
        ),
        f"between events  {row['median_itl_ms']:.2f} ms median, {row['p99_itl_ms']:.2f} ms p99, of {1e3 * plan.pace:g}",
        f"client          {report.cpu_s:.1f} s CPU of {report.wall_s:.1f} s, {report.resident_mib:.0f} MiB",
    ]
    print("\n".join(lines))
    return 1 if row["failed"] or row["p99_schedule_delay_ms"] > LATE_MS else 0


if __name__ == "__main__":
    sys.exit(main())
