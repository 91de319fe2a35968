"""Simulations as a picture: per scenario what each arm's times to first token were, and its requests per second."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from loadgen.report.plots import paper
from loadgen.sim.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PERCENTILES: Final = (("median_ttft_ms", "p50", "o"), ("p90_ttft_ms", "p90", "s"), ("p99_ttft_ms", "p99", "D"))
_LEAST_MS: Final = 0.1  # a log axis has no 0, which is that of an arm that answered nothing


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Draw them: medians over the seeds, with a line from the least to the most; who failed is named beside the arm.

    Raises what `loadgen.report.plots.check` does, and ValueError for no rows.
    """
    if not rows:
        raise ValueError("there is nothing to draw")
    scenarios = list(dict.fromkeys(row.scenario for row in rows))
    arms = list(dict.fromkeys(row.arm for row in rows))
    figure, panels = paper(path, len(scenarios), 2, 2 * len(arms))
    for scenario, (left, right) in zip(scenarios, panels, strict=True):
        groups = [[row for row in rows if (row.scenario, row.arm) == (scenario, arm)] for arm in arms]
        groups = [group for group in groups if group]
        for name, title, marker in _PERCENTILES:
            _points(left, groups, lambda row, name=name: max(getattr(row, name), _LEAST_MS), title, marker)  # type: ignore[misc]
        left.set_xscale("log")
        left.set_xlabel("TTFT, ms")
        left.set_title(scenario)
        left.legend(fontsize=8)
        _points(right, groups, lambda row: row.request_throughput, "", "o")
        right.set_xlim(left=0)
        right.set_xlabel("answered requests a second")
        for axes, labels in ((left, [_label(group) for group in groups]), (right, [])):
            axes.set_yticks(range(len(groups)), labels or [""] * len(groups), fontsize=8)
            axes.set_ylim(len(groups) - 0.5, -0.5)
            axes.grid(axis="x", linewidth=0.3)
    figure.savefig(path)


def _points(
    axes: "Axes", groups: Sequence[Sequence[Row]], value: Callable[[Row], float], title: str, marker: str
) -> None:
    values = [[value(row) for row in group] for group in groups]
    middles = [median(each) for each in values]
    below = [middle - min(each) for middle, each in zip(middles, values, strict=True)]
    above = [max(each) - middle for middle, each in zip(middles, values, strict=True)]
    axes.errorbar(middles, range(len(groups)), xerr=[below, above], fmt=marker, markersize=4, capsize=2, label=title)


def _label(group: Sequence[Row]) -> str:
    """An arm, and how many of its requests failed, over all seeds."""
    failed = sum(row.failed for row in group)
    due = failed + sum(row.completed for row in group)
    return f"{group[0].arm}\n{failed:,} of {due:,} failed" if failed else group[0].arm
