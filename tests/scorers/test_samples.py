import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers import Costs, Prefill, Pull, Stopwatch, Timed
from scorers.costs import Rank

HERE, PEER = ("http://here:8000", 0), ("http://peer:8000", 0)
ONE = Prefill(1.0, 1_000.0, 1e6, 0.0)


class Told(Costs):
    """Keeps what it is told, and costs 0.1 s a request, 1 ms a token and 10 ms for each that decodes beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.samples: list[tuple[tuple[float, ...], float, float]] = []
        self.seconds: list[float] = []
        self.pulls: list[tuple[tuple[float, ...], float, float]] = []
        self.beside: list[float] = []

    def prefill(self, rank: Rank) -> Prefill:
        assert rank == HERE
        return Prefill(0.1, 1e-3, 0.0, 0.01)

    def computed(self, rank: Rank, terms: Prefill, seconds: float, now: float) -> None:
        assert rank == HERE
        self.samples.append((tuple(terms), pytest.approx(seconds), now))
        self.seconds.append(seconds)

    def pulled(
        self, source: Rank, consumer: Rank, terms: Pull, seconds: float, now: float, beside: float = 0.0
    ) -> None:
        assert (source, consumer) == (PEER, HERE)
        self.pulls.append((tuple(terms), pytest.approx(seconds), now))
        self.beside.append(pytest.approx(beside))


def computing(tokens: float = 1_000.0) -> Timed:
    return Timed(HERE, 5_000, ONE._replace(token=tokens))


def pulling(*, wait_s: float = 0.0, decoding: float = 0.0) -> Timed:
    computing = Prefill(1.0, 100.0, 1e6, decoding)
    return Timed(HERE, 5_000, computing, PEER, Pull(1.0, 4_000.0, 0.1, 0.0), wait_s)


def told(*answers: tuple[float, float] | tuple[float, float, Timed]) -> Told:
    """What is told when requests that were sent then have their first tokens then."""
    costs, stopwatch = Told(), Stopwatch()
    for sent, first, *work in answers:
        stopwatch.answered(costs, work[0] if work else computing(), sent, now=first)
    return costs


def test_a_request_that_nothing_is_before_takes_from_its_start_to_its_first_token() -> None:
    assert told((1.0, 3.0), (10.0, 14.0), (20.0, 21.0)).samples == [(ONE, 2.0, 3.0), (ONE, 4.0, 14.0)]


def test_one_that_comes_while_another_is_computed_takes_from_that_ones_first_token_on() -> None:
    assert told((1.0, 3.0), (1.5, 3.5), (1.6, 5.0), (9.0, 9.1)).samples == [
        (ONE, 2.0, 3.0),
        (ONE, 0.5, 3.5),
        (ONE, 1.5, 5.0),
    ]


def test_what_one_step_answers_is_one_sample_of_all_its_work() -> None:
    costs = told((1.0, 3.0, computing(10.0)), (1.1, 3.001, computing(20.0)), (1.2, 3.004, computing(30.0)), (9.0, 9.5))
    assert costs.samples == [((3.0, 60.0, 3e6, 0.0), 2.004, 3.004)]


def test_the_last_first_token_waits_for_the_next_since_it_may_belong_to_the_same_step() -> None:
    assert told((1.0, 3.0)).samples == []


def test_what_took_no_time_at_all_is_no_sample() -> None:
    assert told((3.0, 3.0), (4.0, 5.0), (6.0, 7.0)).samples == [(ONE, 1.0, 5.0)]


# --- pulls


def test_a_pull_is_what_the_rest_of_its_prompt_does_not_take() -> None:
    """5 s, of which 0.1 s are the request's, 0.1 s its 100 tokens', 0.02 s that of two that decode, 1 s the wait."""
    costs = told((1.0, 6.0, pulling(decoding=2.0, wait_s=1.0)))
    assert costs.pulls == [((1.0, 4_000.0, 0.1, 0.0), 3.78, 6.0)]
    assert costs.beside == [1.22]
    assert costs.samples == []


@pytest.mark.parametrize(("wait_s", "pulls"), [(1.5, 1), (1.59, 1), (1.61, 0), (4.0, 0), (9.0, 0)])
def test_a_pull_that_mostly_waited_says_nothing(wait_s: float, pulls: int) -> None:
    assert len(told((1.0, 6.0, pulling(wait_s=wait_s, decoding=0.0))).pulls) == pulls


def test_a_pull_that_took_less_than_the_rest_was_believed_to_is_a_sample_as_well() -> None:
    """Else of prices that are too high nothing would be learned, or only from what took long."""
    costs = told((1.0, 1.15, pulling()))
    assert costs.pulls == [((1.0, 4_000.0, 0.1, 0.0), -0.05, 1.15)]
    assert costs.beside == [0.2]


def test_a_pull_is_no_mark_from_which_the_next_prompt_was_computed() -> None:
    costs = told((1.0, 3.0), (2.0, 5.0, pulling()), (2.5, 6.0), (8.0, 9.0))
    assert costs.samples == [(ONE, 2.0, 3.0), (ONE, 3.0, 6.0)]


def test_from_one_that_waits_for_what_another_one_pulls_nothing_follows() -> None:
    costs = told((1.0, 3.0, computing()._replace(source=PEER)), (4.0, 5.0), (6.0, 6.5))
    assert (costs.samples, costs.pulls) == ([(ONE, 1.0, 5.0)], [])


def test_what_no_other_can_have_come_with_is_told_at_once() -> None:
    costs, stopwatch = Told(), Stopwatch()
    stopwatch.answered(costs, computing(), 1.0, now=3.0, alone=True)
    assert costs.samples == [(ONE, 2.0, 3.0)]
    stopwatch.answered(costs, computing(), 4.0, now=4.5)
    stopwatch.answered(costs, computing(), 4.0, now=6.0)
    assert costs.samples[1:] == [(ONE, 0.5, 4.5)]


@given(answers=st.lists(st.tuples(st.floats(0.001, 10), st.floats(0, 3)), min_size=1, max_size=30))
def test_all_work_is_told_once_and_no_more_time_than_passed(answers: list[tuple[float, float]]) -> None:
    costs, stopwatch, now = Told(), Stopwatch(), 10.0
    for before, later in answers:
        now += later
        stopwatch.answered(costs, computing(), now - before, now=now)
    stopwatch.answered(costs, computing(), now + 1.0, now=now + 2.0)
    assert min(costs.seconds) > 0
    assert sum(costs.seconds) <= now + 1e-6
    assert sum(terms[0] for terms, _, _ in costs.samples) == len(answers)
