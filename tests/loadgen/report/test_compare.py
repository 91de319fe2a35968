import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from loadgen.report.compare import Row, compare, read, student


def rows(arm: str, values: list[float], *, scenario: str = "s", first_seed: int = 0) -> list[Row]:
    return [
        Row(scenario=scenario, arm=arm, seed=seed, figures={"mean_ttft_ms": value})
        for seed, value in enumerate(values, first_seed)
    ]


def test_the_ratio_is_of_the_means() -> None:
    (ratio,) = compare(rows("a", [100.0, 300.0]) + rows("b", [50.0, 50.0]))
    assert (ratio.baseline, ratio.arm, ratio.metric, ratio.seeds) == ("a", "b", "mean_ttft_ms", 2)
    assert (ratio.baseline_mean, ratio.mean, ratio.ratio) == (200.0, 50.0, 0.25)


def test_one_seed_has_no_interval() -> None:
    (ratio,) = compare(rows("a", [100.0]) + rows("b", [50.0]))
    assert (ratio.ratio, ratio.low, ratio.high) == (0.5, None, None)


def test_what_seeds_share_does_not_widen_the_interval() -> None:
    base = [100.0, 200.0, 400.0, 800.0]
    (paired,) = compare(rows("a", base) + rows("b", [value * 0.5 for value in base]))
    assert paired.low == pytest.approx(0.5)
    assert paired.high == pytest.approx(0.5)
    (apart,) = compare(rows("a", base) + rows("b", [value * 0.5 for value in base], first_seed=10))
    assert apart.low is not None
    assert apart.high is not None
    assert apart.low < 0.2
    assert apart.high > 1.2


@pytest.mark.parametrize("first_seed", [0, 100])
def test_the_interval_holds_the_truth_as_often_as_it_says(first_seed: int) -> None:
    drawn, held = random.Random(5), 0
    for _ in range(400):
        a = [drawn.gauss(100, 10) for _ in range(5)]
        b = [drawn.gauss(80, 8) for _ in range(5)]
        (ratio,) = compare(rows("a", a) + rows("b", b, first_seed=first_seed))
        held += (ratio.low or math.inf) <= 0.8 <= (ratio.high or 0.0)
    assert 0.92 <= held / 400 <= 0.98


def test_nothing_is_said_of_a_ratio_to_zero() -> None:
    (ratio,) = compare(rows("a", [0.0, 0.0]) + rows("b", [1.0, 2.0]))
    assert (ratio.ratio, ratio.low) == (None, None)


def test_scenarios_are_apart_and_any_arm_may_be_the_baseline() -> None:
    made = rows("a", [1.0]) + rows("b", [2.0]) + rows("a", [3.0], scenario="t") + rows("b", [9.0], scenario="t")
    assert [(r.scenario, r.ratio) for r in compare(made)] == [("s", 2.0), ("t", 3.0)]
    assert [r.ratio for r in compare(made, baseline="b")] == [0.5, pytest.approx(1 / 3)]
    with pytest.raises(ValueError, match="no arm 'c'; there are a, b"):
        compare(made, baseline="c")


def test_metrics_that_an_arm_lacks_are_left_out() -> None:
    assert compare(rows("a", [1.0]) + rows("b", [2.0]), metrics=["p99_ttft_ms"]) == []


def test_results_are_rows_and_one_without_an_arm_goes_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "pulls.json"
    figures: list[dict[str, Any]] = [
        {"scenario": "s", "arm": "", "seed": 3, "completed": 4, "requests_file": "x.jsonl"}
    ]
    file.write_text(json.dumps(figures))
    (row,) = read(file)
    assert (row.scenario, row.arm, row.seed, row.records) == ("s", "pulls", 3, tmp_path / "x.jsonl")
    file.write_text(json.dumps({"completed": 1}))
    assert read(file)[0].figures == {"completed": 1}
    file.write_text("[1]")
    with pytest.raises(ValueError, match="is no result"):
        read(file)


def test_students_quantiles() -> None:
    assert student(1.0) == 12.706
    assert student(4.9) == student(4.0) == 2.776
    assert student(60.0) == pytest.approx(2.000, abs=0.001)
    assert student(0.2) == student(1.0)
