from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from index.audit import Audit, Counted, Finding


class Counters:
    """An audit, and the publisher it is about, which counts what it is asked."""

    def __init__(self) -> None:
        self.audit = Audit()
        self.now = Counted(1000, 500)
        assert self.poll() is None

    def count(self, prompt: int, cached: int) -> None:
        self.now = Counted(self.now.prompt + prompt, self.now.cached + cached)

    def serve(self, prompt: int, *, predicted: int | None, cached: int) -> None:
        self.audit.sent()
        self.count(prompt, cached)
        self.audit.answered(None if predicted is None else Counted(prompt, predicted))

    def poll(self) -> Finding | None:
        return self.audit.polled(self.audit.moves, self.now)


def test_what_was_predicted_of_a_span_is_held_against_what_was_counted() -> None:
    counters = Counters()
    counters.serve(100, predicted=96, cached=96)
    counters.serve(200, predicted=160, cached=0)
    assert counters.poll() == Finding("compared", 256, 96)


def test_every_poll_at_which_nothing_waits_begins_a_new_span() -> None:
    counters = Counters()
    counters.serve(100, predicted=96, cached=0)
    assert counters.poll() == Finding("compared", 96, 0)
    assert counters.poll() is None
    counters.serve(100, predicted=96, cached=96)
    assert counters.poll() == Finding("compared", 96, 96)


def test_a_span_goes_on_while_a_request_waits_for_its_first_byte() -> None:
    counters = Counters()
    counters.serve(100, predicted=96, cached=96)
    counters.audit.sent()
    counters.count(50, 16)
    assert counters.poll() is None
    counters.audit.answered(Counted(50, 32))
    assert counters.poll() == Finding("compared", 128, 112)


def test_a_span_goes_on_when_something_changed_while_the_poll_was_under_way() -> None:
    counters = Counters()
    before = counters.audit.moves
    counters.serve(100, predicted=96, cached=96)
    assert counters.audit.polled(before, counters.now) is None
    assert counters.poll() == Finding("compared", 96, 96)


def test_the_requests_of_others_are_noticed() -> None:
    counters = Counters()
    counters.serve(100, predicted=96, cached=0)
    counters.count(1, 0)
    assert counters.poll() == Finding("unmatched")
    counters.serve(100, predicted=96, cached=0)
    assert counters.poll() == Finding("compared", 96, 0)


def test_a_request_that_was_refused_and_not_counted_is_noticed() -> None:
    counters = Counters()
    counters.audit.sent()
    counters.audit.answered(Counted(100, 96))
    assert counters.poll() == Finding("unmatched")


def test_a_request_that_failed_matters_only_if_it_was_counted() -> None:
    counters = Counters()
    for counted in (0, 100):
        counters.serve(100, predicted=96, cached=96)
        counters.audit.sent()
        counters.count(counted, 0)
        counters.audit.failed()
        assert counters.poll() == (Finding("unmatched") if counted else Finding("compared", 96, 96))


def test_a_request_without_prediction_spoils_its_span() -> None:
    counters = Counters()
    counters.serve(100, predicted=96, cached=0)
    counters.serve(100, predicted=None, cached=96)
    assert counters.poll() == Finding("unpredicted")


def test_where_answers_tell_themselves_counters_are_not_asked() -> None:
    counters = Counters()
    counters.serve(100, predicted=96, cached=0)
    counters.audit.told()
    assert counters.poll() is None
    counters.serve(100, predicted=96, cached=0)
    assert counters.poll() == Finding("compared", 96, 0)


def test_without_counters_nothing_is_judged() -> None:
    audit = Audit()
    for counted in (None, Counted(0, 0), None):
        audit.sent()
        audit.answered(Counted(100, 96))
        assert audit.polled(audit.moves, counted) is None


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 500), st.integers(0, 500), st.integers(0, 500)), max_size=5), max_size=10
    )
)
def test_whatever_the_spans_each_is_judged_by_its_own_requests(spans: Iterable[list[tuple[int, int, int]]]) -> None:
    counters = Counters()
    for requests in spans:
        for prompt, predicted, cached in requests:
            counters.serve(prompt, predicted=predicted, cached=cached)
        expected = Finding("compared", sum(p for _, p, _ in requests), sum(c for *_, c in requests))
        assert counters.poll() == (expected if requests else None)
