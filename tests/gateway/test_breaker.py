import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.breaker import Breaker

COOLDOWN_S = 5.0


def breaker(failures: int = 3) -> Breaker:
    return Breaker(failures=failures, cooldown=COOLDOWN_S)


@pytest.fixture
def opened() -> Breaker:
    """Opened at second 10 by one failure."""
    machine = breaker(failures=1)
    machine.failed(10.0, trial=False)
    return machine


def test_other_bounds_count_for_what_has_failed_already(opened: Breaker) -> None:
    opened.reconfigure(failures=2, cooldown=COOLDOWN_S)
    assert opened.state(10.0) == "closed"
    opened.failed(11.0, trial=False)
    assert opened.state(11.0) == "open"
    opened.reconfigure(failures=2, cooldown=1.0)
    assert opened.state(12.0) == "half-open"


# --- closed


def test_a_new_breaker_is_closed_and_admits_everything() -> None:
    machine = breaker()
    for _ in range(3):
        assert machine.state(0.0) == "closed"
        assert machine.admits(0.0)
        machine.began(0.0)


def test_fewer_failures_than_the_limit_leave_it_closed() -> None:
    machine = breaker()
    machine.failed(1.0, trial=False)
    machine.failed(2.0, trial=False)
    assert machine.state(2.0) == "closed"
    assert machine.admits(2.0)


def test_as_many_failures_in_a_row_as_the_limit_open_it() -> None:
    machine = breaker()
    for now in (1.0, 2.0, 3.0):
        machine.failed(now, trial=False)
    assert machine.state(3.0) == "open"
    assert not machine.admits(3.0)


def test_an_answer_in_between_starts_the_count_anew() -> None:
    machine = breaker()
    machine.failed(1.0, trial=False)
    machine.failed(2.0, trial=False)
    machine.succeeded(trial=False)
    machine.failed(3.0, trial=False)
    machine.failed(4.0, trial=False)
    assert machine.state(4.0) == "closed"


def test_a_client_that_left_counts_neither_way() -> None:
    machine = breaker()
    machine.failed(1.0, trial=False)
    machine.failed(2.0, trial=False)
    machine.ended(trial=False)
    assert machine.state(2.0) == "closed"
    machine.failed(3.0, trial=False)
    assert machine.state(3.0) == "open"


# --- open


def test_it_stays_open_for_the_whole_cooldown(opened: Breaker) -> None:
    assert opened.state(14.999) == "open"
    assert not opened.admits(14.999)
    assert opened.state(15.0) == "half-open"


def test_requests_that_were_under_way_before_it_opened_move_nothing(opened: Breaker) -> None:
    opened.failed(14.0, trial=False)
    assert opened.state(15.0) == "half-open"
    opened.succeeded(trial=False)
    assert opened.state(15.0) == "half-open"


def test_a_request_that_is_sent_all_the_same_is_no_trial(opened: Breaker) -> None:
    assert not opened.began(11.0)
    assert opened.admits(15.0)


def test_a_bystander_of_a_trial_does_not_free_its_place(opened: Breaker) -> None:
    assert opened.began(15.0)
    assert not opened.began(15.5)
    opened.ended(trial=False)
    assert not opened.admits(16.0)


# --- half-open


def test_half_open_admits_one_request_at_a_time(opened: Breaker) -> None:
    assert opened.admits(15.0)
    opened.began(15.0)
    assert opened.state(15.0) == "half-open"
    assert not opened.admits(15.0)
    assert not opened.admits(1000.0)


def test_a_trial_that_is_answered_closes_it(opened: Breaker) -> None:
    opened.succeeded(trial=opened.began(15.0))
    assert opened.state(15.0) == "closed"
    assert opened.admits(15.0)


def test_a_trial_that_fails_opens_it_again(opened: Breaker) -> None:
    opened.failed(16.0, trial=opened.began(15.0))
    assert opened.state(20.9) == "open"
    assert opened.admits(21.0)


def test_one_failed_trial_is_enough_whatever_the_limit() -> None:
    machine = breaker(failures=3)
    for now in (1.0, 2.0, 3.0):
        machine.failed(now, trial=False)
    machine.failed(9.0, trial=machine.began(8.0))
    assert machine.state(9.0) == "open"


def test_a_trial_without_a_verdict_frees_its_place(opened: Breaker) -> None:
    opened.ended(trial=opened.began(15.0))
    assert opened.state(15.0) == "half-open"
    assert opened.admits(15.0)


def test_after_many_failures_one_answer_still_closes_it() -> None:
    machine = breaker(failures=2)
    for now in range(50):
        machine.failed(float(now), trial=False)
    machine.succeeded(trial=machine.began(60.0))
    assert machine.state(60.0) == "closed"
    machine.failed(61.0, trial=False)
    assert machine.state(61.0) == "closed"


# --- whatever happens

# A request begins, or one of those under way comes to its end: answered, not answered, or abandoned.
Step = tuple[str, int]
steps = st.tuples(st.sampled_from(["begin", "succeed", "fail", "leave"]), st.integers(0, 10))  # whole seconds


def play(machine: Breaker, history: list[Step]) -> tuple[float, list[bool]]:
    """Run a history; the time it ends at and the requests, by whether they are trials, that are still under way."""
    now, under_way = 0.0, []
    for what, passed in history:
        now += passed
        if what == "begin":
            under_way.append(machine.began(now))
        elif under_way:
            trial = under_way.pop(0)
            if what == "succeed":
                machine.succeeded(trial=trial)
            elif what == "fail":
                machine.failed(now, trial=trial)
            else:
                machine.ended(trial=trial)
        assert sum(under_way) <= 1
    return now, under_way


@settings(deadline=None)
@given(st.integers(1, 4), st.lists(steps))
def test_no_history_locks_a_pod_out_for_good(failures: int, history: list[Step]) -> None:
    machine = breaker(failures)
    now, under_way = play(machine, history)
    for trial in under_way:
        machine.ended(trial=trial)
    assert machine.admits(now + COOLDOWN_S)


@settings(deadline=None)
@given(st.integers(1, 4), st.lists(steps.filter(lambda step: step[0] != "fail")))
def test_a_pod_that_never_failed_is_never_left_out(failures: int, history: list[Step]) -> None:
    machine = breaker(failures)
    now, _ = play(machine, history)
    assert machine.state(now) == "closed"
    assert machine.admits(now)
