"""Circuit breakers of pulls, without a clock; the table of them is held against a model that keeps every failure."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pairs import Broken, Pair, Pairs
from scorers import Barred, Candidate

A, B, C, D = ((f"http://{name}", 0) for name in "abcd")


def pairs(**fields: Any) -> Pairs:
    return Pairs(**{"cooldown": 2.0, "longest": 10.0, "consumers": 2, **fields})


def named(found: Pairs, source: tuple[str, int], consumer: tuple[str, int]) -> bool:
    barred = found.barred
    may = barred is None or not barred.bars(Candidate(*source), Candidate(*consumer))
    assert may is (found.why(source, consumer) is None)
    return may


def test_nothing_is_barred_as_long_as_nothing_failed() -> None:
    found = pairs()
    assert found.barred is None
    assert found.next_due() is None
    assert found.due(100.0) == []
    assert list(found.broken(100.0)) == []
    assert not found.succeeded(A, B)


def test_one_failure_opens_a_pair_in_its_direction_only() -> None:
    found = pairs()
    found.failed(A, B, "late", 100.0)
    assert not named(found, A, B)
    assert named(found, B, A)
    assert named(found, A, C)
    assert list(found.broken(101.5)) == [Broken(A, B, "late", 1, 0.5)]
    assert found.open_counts() == (("pair", 1), ("source", 0))


def test_a_trial_falls_due_after_the_cooldown_and_its_success_closes() -> None:
    found = pairs()
    found.failed(A, B, "late", 100.0)
    assert found.next_due() == 102.0
    assert found.due(101.9) == []
    assert found.due(102.0) == [Pair(A, B)]
    assert found.due(103.0) == []
    assert found.next_due() is None
    assert list(found.broken(103.0)) == [Broken(A, B, "late", 1, None)]
    assert found.succeeded(A, B)
    assert found.barred is None


def test_a_trial_that_fails_opens_for_twice_as_long_up_to_the_longest() -> None:
    found = pairs()
    now, waits = 100.0, []
    found.failed(A, B, "late", now)
    for _ in range(5):
        due = found.next_due()
        assert due is not None
        waits.append(due - now)
        now = due
        assert found.due(now) == [Pair(A, B)]
        found.failed(A, B, "nothing", now)
    assert waits == [2.0, 4.0, 8.0, 10.0, 10.0]
    assert [each.why for each in found.broken(now)] == ["nothing"]


def test_requests_that_were_under_way_when_it_opened_do_not_make_it_worse() -> None:
    found = pairs()
    for now in (100.0, 100.5, 101.0):
        found.failed(A, B, "late", now)
    assert found.next_due() == 102.0


def test_a_trial_that_could_not_be_made_is_put_off_and_counts_as_nothing() -> None:
    found = pairs()
    found.failed(A, B, "late", 100.0)
    found.postponed(A, B, 101.0)  # none is under way
    assert found.next_due() == 102.0
    found.due(102.0)
    found.postponed(A, B, 103.0)
    found.postponed(A, C, 103.0)
    assert found.next_due() == 105.0
    for now, due in ((105.0, 109.0), (109.0, 117.0), (117.0, 127.0)):  # twice as late each time, up to the longest
        assert found.due(now) == [Pair(A, B)]
        found.postponed(A, B, now)
        assert found.next_due() == due
    found.restarted(A, [B], 120.0)
    assert found.due(120.0) == [Pair(A, B)]
    found.postponed(A, B, 120.0)
    assert found.next_due() == 122.0
    found.failed(A, B, "late", 103.0)  # and then as after the first failure
    assert found.due(found.next_due() or 0.0) == [Pair(A, B)]
    found.postponed(A, B, 103.0)
    assert found.next_due() == 105.0
    assert list(found.broken(103.0)) == [Broken(A, B, "late", 1, 2.0)]


def test_only_a_request_ends_a_row_of_failures_since_a_trial_is_small() -> None:
    found = pairs()
    assert not found.passed(A, B)
    for wait in (2.0, 4.0):
        found.failed(A, B, "nothing", 100.0)
        assert found.next_due() == 100.0 + wait
        found.due(110.0)
        assert found.passed(A, B)
        assert found.barred is None
        assert not found.passed(A, B)
    assert not found.succeeded(A, B)
    found.failed(A, B, "nothing", 100.0)
    assert found.next_due() == 102.0


def test_a_trial_absolves_a_source_as_well() -> None:
    found = pairs()
    found.failed(A, B, "late", 100.0)
    found.failed(A, C, "late", 100.0)
    assert not found.passed(A, D)
    assert named(found, A, D)
    assert not named(found, A, B)


def test_where_a_trial_tells_nothing_the_next_request_is_one() -> None:
    found = pairs()
    found.failed(A, B, "nothing", 100.0)
    found.due(102.0)
    found.unclear(A, B)
    found.unclear(A, C)
    assert named(found, A, B)
    assert found.next_due() is None
    assert list(found.broken(102.0)) == []
    found.failed(A, B, "nothing", 110.0)
    assert found.next_due() == 114.0
    found.due(114.0)
    found.unclear(A, B)
    assert not found.succeeded(A, B)  # it was closed
    found.failed(A, B, "nothing", 120.0)
    assert found.next_due() == 122.0


def test_a_source_that_fails_several_consumers_is_nobodys_until_one_of_them_gets_something() -> None:
    found = pairs()
    found.failed(A, B, "late", 100.0)
    found.failed(A, C, "late", 100.5)
    assert not named(found, A, D)
    assert next(iter(found.broken(100.5))) == Broken(A, None, "consumers", 2, None)
    assert found.due(110.0) == [Pair(A, B)]  # one trial at a time
    assert found.succeeded(A, B)
    assert named(found, A, B)
    assert named(found, A, D)
    assert not named(found, A, C)
    assert found.due(110.0) == [Pair(A, C)]


def test_a_success_between_two_failures_absolves_a_source() -> None:
    found = pairs()
    found.failed(A, B, "late", 100.0)
    assert not found.succeeded(A, D)  # which had not failed
    found.failed(A, C, "late", 101.0)
    assert named(found, A, D)


def test_what_nobody_can_tell_is_not_held_against_a_source() -> None:
    found = pairs()
    found.failed(A, B, "nothing", 100.0)
    found.due(102.0)
    found.unclear(A, B)
    found.failed(A, C, "nothing", 103.0)
    assert named(found, A, D)
    restarted = pairs()
    restarted.restarted(A, [B], 100.0)
    restarted.unclear(A, B)
    assert restarted.barred is None


def test_who_knew_a_source_before_it_restarted_is_tried_at_once_and_before_any_request() -> None:
    found = pairs()
    found.restarted(A, [B, C], 100.0)
    assert not named(found, A, B)
    assert named(found, A, D)
    assert found.due(100.0) == [Pair(A, B)]
    assert found.succeeded(A, B)
    found.due(100.0)
    found.failed(A, C, "late", 100.0)
    assert found.next_due() == 102.0


def test_a_doubted_pair_is_named_and_tried_once() -> None:
    found = pairs()
    found.doubt(A, B, 100.0)
    found.doubt(A, C, 100.0)
    assert found.barred is None
    assert found.next_due() == 100.0
    assert found.due(100.0) == [Pair(A, B)]
    assert found.due(100.0) == [Pair(A, C)]
    assert found.next_due() is None
    found.failed(A, B, "nothing", 100.0)
    assert not named(found, A, B)


def test_a_source_that_is_on_trial_has_nothing_due_before_the_trial_has_ended() -> None:
    found = pairs()
    for consumer in (B, C):
        found.failed(A, consumer, "late", 100.0)
    found.doubt(A, D, 100.0)
    assert found.due(102.0) == [Pair(A, B)]
    assert found.due(102.0) == []
    assert found.next_due() is None
    found.failed(B, A, "late", 105.0)
    assert found.next_due() == 107.0
    found.failed(A, B, "late", 103.0)
    assert found.next_due() == 100.0
    assert found.due(103.0) == [Pair(A, C)]


def test_a_port_where_nobody_listens_makes_no_source_and_is_news_once() -> None:
    found = pairs()
    assert not found.listens(A, listening=True)
    assert found.listens(A, listening=False)
    assert not found.listens(A, listening=False)
    assert found.is_deaf(A)
    assert not named(found, A, B)
    assert list(found.broken(0.0)) == [Broken(A, None, "port", 1, None)]
    assert found.listens(A, listening=True)
    assert named(found, A, B)


def test_pods_that_differ_are_not_paired_in_either_direction() -> None:
    found = pairs()
    found.differ([(A[0], B[0])])
    assert (found.why(A, B), found.why(B, A), found.why(A, C)) == ("differ", "differ", None)
    assert not named(found, B, A)
    found.differ([(B[0], A[0])])
    found.differ([])
    assert found.barred is None


@pytest.mark.parametrize("pod", [A, B])
def test_a_pod_that_is_gone_takes_along_what_is_known_of_it(pod: tuple[str, int]) -> None:
    found = pairs(consumers=1)
    found.failed(A, B, "late", 100.0)
    found.doubt(B, A, 100.0)
    found.listens(pod, listening=False)
    found.parted(pod[0])
    assert found.barred is None
    assert found.next_due() is None


def test_only_pods_that_exist_are_kept() -> None:
    found = pairs()
    for consumer in (B, C):
        found.failed(A, consumer, "late", 100.0)
    found.keep([A[0], B[0]])
    assert found.barred == Barred(pairs=frozenset({(A, B)}))
    found.keep([B[0]])
    assert found.barred is None


def test_changed_bounds_hold_for_what_has_failed_already() -> None:
    found = pairs()
    for consumer in (B, C):
        found.failed(A, consumer, "late", 100.0)
    found.reconfigure(cooldown=2.0, longest=10.0, consumers=3)
    assert named(found, A, D)


RANKS = st.sampled_from([A, B, C])
STEPS = st.lists(st.tuples(st.sampled_from(["failed", "succeeded", "passed", "unclear", "due", "gone"]), RANKS, RANKS))


@given(STEPS, st.integers(1, 3))
def test_a_pair_is_barred_exactly_while_it_or_its_source_is_open(steps: list[Any], consumers: int) -> None:
    found = pairs(consumers=consumers)
    open_pairs: set[Any] = set()
    struck: dict[Any, set[Any]] = {}
    for number, (what, source, consumer) in enumerate(steps):
        now = 100.0 + number
        if what == "failed":
            found.failed(source, consumer, "late", now)
            open_pairs.add((source, consumer))
            struck.setdefault(source, set()).add(consumer)
        elif what in ("succeeded", "passed"):
            (found.succeeded if what == "succeeded" else found.passed)(source, consumer)
            open_pairs.discard((source, consumer))
            struck.pop(source, None)
        elif what == "unclear":
            known = (source, consumer) in open_pairs
            found.unclear(source, consumer)
            if known:
                open_pairs.discard((source, consumer))
                struck.get(source, set()).discard(consumer)
        elif what == "due":
            tried = found.due(now)
            assert open_pairs >= set(tried)
            assert len({pair.source for pair in tried}) == len(tried)
        else:
            found.parted(source[0])
            open_pairs = {pair for pair in open_pairs if source not in pair}
            struck = {each: who - {source} for each, who in struck.items() if each != source}
        for one in (A, B, C):
            for other in (A, B, C):
                barred = (one, other) in open_pairs or len(struck.get(one, ())) >= consumers
                assert named(found, one, other) is not barred
