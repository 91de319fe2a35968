import numpy as np
import pytest

from loadgen.report.summary import Objectives, summarize
from loadgen.report.table import summary
from tests.loadgen.report.records import failure, record

KNOWN = {
    *("duration", "completed", "failed", "request_throughput", "request_goodput", "output_throughput"),
    *("total_token_throughput", "total_input_tokens", "total_output_tokens", "num_prompts", "max_concurrent_requests"),
    *(
        f"{part}_{name}_ms"
        for name in ("ttft", "tpot", "itl", "e2el", "schedule_delay")
        for part in ("mean", "median", "std", "p90", "p99")
    ),
}


def test_the_names_that_people_know_are_there() -> None:
    assert summarize([record()]).keys() >= KNOWN
    assert summarize([]).keys() >= KNOWN


def test_rates_are_over_the_time_from_the_first_due_to_the_last_end() -> None:
    row = summarize([record(number) for number in range(10)])
    assert row["duration"] == pytest.approx(9.15)
    assert row["request_throughput"] == pytest.approx(10 / 9.15)
    assert row["output_throughput"] == pytest.approx(50 / 9.15)
    assert row["total_token_throughput"] == pytest.approx(1050 / 9.15)


def test_percentiles_are_numpys() -> None:
    values = [float(value * value) for value in range(57)]
    row = summarize([record(ttft_ms=value) for value in values])
    assert row["mean_ttft_ms"] == pytest.approx(np.mean(values))
    assert row["std_ttft_ms"] == pytest.approx(np.std(values))
    for name, percent in {"median": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}.items():
        assert row[f"{name}_ttft_ms"] == pytest.approx(np.percentile(values, percent))


def test_the_warm_up_is_left_out() -> None:
    row = summarize([record(0, warm_up=True, ttft_ms=9e9), record(1)])
    assert (row["completed"], row["max_ttft_ms"]) == (1, 101.0)
    assert row["duration"] == pytest.approx(0.15)


def test_failures_are_counted_by_kind_and_what_the_load_cut_off_apart() -> None:
    row = summarize([record(0), failure(1), failure(2), failure(3, "status_503"), failure(4, "unfinished")])
    assert (row["num_prompts"], row["completed"], row["failed"], row["unfinished"]) == (5, 1, 3, 1)
    assert row["errors"] == {"timeout": 2, "status_503": 1}
    assert row["total_input_tokens"] == 100


def test_goodput_is_of_those_that_kept_all_their_objectives() -> None:
    objectives = Objectives({"ttft": 150.0, "tpot": 20.0})
    made = [record(0), record(1, ttft_ms=151.0), record(2, itl_ms=[81.0, 0, 0, 0]), failure(3)]
    row = summarize(made, objectives)
    assert row["request_goodput"] == pytest.approx(1 / row["duration"])
    assert summarize(made)["request_goodput"] is None
    assert summarize([record(0)], Objectives({"itl": 9.0, "e2el": 1e9}))["request_goodput"] == 0.0
    with pytest.raises(ValueError, match="no latency 'tftt'"):
        Objectives({"tftt": 1.0})


def test_pods_sources_and_cached_tokens_are_added_up() -> None:
    row = summarize([record(0, pod="a", source="b"), record(1, pod="a"), record(2, pod="b", cached_tokens=0)])
    assert row["pods"] == {"a": 2, "b": 1}
    assert (row["pulls"], row["cached_tokens"], row["recomputed_tokens"]) == (1, 128, 172)
    assert summarize([record(cached_tokens=None)])["cached_tokens"] is None


def test_most_at_once_counts_what_overlaps() -> None:
    assert summarize([record(number / 10) for number in range(10)])["max_concurrent_requests"] == 2  # type: ignore[arg-type]
    back_to_back = [record(0, sent_s=0.0, ended_s=1.0), record(1, sent_s=1.0, ended_s=2.0)]
    assert summarize(back_to_back)["max_concurrent_requests"] == 1


def test_phases_have_figures_of_their_own() -> None:
    row = summarize([record(0, phase="cold", ttft_ms=900.0), record(1, phase="warm"), record(2, phase="warm")])
    assert {name: phase["completed"] for name, phase in row["phases"].items()} == {"cold": 1, "warm": 2}
    assert row["phases"]["cold"]["mean_ttft_ms"] == 900.0
    assert "phases" not in summarize([record()])


def test_the_table_tells_it_in_short() -> None:
    text = summary(summarize([record(0, source="b"), failure(1)], Objectives({"ttft": 500.0})) | {"not_sent": 3})
    for part in (
        "1 completed, 1 failed, 0 unfinished",
        "within their objectives",
        "100 in (64% cached), 5 out",
        "a source was named for 1",
        "3, though they were due",
        "1 timeout",
    ):
        assert part in text
    assert ["TTFT", "101", "101", "101", "101", "101"] in [line.split() for line in text.splitlines()]
    assert ["TTFT", "-", "-", "-", "-", "-"] in [line.split() for line in summary(summarize([])).splitlines()]
