import math
from random import Random
from statistics import fmean, median
from typing import Any

import msgspec
import pytest

from loadgen.workload.datasets.distributions import (
    LogNormal,
    Seconds,
    Tokens,
    Uniform,
    check_range,
    draw_seconds,
    draw_tokens,
)


def test_a_number_is_itself() -> None:
    assert draw_tokens(256, Random(1)) == 256
    assert draw_seconds(1.5, Random(1)) == 1.5


def test_both_ends_of_a_uniform_length_are_drawn_as_often_as_any() -> None:
    rng = Random(1)
    drawn = [draw_tokens(Uniform(low=3, high=6), rng) for _ in range(8_000)]
    assert set(drawn) == {3, 4, 5, 6}
    assert all(drawn.count(value) == pytest.approx(2_000, rel=0.1) for value in set(drawn))


def test_a_uniform_duration_need_not_be_whole() -> None:
    rng = Random(1)
    drawn = [draw_seconds(Uniform(low=1, high=20), rng) for _ in range(5_000)]
    assert 1 <= min(drawn) < 1.1
    assert 19.9 < max(drawn) <= 20
    assert fmean(drawn) == pytest.approx(10.5, rel=0.05)


def test_a_lognormal_length_has_its_median_and_mean() -> None:
    rng = Random(1)
    drawn = [draw_tokens(LogNormal(median=1_800, mean=3_500), rng) for _ in range(50_000)]
    assert median(drawn) == pytest.approx(1_800, rel=0.05)
    assert fmean(drawn) == pytest.approx(3_500, rel=0.05)


def test_a_lognormal_duration_ends_where_it_is_cut() -> None:
    rng = Random(1)
    drawn = [draw_seconds(LogNormal(median=2, mean=4, high=5), rng) for _ in range(1_000)]
    assert max(drawn) == 5
    assert drawn.count(5) > 50


def test_a_length_is_never_nothing() -> None:
    assert min(draw_tokens(LogNormal(median=0.1, mean=0.2), Random(seed)) for seed in range(50)) == 1


def test_a_lognormal_without_spread_is_a_number() -> None:
    assert draw_seconds(LogNormal(median=2, mean=2), Random(1)) == pytest.approx(2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"256", 256),
        (b'{"type": "uniform", "low": 1, "high": 20}', Uniform(low=1, high=20)),
        (b'{"type": "lognormal", "median": 5, "mean": 8, "high": 100}', LogNormal(median=5, mean=8, high=100)),
    ],
)
def test_each_has_its_form_in_a_file(text: bytes, expected: Tokens) -> None:
    assert msgspec.json.decode(text, type=Tokens) == expected
    assert msgspec.json.decode(text, type=Seconds) == expected


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Uniform, {"low": 2, "high": 1}, "low must be at most high"),
        (Uniform, {"low": 2, "high": math.inf}, "both finite"),
        (Uniform, {"low": math.nan, "high": 1}, "low must be at most high"),
        (LogNormal, {"median": 0, "mean": 1}, "median must be above 0"),
        (LogNormal, {"median": 2, "mean": 1}, "at most mean"),
        (LogNormal, {"median": 2, "mean": math.inf}, "at most mean"),
        (LogNormal, {"median": 2, "mean": 3, "high": 1}, "high must be at least median"),
    ],
)
def test_what_is_no_distribution_is_refused(kind: Any, fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**fields)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, Uniform(low=0, high=9)])
def test_what_may_be_out_of_range_is_refused_by_name(value: Seconds) -> None:
    with pytest.raises(ValueError, match="pause must be at least 1, not"):
        check_range(1, pause=value)


@pytest.mark.parametrize("value", [1.01, -0.5, Uniform(low=0.5, high=2)])
def test_a_share_is_between_0_and_1(value: Seconds) -> None:
    with pytest.raises(ValueError, match="share must be between 0 and 1, not"):
        check_range(0, 1, share=value)


def test_what_is_in_range_or_left_out_passes() -> None:
    check_range(1, a=1, b=None, c=Uniform(low=1, high=1), d=LogNormal(median=0.5, mean=1))
    check_range(0, 1, a=0.0, b=1.0, c=Uniform(low=0, high=1))
