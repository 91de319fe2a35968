"""What a simulation came to, in the names that load tests use, and tables of it."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from loadgen.report.table import aligned
from loadgen.sim.life import Outcome
from loadgen.sim.simulation import Simulation


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario under one arm with one seed. Times are milliseconds, of requests that were answered."""

    scenario: str
    arm: str
    seed: int
    completed: int
    failed: int
    request_throughput: float
    output_throughput: float
    mean_ttft_ms: float
    median_ttft_ms: float
    p90_ttft_ms: float
    p99_ttft_ms: float
    mean_e2el_ms: float
    p99_e2el_ms: float
    cached_share: float
    pulls: int
    empty_pulls: int
    pulled_tokens: int
    recomputed_tokens: int
    preemptions: int
    event_gaps: int
    lost_batches: int


def row(scenario: str, arm: str, seed: int, simulation: Simulation, *, warm_up_s: float = 0.0) -> Row:
    """Of what was due after the warm-up. `recomputed_tokens` are prompt tokens that were computed, all in all."""
    counted = [outcome for outcome in simulation.outcomes if outcome.due >= warm_up_s]
    answered = [outcome for outcome in counted if not outcome.error]
    first = sorted((outcome.first or 0.0) - outcome.due for outcome in answered)
    whole = sorted((outcome.ended or 0.0) - outcome.due for outcome in answered)
    seconds = _seconds(counted)
    prompts = sum(outcome.prompt_tokens for outcome in answered)
    reused = sum(outcome.gpu_tokens + outcome.cpu_tokens + outcome.pulled_tokens for outcome in answered)
    pods = list(simulation.fleet.all_ever())
    loaders = [pod.loader for pod in pods if pod.role != "decode"]  # what these get is handed to them
    engines = [pod.engine for pod in pods]
    return Row(
        scenario=scenario,
        arm=arm,
        seed=seed,
        completed=len(answered),
        failed=len(counted) - len(answered),
        request_throughput=len(answered) / seconds if seconds else 0.0,
        output_throughput=sum(outcome.output_tokens for outcome in answered) / seconds if seconds else 0.0,
        mean_ttft_ms=_ms(statistics.fmean(first)) if first else 0.0,
        median_ttft_ms=_ms(np.quantile(first, 0.5)) if first else 0.0,
        p90_ttft_ms=_ms(np.quantile(first, 0.9)) if first else 0.0,
        p99_ttft_ms=_ms(np.quantile(first, 0.99)) if first else 0.0,
        mean_e2el_ms=_ms(statistics.fmean(whole)) if whole else 0.0,
        p99_e2el_ms=_ms(np.quantile(whole, 0.99)) if whole else 0.0,
        cached_share=reused / prompts if prompts else 0.0,
        pulls=sum(loader.pulls for loader in loaders),
        empty_pulls=sum(loader.empty_pulls for loader in loaders),
        pulled_tokens=sum(loader.pulled_tokens for loader in loaders),
        recomputed_tokens=sum(engine.computed_tokens for engine in engines),
        preemptions=sum(engine.preemptions for engine in engines),
        event_gaps=sum(pod.feed.numbers.gaps for pod in pods),
        lost_batches=sum(pod.feed.numbers.lost for pod in pods),
    )


def _seconds(outcomes: Iterable[Outcome]) -> float:
    """From the first that was due to the last end."""
    began, ended = float("inf"), 0.0
    for outcome in outcomes:
        began = min(began, outcome.due)
        ended = max(ended, outcome.ended or outcome.due)
    return max(0.0, ended - began)


def _ms(seconds: float | np.floating[Any]) -> float:
    return round(float(seconds) * 1e3, 3)


_COLUMNS = (
    ("completed", "ok", "{:,.0f}"),
    ("failed", "failed", "{:,.0f}"),
    ("request_throughput", "req/s", "{:.2f}"),
    ("mean_ttft_ms", "mean", "{:,.0f}"),
    ("median_ttft_ms", "p50", "{:,.0f}"),
    ("p90_ttft_ms", "p90", "{:,.0f}"),
    ("p99_ttft_ms", "p99", "{:,.0f}"),
    ("cached_share", "cached", "{:.0%}"),
    ("pulled_tokens", "pulled", "{:,.0f}"),
    ("preemptions", "preempted", "{:,.0f}"),
)


def table(rows: Sequence[Row]) -> str:
    """A line per scenario and arm: medians over the seeds; TTFT in milliseconds."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for each in rows:
        groups.setdefault((each.scenario, each.arm), []).append(each)
    lines = [["scenario", "arm", "seeds", *(title for _, title, _ in _COLUMNS)]]
    for (scenario, arm), found in groups.items():
        cells = [form.format(statistics.median(getattr(each, name) for each in found)) for name, _, form in _COLUMNS]
        lines.append([scenario, arm, str(len(found)), *cells])
    return "\n".join(aligned(lines, left=2))
