from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.fit import Fit, Kept


class Once(NamedTuple):
    """A model of one number."""

    each: float


class Line(NamedTuple):
    fixed: float
    token: float


def line(tokens: float) -> Line:
    return Line(1.0, tokens)


def told(fit: Fit[Once], seconds: Sequence[float], *, start: float = 0.0) -> Fit[Once]:
    for number, each in enumerate(seconds):
        fit.observe(Once(1.0), each, start + number)
    return fit


def taught(fit: Fit[Line], truth: Line, tokens: Sequence[float], *, start: float = 0.0) -> Fit[Line]:
    for number, each in enumerate(tokens):
        fit.observe(line(each), truth.fixed + truth.token * each, start + number)
    return fit


def test_before_the_first_sample_it_is_the_prior() -> None:
    fit = Fit(Line(0.5, 0.25), 10)
    assert fit.coefficients == (0.5, 0.25)
    assert fit.seconds(line(2)) == 1.0
    assert fit.evidence(0.0) == 0.0


@pytest.mark.parametrize(
    ("seconds", "weight"),
    [
        (1.0, 1.0),
        (2.0, 1 / 2),  # 1 ÷ (model · sample)
        (0.5, 1.0),  # 1 ÷ model², as half is no further off than usual
        (8.0, 4 / 7 / (3.2 * 8)),  # 7 ÷ 8 off, where half is usual at first, and of 8 s 3.2 stand for the model
    ],
)
def test_a_first_sample_counts_for_a_hundred_priors_or_less_where_it_is_far_out(seconds: float, weight: float) -> None:
    fit = Fit(Once(1.0), 10)
    fit.observe(Once(1.0), seconds, 0.0)
    assert fit.coefficients.each == pytest.approx((weight * seconds + 0.01) / (weight + 0.01))


def test_a_sample_twice_as_long_moves_it_as_far_as_one_half_as_long() -> None:
    def moved(seconds: float) -> float:
        fit = Fit(Once(1.0), 1_000)
        for number in range(1_000):
            fit.observe(Once(1.0), 1.0, float(number))
        fit.observe(Once(1.0), seconds, 1_000.0)
        return fit.coefficients.each - 1.0

    assert moved(2.0) == pytest.approx(-moved(0.5), rel=0.01)
    assert moved(4.0) < -moved(0.0)
    assert 0 < moved(400.0) < moved(40.0) < moved(4.0)


def test_of_its_memory_the_oldest_weighs_a_third_of_the_newest() -> None:
    fit = Fit(Once(1.0), 100)
    for number in range(2_000):
        fit.observe(Once(1.0), 1.0, number * 0.001)
    assert fit.evidence(2.0) > 50
    assert fit._kept**100 == pytest.approx(1 / 3, rel=0.1)


def test_evidence_is_how_many_samples_it_rests_on_and_ages() -> None:
    fit = taught(Fit(Line(1.0, 1.0), 1_000), Line(1.0, 1.0), [1.0, 2.0])
    assert fit.evidence(1.0) == pytest.approx(2, rel=2e-3)
    assert fit.evidence(1801.0) == pytest.approx(1, rel=2e-3)
    assert fit.evidence(0.0) == fit.evidence(1.0)


def test_one_that_has_all_that_it_remembers_takes_samples_as_seldom_as_makes_a_difference() -> None:
    fit = Fit(Once(1.0), 4)
    for number in range(3):
        fit.observe(Once(1.0), 1.0, number * 1e-3)
    full = fit.evidence(2e-3)
    assert full > 2
    fit.observe(Once(1.0), 9.0, 3e-3)
    assert (fit.evidence(3e-3), fit.coefficients) == (pytest.approx(full), (1.0,))
    fit.observe(Once(1.0), 9.0, 0.03)
    assert fit.coefficients.each > 1.0


def test_what_samples_leave_open_the_prior_decides() -> None:
    """Of prompts of one length nobody can tell what is fixed."""
    fit = taught(Fit(Line(0.5, 0.5), 100), Line(1.0, 1.0), [1.0] * 50)
    assert fit.seconds(line(1.0)) == pytest.approx(2.0, rel=0.01)
    assert fit.coefficients.fixed == pytest.approx(fit.coefficients.token, rel=0.02)


def test_samples_of_two_lengths_tell_the_line_through_them() -> None:
    fit = taught(Fit(Line(5.0, 0.1), 100), Line(1.0, 0.5), [1.0, 10.0] * 200)
    assert fit.coefficients == pytest.approx((1.0, 0.5), rel=0.02)


def test_no_coefficient_falls_below_0() -> None:
    fit = Fit(Line(1.0, 1.0), 100)
    for number in range(100):
        tokens = 1.0 + number % 4
        fit.observe(line(tokens), 4.0 - 0.5 * tokens, float(number))
    assert fit.coefficients.token == 0.0
    assert fit.coefficients.fixed == pytest.approx(2.6, rel=0.1)


def test_what_was_learned_to_be_nothing_may_turn_out_to_be_something() -> None:
    fit = taught(Fit(Line(1.0, 1.0), 20), Line(1.0, 0.0), [1.0, 10.0] * 50)
    assert fit.coefficients.token < 1e-2
    taught(fit, Line(1.0, 3.0), [1.0, 10.0] * 200, start=100.0)
    assert fit.coefficients == pytest.approx((1.0, 3.0), rel=0.05)


def test_with_one_scale_a_first_long_prompt_tells_of_short_ones_too() -> None:
    """Four times the prior's seconds for 100 tokens: of what is fixed, a hundredth of them, next to nothing is seen."""
    alike, apart = (Fit(Line(0.1, 0.1), 50, one_scale=each) for each in (True, False))
    for fit in (alike, apart):
        fit.observe(line(100), 4 * 10.1, 0.0)
    assert alike.coefficients.fixed > 2 * 0.1
    assert apart.coefficients.fixed == pytest.approx(0.1, rel=0.05)
    assert [fit.seconds(line(100)) for fit in (alike, apart)] == pytest.approx([40.4, 40.4], rel=0.1)


def test_with_one_scale_samples_of_two_lengths_still_tell_the_line_through_them() -> None:
    fit = taught(Fit(Line(0.1, 0.1), 50, one_scale=True), Line(2.0, 0.05), [10, 1_000] * 20)
    assert fit.coefficients == pytest.approx((2.0, 0.05), rel=0.02)


def test_a_fit_is_another_ones_prior_with_what_that_has_learned_since() -> None:
    fleet = Fit(Line(10.0, 10.0), 100)
    rank = Fit(fleet, 100)
    assert rank.coefficients == (10.0, 10.0)
    taught(fleet, Line(1.0, 2.0), [1.0, 10.0] * 100)
    assert Fit(fleet, 100).coefficients == fleet.coefficients
    rank.observe(line(1.0), 3.0, 0.0)
    assert rank.coefficients == pytest.approx((1.0, 2.0), rel=0.02)
    assert rank.least == fleet.least == (0.2, 0.2)


@pytest.mark.parametrize("prior", [Line(0.0, 1.0), Line(1.0, -1.0), Line(1.0, float("nan")), Line(float("inf"), 1.0)])
def test_a_prior_that_is_none_is_refused(prior: Line) -> None:
    with pytest.raises(ValueError, match="coefficients > 0 are needed"):
        Fit(prior, 10)


# --- what is taken for what it is not


def disturbed(rng: Random, seconds: float) -> float:
    """A tenth off, and one in five takes two to ten times as long, since something else goes on."""
    seconds *= rng.lognormvariate(0.0, 0.1)
    return seconds * rng.uniform(2.0, 10.0) if rng.random() < 0.2 else seconds


def test_what_one_in_five_samples_has_waited_for_is_hardly_in_the_price() -> None:
    truth, off = Line(1.0, 0.1), []
    for seed in range(20):
        fit, rng = Fit(Line(1.0, 0.1), 50), Random(seed)
        for number in range(200):
            tokens = rng.uniform(1, 100)
            fit.observe(line(tokens), disturbed(rng, truth.fixed + truth.token * tokens), float(number))
        off += [fit.seconds(line(tokens)) / (truth.fixed + truth.token * tokens) for tokens in (5.0, 30.0, 90.0)]
    assert sum(off) / len(off) < 1.1  # a mean is 2.0
    assert 0.8 < min(off) < max(off) < 1.4


@pytest.mark.parametrize("times", [3.0, 1 / 3])
def test_a_step_is_followed_though_never_was_a_sample_off_before(times: float) -> None:
    fit = told(told(Fit(Once(1.0), 20), [1.0] * 500), [times] * 100, start=500.0)
    assert fit.coefficients.each == pytest.approx(times, rel=0.1)


def test_what_is_left_of_more_is_off_by_as_much_as_the_whole() -> None:
    """A second that is left of ten and one that is all there is are as far out when they are three."""

    def moved(beside: float) -> float:
        fit = Fit(Once(1.0), 100)
        for number in range(100):
            fit.observe(Once(1.0), 1.0, float(number), beside)
        fit.observe(Once(1.0), 3.0, 100.0, beside)
        return fit.coefficients.each - 1.0

    assert moved(9.0) > 3 * moved(0.0) > 0.0


def test_what_is_left_may_be_less_than_nothing_and_the_price_is_nothing_then() -> None:
    fit = Fit(Once(1.0), 10)
    for number in range(10):
        fit.observe(Once(1.0), -0.5, float(number), beside=2.0)
    assert fit.coefficients.each == 0.0
    for number in range(10, 60):
        fit.observe(Once(1.0), 0.5, float(number), beside=2.0)
    assert fit.coefficients.each == pytest.approx(0.5, rel=0.1)


def test_one_term_that_takes_two_hundred_times_what_was_believed_is_found_beside_others_that_do_not() -> None:
    truth, rng = Line(1.0, 0.5), Random(7)
    fit = taught(Fit(Line(1.0, 0.0025), 50), truth, [rng.choice((0.5, 2.0, 8.0)) for _ in range(200)])
    assert fit.coefficients == pytest.approx(truth, rel=0.02)


# --- what is kept of it


def test_what_was_kept_is_what_another_begins_with() -> None:
    fit = taught(Fit(Line(5.0, 5.0), 100), Line(1.0, 0.5), [1.0, 10.0] * 100)
    state = fit.state(200.0)
    assert state == Kept(tuple(fit.coefficients), fit.evidence(200.0))
    other = Fit(Line(5.0, 5.0), 100)
    other.restore(state.coefficients)
    assert (other.coefficients, other.evidence(200.0)) == (fit.coefficients, 0.0)
    assert isinstance(other.coefficients, Line)
    other.observe(line(10.0), 6.0, 201.0)
    assert other.coefficients == pytest.approx((1.0, 0.5), rel=0.03)


def test_whole_numbers_are_coefficients_too() -> None:
    fit = Fit(Line(5.0, 5.0), 100)
    fit.restore([2, 0])
    fit.observe(line(1.0), 2.0, 0.0)
    assert fit.seconds(line(1.0)) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    "kept", [[], [1.0], [1.0] * 3, [1.0, -1e-9], [1.0, float("nan")], [1.0, float("inf")], [1.0, 1e300]]
)
def test_what_are_no_coefficients_is_refused(kept: list[float]) -> None:
    fit = Fit(Line(5.0, 5.0), 100)
    with pytest.raises(ValueError, match="2 coefficients >= 0 are needed"):
        fit.restore(kept)
    assert fit.coefficients == (5.0, 5.0)


@pytest.mark.parametrize("kept", [None, 7, [None, None], ["1", "2"]])
def test_what_are_no_numbers_is_refused(kept: Any) -> None:
    with pytest.raises(TypeError):
        Fit(Line(5.0, 5.0), 100).restore(kept)


# --- whatever is told

terms = st.tuples(st.floats(0, 1e3), st.floats(0, 1e6)).filter(any).map(lambda each: Line(*each))
samples = st.lists(st.tuples(terms, st.floats(-1e6, 1e6), st.floats(-10, 1e5)), max_size=40)


@given(samples=samples, prior=st.tuples(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3)), memory=st.integers(1, 300))
def test_coefficients_stay_finite_and_not_below_0(
    samples: list[tuple[Line, float, float]], prior: tuple[float, float], memory: int
) -> None:
    fleet = Fit(Line(*prior), memory)
    rank, now = Fit(fleet, memory), 0.0
    for each, seconds, later in samples:
        now += later
        for fit in (fleet, rank):
            fit.observe(each, seconds, now)
            assert all(0 <= coefficient < float("inf") for coefficient in fit.coefficients)
            assert 0 <= fit.evidence(now) <= memory * 1.001


@given(state=st.lists(st.floats(0, 1e6), min_size=2, max_size=2), samples=samples)
def test_what_was_restored_can_go_on(state: list[float], samples: list[tuple[Line, float, float]]) -> None:
    fit = Fit(Line(1.0, 1.0), 20)
    fit.restore(state)
    for each, seconds, later in samples:
        fit.observe(each, seconds, later)
    assert all(0 <= coefficient < float("inf") for coefficient in fit.coefficients)


# --- where it gets to


def noisy(rng: Random, seconds: float) -> float:
    """A fifth off, and one in ten no sample at all."""
    seconds *= rng.lognormvariate(0.0, 0.2)
    return rng.choice([5 * seconds, seconds / 10]) if rng.random() < 0.1 else seconds


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_prior_that_is_off_tenfold_is_within_a_fifth_after_a_hundred_noisy_samples(factor: float) -> None:
    truth = Line(1.0, 0.1)
    off = []
    for seed in range(20):
        fit, rng = Fit(Line(factor * truth.fixed, factor * truth.token), 50), Random(seed)
        for number in range(100):
            tokens = rng.uniform(1, 100)
            fit.observe(line(tokens), noisy(rng, truth.fixed + truth.token * tokens), float(number))
        off.append(fit.seconds(line(30.0)) / 4.0)
    assert 0.8 < min(off) < max(off) < 1.2
    assert sum(off) / len(off) == pytest.approx(0.96, abs=0.04)
