"""A calibration as a picture, PNG or SVG by the file's name. matplotlib is an extra, imported when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.calibrate.result import Result, Way

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FORMATS: Final = (".png", ".svg")
_NEEDS: Final = "--plot needs matplotlib: pip install 'p2p-gateway[report]'"


def check(path: Path) -> None:
    """Raises ValueError, one line, where nothing can be drawn there: before anything is measured."""
    if path.suffix not in _FORMATS:
        raise ValueError(f"--plot: {path} is to end in one of {', '.join(_FORMATS)}")
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 (optional)
    except ImportError as error:
        raise ValueError(_NEEDS) from error


def plot(path: Path, result: Result) -> None:
    """Draw both ways: medians as points, the costs as lines, and where a pull begins to pay. Raises OSError."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (optional)

    figure = Figure(figsize=(13, 5), layout="constrained")
    for axes, way in zip(figure.subplots(1, len(result.ways), sharey=True), result.ways, strict=True):
        _draw(axes, way)
    figure.suptitle(result.model)
    figure.savefig(path)


def _draw(axes: Axes, way: Way) -> None:
    tokens, rows = [row.tokens for row in way.rows], way.rows
    _leg(axes, tokens, [row.recompute_ms for row in rows], [row.fitted_recompute_ms for row in rows], "computed")
    _leg(axes, tokens, [row.pull_ms for row in rows], [row.fitted_pull_ms for row in rows], "pulled")
    axes.plot(tokens, [row.local_ms for row in rows], "o:", color="grey", markersize=3, label="local")
    if way.crossover is not None and way.crossover <= tokens[-1]:
        axes.axvline(way.crossover, color="black", linewidth=0.8, linestyle="--", label=f"from {way.crossover:,} on")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens")
    axes.set_ylabel("ms")
    axes.set_xticks(tokens, [f"{row.tokens:,}" for row in rows])
    axes.set_title(f"{way.consumer} pulls from {way.source}", fontsize=9)
    axes.grid(linewidth=0.3)
    axes.legend(fontsize=8)


def _leg(axes: Axes, tokens: Sequence[int], measured: Sequence[float], fitted: Sequence[float], name: str) -> None:
    (line,) = axes.plot(tokens, fitted, linewidth=1)
    axes.plot(tokens, measured, "o", markersize=4, color=line.get_color(), label=name)
