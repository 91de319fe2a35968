"""Comparisons as pictures, PNG or SVG by the file's name. matplotlib is an extra, and imported when it is needed."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from loadgen.report import record
from loadgen.report.compare import Ratio, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = (".png", ".svg")
_NEEDS: Final = "plots need matplotlib: pip install 'p2p-gateway[report]'"
_INCH_PER_ROW: Final = 0.22
_POINTS: Final = 2000  # of a distribution: more are not seen


class Missing(Exception):
    """What plots need is not installed; the message says how to get it."""


def check(path: Path) -> None:
    """Raises Missing, and ValueError for a format that is not offered."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path} is to end in one of {', '.join(FORMATS)}")
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 (optional)
    except ImportError as error:
        raise Missing(_NEEDS) from error


def paper(path: Path, scenarios: int, columns: int, rows: int) -> "tuple[Figure, Sequence[Sequence[Axes]]]":
    """A figure with so many panels for each scenario, each high enough for so many rows. Raises what `check` does."""
    check(path)
    from matplotlib.figure import Figure  # noqa: PLC0415 (optional)

    figure = Figure(figsize=(13, scenarios * (2 + _INCH_PER_ROW * rows)), layout="constrained")
    return figure, figure.subplots(scenarios, columns, squeeze=False).tolist()


def plot(path: Path, rows: Sequence[Row], ratios: Sequence[Ratio]) -> None:
    """Draw, per scenario, the ratios with their intervals and, where records are, how TTFT is distributed.

    Raises Missing, and ValueError for a format that is not offered.
    """
    scenarios = list(dict.fromkeys(row.scenario for row in rows))
    longest = max(sum(ratio.scenario == scenario for ratio in ratios) for scenario in scenarios)
    figure, panels = paper(path, len(scenarios), 2, longest)
    for scenario, (left, right) in zip(scenarios, panels, strict=True):
        _draw_ratios(left, scenario, [r for r in ratios if r.scenario == scenario and r.ratio])
        _draw_distributions(right, [row for row in rows if row.scenario == scenario])
    figure.savefig(path)


def _draw_ratios(axes: "Axes", scenario: str, ratios: Sequence[Ratio]) -> None:
    metrics = list(dict.fromkeys(ratio.metric for ratio in ratios))
    arms = list(dict.fromkeys(ratio.arm for ratio in ratios))
    for place, arm in enumerate(arms):
        mine = [ratio for ratio in ratios if ratio.arm == arm]
        values = [ratio.ratio or 0.0 for ratio in mine]
        below = [value - (ratio.low or value) for value, ratio in zip(values, mine, strict=True)]
        above = [(ratio.high or value) - value for value, ratio in zip(values, mine, strict=True)]
        heights = [metrics.index(ratio.metric) + 0.6 * (place + 0.5) / len(arms) - 0.3 for ratio in mine]
        axes.errorbar(values, heights, xerr=[below, above], fmt="o", markersize=4, capsize=2, label=arm)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(metrics)), metrics, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(f"ratio to {ratios[0].baseline}, 95 % interval over seeds" if ratios else "")
    axes.set_title(scenario)
    if arms:
        axes.legend(fontsize=8)


def _draw_distributions(axes: "Axes", rows: Sequence[Row]) -> None:
    drawn = False
    for arm in dict.fromkeys(row.arm for row in rows):
        files = dict.fromkeys(row.records for row in rows if row.arm == arm)
        values = sorted(_ttfts(path for path in files if path is not None and path.exists()))
        if not values:
            continue
        step = max(1, len(values) // _POINTS)
        shares = [100 * (place + 1) / len(values) for place in range(len(values))]
        axes.step(values[::step], shares[::step], where="post", label=arm)
        drawn = True
    if not drawn:
        axes.set_axis_off()
        return
    axes.set_xscale("log")
    axes.set_xlabel("TTFT, ms")
    axes.set_ylabel("% of completed requests")
    axes.legend(fontsize=8)


def _ttfts(paths: Iterable[Path]) -> list[float]:
    return [
        each.ttft_ms
        for path in paths
        for each in record.read(path)
        if each.completed and not each.warm_up and each.ttft_ms is not None
    ]
