"""`p2p-loadgen compare A.json B.json …`: arms side by side, with how sure their difference is, and plots of it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from loadgen.report import table
from loadgen.report.compare import METRICS, Ratio, compare, read
from loadgen.report.plots import Missing, plot

_UNUSABLE: Final = 3


class _SubParsers(Protocol):
    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...  # noqa: A002 (argparse's name)


def register(commands: _SubParsers) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("compare", help="results of several runs: ratios, their intervals, plots")
    parser.add_argument("results", nargs="+", type=Path, metavar="FILE", help="results of run or sim")
    parser.add_argument("--baseline", metavar="ARM", help="what the others are compared with (default: the first arm)")
    parser.add_argument("--metrics", nargs="+", default=METRICS, metavar="NAME", help="default: those people know")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the ratios")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them: .png or .svg")
    parser.set_defaults(run=_command)


def _command(arguments: argparse.Namespace) -> int:
    try:
        rows = [row for path in arguments.results for row in read(path)]
        if not rows:
            raise ValueError("no rows to compare")  # noqa: TRY301 (one line for the user, whoever finds the fault)
        ratios = compare(rows, baseline=arguments.baseline, metrics=arguments.metrics)
        if not ratios:
            raise ValueError("nothing to compare: one arm, or no metric in common")  # noqa: TRY301
        for scenario in dict.fromkeys(ratio.scenario for ratio in ratios):
            table.show(scenario, told([ratio for ratio in ratios if ratio.scenario == scenario]))
        if arguments.json is not None:
            arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(ratios), indent=2) + b"\n")
        if arguments.plot is not None:
            plot(arguments.plot, rows, ratios)
    except (ValueError, OSError, Missing) as error:
        print(f"p2p-loadgen compare: {error}", file=sys.stderr)
        return _UNUSABLE
    return 0


def told(ratios: Sequence[Ratio]) -> str:
    """The ratios of a scenario as a table; a star where 1 is outside the interval."""
    rows = [("metric", "arm", ratios[0].baseline, "arm's", "ratio", "95 % interval", "seeds")]
    for ratio in ratios:
        sure = ratio.low is not None and ratio.high is not None
        interval = f"{ratio.low:.3f} … {ratio.high:.3f}" if sure else "-"
        star = " *" if ratio.low is not None and ratio.high is not None and not ratio.low <= 1 <= ratio.high else ""
        rows.append(
            (
                ratio.metric,
                ratio.arm,
                table.shown(ratio.baseline_mean),
                table.shown(ratio.mean),
                "-" if ratio.ratio is None else f"{ratio.ratio:.3f}",
                interval + star,
                str(ratio.seeds),
            )
        )
    return "\n".join(table.aligned(rows, left=1))
