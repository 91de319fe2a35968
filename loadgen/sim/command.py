"""``p2p-loadgen sim``: scenarios under arms, with seeds."""

import argparse
import os
import sys
from pathlib import Path
from typing import Protocol

import msgspec

from loadgen.report.plots import Missing, check
from loadgen.sim.arms import ARMS, arm_named
from loadgen.sim.plots import plot
from loadgen.sim.presets import SCENARIOS, scenario_named
from loadgen.sim.rows import table
from loadgen.sim.run import Done, Job, run_all
from loadgen.sim.traced import TRACED

_WRONG_ARGUMENTS = 3


class _SubParsers(Protocol):
    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...  # noqa: A002 (argparse's name)


def register(commands: _SubParsers) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("sim", help="a fleet in virtual time, under the gateway's own decisions")
    names = ", ".join([*SCENARIOS, *TRACED])
    parser.add_argument("scenarios", nargs="+", metavar="SCENARIO", help=f"{names}, or a YAML file")
    parser.add_argument("--arms", default=",".join(ARMS), help=f"of {','.join(ARMS)}, or YAML files (default: all)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from 1 on (default 1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at a time (default: cores)")
    parser.add_argument("--traces", type=Path, metavar="DIR", help=f"where the loads of {', '.join(TRACED)} are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a row per scenario, arm and seed")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them: .png or .svg")
    parser.add_argument("--explain-request", type=int, metavar="N", help="print by what request N was decided")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        jobs = _jobs(arguments)
        done: dict[tuple[str, str, int], Done] = {}
        for each in run_all(jobs, min(arguments.processes, len(jobs))):
            done[each.row.scenario, each.row.arm, each.row.seed] = each
            print(f"\r{len(done)} of {len(jobs)} simulations", end="", file=sys.stderr, flush=True)
    except (ValueError, OSError, Missing) as error:
        # In one line, where YAML's reasons have several.
        print(f"p2p-loadgen: {' '.join(str(error).split())}", file=sys.stderr)
        return _WRONG_ARGUMENTS
    print(file=sys.stderr)
    in_order = [done[job.scenario, job.arm, job.seed] for job in jobs]
    print(table([each.row for each in in_order]))
    for each in in_order:
        if each.explained is not None:
            told = msgspec.json.format(msgspec.json.encode(each.explained)).decode()
            print(f"\n{each.row.scenario}, {each.row.arm}, seed {each.row.seed}:\n{told}")
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode([each.row for each in in_order])))
    if arguments.plot is not None:
        plot(arguments.plot, [each.row for each in in_order])
    return 0


def _jobs(arguments: argparse.Namespace) -> list[Job]:
    """What is asked for, each once. Raises ValueError for what cannot be run or written, before anything is, and
    Missing where plots cannot be drawn.
    """
    if min(arguments.seeds, arguments.processes) < 1:
        raise ValueError("--seeds and --processes have to be at least 1")
    for option, file in (("--json", arguments.json), ("--plot", arguments.plot)):
        if file is not None and not file.parent.is_dir():
            raise ValueError(f"{option} {file}: there is no such directory")
    if arguments.plot is not None:
        check(arguments.plot)
    scenarios, arms = dict.fromkeys(arguments.scenarios), dict.fromkeys(arguments.arms.split(","))
    for name in scenarios:
        scenario = scenario_named(name, arguments.traces)
        scenario.pod_profile()
        scenario.load(1)
    for name in arms:
        arm_named(name)
    return [
        Job(scenario, arm, seed, arguments.explain_request, arguments.traces)
        for scenario in scenarios
        for arm in arms
        for seed in range(1, arguments.seeds + 1)
    ]
