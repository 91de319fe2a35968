"""`make soak`: half an hour of virtual time, then two real pods. Ends by itself; exit code 1 where anything is lost."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.soak.real import Plan, run, told
from tests.soak.virtual import Soaked, soak

ARMS = ("expected-ttft+pull", "load+pull")


def main() -> int:
    """Parse, run, tell."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument(
        "--virtual", type=float, default=30.0, help="minutes of each fleet in virtual time (%(default)s)"
    )
    parser.add_argument("--minutes", type=float, default=Plan().minutes, help="on two real pods (%(default)s); 0: none")
    parser.add_argument("--clients", type=int, default=Plan().clients)
    parser.add_argument("--seed", type=int, default=Plan().seed)
    parser.add_argument("--tier", choices=("patched", "stock"), default=Plan().tier, help="of the real pods")
    given = parser.parse_args()
    wrong = 0
    if given.virtual:
        for arm in ARMS:
            soaked = soak(given.virtual, arm, given.seed)
            wrong += _tell(_virtual(soaked), soaked.wrong)
    if given.minutes:
        plan = Plan(minutes=given.minutes, clients=given.clients, seed=given.seed, tier=given.tier)
        with tempfile.TemporaryDirectory() as folder:
            report = run(plan, Path(folder))
        wrong += _tell(told(plan, report), report.wrong)
    return 1 if wrong else 0


def _virtual(soaked: Soaked) -> str:
    before, behind = soaked.cut_off
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(soaked.faults.items()))
    rows = {
        "requests": f"{soaked.requests}, of which {soaked.answered} are answered",
        "cut off": f"{before} before and {behind} behind the first token, by the end of their pod",
        "pulls": f"{soaked.pulls}, of {soaked.pulled_tokens} tokens",
        "faults": faults,
        "pulls again": f"after {soaked.resumed_s:.1f} s at most, anywhere in the fleet"
        if soaked.resumed_s < 60.0 * soaked.minutes
        else "not after each: a first pull sets up a connection, and this arm finds computing quicker than that",
    }
    head = f"{soaked.minutes:g} minutes of virtual time, {soaked.arm}, seed {soaked.seed}, in {soaked.took_s:.0f} s"
    return "\n".join([head, *(f"{name:14}{row}" for name, row in rows.items())])


def _tell(text: str, wrong: list[str]) -> int:
    sys.stdout.write("\n".join([text, *(f"WRONG         {each}" for each in wrong)]) + "\n\n")
    sys.stdout.flush()
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
