"""Who waits, and who goes next."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.queue import FairQueue, Waiter
from tests.gateway.admission.waiting import LANE, OTHER, popped, queue, waiter


def pushed(into: FairQueue[Waiter], *waiters: Waiter) -> list[Waiter]:
    """Push all; who has been turned away for them."""
    return [away for each in waiters if (away := into.push(each)) is not None]


def keys(waiters: list[Waiter]) -> str:
    return "".join(each.key for each in waiters)


# --- order


def test_those_of_one_key_go_in_the_order_in_which_they_came() -> None:
    line = queue()
    waiters = [waiter(tokens=tokens) for tokens in (300, 1, 50, 2)]
    assert pushed(line, *waiters) == []
    assert (len(line), waiters[0] in line) == (4, True)
    assert popped(line) == waiters
    assert (len(line), waiters[0] in line) == (0, False)


def test_a_higher_priority_goes_first_whatever_its_key_has_had() -> None:
    line = queue()
    pushed(line, *(waiter("a") for _ in range(3)), waiter("b", priority=-1), waiter("c", priority=1))
    pushed(line, *(waiter("c", priority=1, tokens=10_000) for _ in range(2)))
    assert keys(popped(line)) == "cccaaab"


def test_equal_keys_go_in_turn() -> None:
    line = queue()
    pushed(line, *(waiter("a") for _ in range(3)), *(waiter("b") for _ in range(3)))
    assert keys(popped(line)) == "ababab"


def test_a_key_with_three_shares_goes_three_times_as_often() -> None:
    line = queue()
    pushed(line, *(waiter("a") for _ in range(40)), *(waiter("b", share=3.0) for _ in range(40)))
    order = keys(popped(line))
    assert Counter(order[:40]) == {"a": 10, "b": 30}


def test_tokens_are_shared_not_requests() -> None:
    line = queue()
    pushed(line, *(waiter("a", tokens=1000) for _ in range(20)), *(waiter("b", tokens=100) for _ in range(60)))
    order = keys(popped(line))
    assert Counter(order[:44]) == {"a": 4, "b": 40}


def test_a_key_that_comes_later_does_not_make_up_for_its_absence() -> None:
    line = queue()
    pushed(line, *(waiter("a") for _ in range(20)))
    assert keys(popped(line, most=10)) == "a" * 10
    pushed(line, *(waiter("b") for _ in range(10)))
    assert Counter(keys(popped(line))[:10]) == {"a": 5, "b": 5}


def test_a_key_that_leaves_and_comes_back_has_had_what_it_had() -> None:
    line = queue()
    pushed(line, *(waiter("a") for _ in range(20)), waiter("b", tokens=1000))
    assert keys(popped(line, most=2)) == "ab"
    pushed(line, waiter("b"))
    assert keys(popped(line)).index("b") == 10  # when a has had as much; of equals the older goes


def test_who_is_removed_is_not_charged_to_its_key() -> None:
    line = queue()
    gone = [waiter("a", tokens=10_000) for _ in range(3)]
    pushed(line, *gone, waiter("a"), waiter("b"), waiter("b"))
    for each in gone:
        line.remove(each)
        line.remove(each)  # of no effect
    assert keys(popped(line)) == "abb"


def test_who_is_next_keeps_its_place_and_is_not_charged_until_it_goes() -> None:
    line = queue()
    waiters = [waiter("a", tokens=1000), waiter("b"), waiter("b")]
    pushed(line, *waiters)
    assert [line.next({LANE}) for _ in range(3)] == [waiters[0]] * 3
    assert (len(line), waiters[0] in line, line.deadline) == (3, True, 30.0)
    assert popped(line) == waiters


def test_who_goes_out_of_turn_is_charged_alike() -> None:
    line = queue()
    first, second = waiter("a"), waiter("b", tokens=1000)
    pushed(line, first, second, waiter("b"), *(waiter("a") for _ in range(9)))
    line.go(second)
    assert keys(popped(line)) == "a" * 10 + "b"


def test_an_empty_priority_begins_anew() -> None:
    line = queue()
    pushed(line, waiter("a", tokens=10_000))
    assert keys(popped(line)) == "a"
    pushed(line, waiter("a"), waiter("b"))
    assert keys(popped(line)) == "ab"


def test_a_changed_share_counts_from_the_next_request_on() -> None:
    line = queue()
    pushed(line, *(waiter("a") for _ in range(30)), *(waiter("b") for _ in range(30)), waiter("b", share=2.0))
    assert Counter(keys(popped(line))[:30]) == {"a": 10, "b": 20}


@given(
    st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)),
    st.lists(st.tuples(st.floats(1, 1000), st.floats(1, 1000)), min_size=20, max_size=60),
    st.integers(1, 19),
)
def test_no_key_gets_ahead_of_its_share_by_more_than_a_request_of_each(
    shares: tuple[float, float], work: list[tuple[float, float]], goes: int
) -> None:
    line = queue(bound=1000)
    for pair in work:
        pushed(line, *(waiter(key, share=s, tokens=t) for key, s, t in zip("ab", shares, pair, strict=True)))
    had, longest = [0.0, 0.0], [0.0, 0.0]
    for _ in range(goes):
        (gone,) = popped(line, most=1)
        which = "ab".index(gone.key)
        had[which] += gone.tokens / gone.share
        longest[which] = max(tokens[which] for tokens in work) / shares[which]
        assert abs(had[0] - had[1]) <= sum(longest) * (1 + 1e-9)


# --- lanes


def test_only_those_go_whose_lane_is_free_and_the_others_keep_their_turn() -> None:
    line = queue()
    blocked, free = waiter("a", lane=OTHER), waiter("a", lane=LANE)
    urgent = waiter("b", lane=OTHER, priority=5)
    pushed(line, blocked, free, urgent)
    assert set(line.lanes) == {LANE, OTHER}
    assert popped(line, LANE) == [free]
    assert set(line.lanes) == {OTHER}
    assert line.next(()) is None
    assert popped(line, OTHER) == [urgent, blocked]
    assert set(line.lanes) == set()


def test_of_two_free_lanes_of_a_key_the_older_goes_first() -> None:
    line = queue()
    waiters = [waiter(lane=lane) for lane in (OTHER, LANE, LANE, OTHER)]
    pushed(line, *waiters)
    assert popped(line) == waiters


def test_a_key_that_was_held_up_does_not_set_the_others_back() -> None:
    line = queue()
    pushed(line, waiter("a", lane=OTHER), waiter("a", lane=OTHER), *(waiter("b") for _ in range(10)))
    popped(line, LANE)
    assert keys(popped(line, OTHER, most=1)) == "a"
    pushed(line, *(waiter("c") for _ in range(2)), waiter("b"))
    assert keys(popped(line)) == "accb"  # c begins where b went last, not where a is


# --- places


def test_over_its_bound_the_last_to_come_is_turned_away() -> None:
    line = queue(bound=2)
    first, second, third = waiter(), waiter(), waiter()
    assert pushed(line, first, second, third) == [third]
    assert popped(line) == [first, second]


def test_without_places_everybody_is_turned_away() -> None:
    line = queue(bound=0)
    alone = waiter(priority=100)
    assert pushed(line, alone) == [alone]
    assert len(line) == 0


def test_a_higher_priority_takes_the_place_of_the_newest_of_the_lowest() -> None:
    line = queue(bound=4)
    old, high, low, newest = waiter(priority=-1), waiter(priority=5), waiter(priority=0), waiter(priority=-1)
    pushed(line, old, high, low, newest)
    assert pushed(line, waiter(priority=0)) == [newest]
    assert pushed(line, waiter(priority=0)) == [old]
    assert [each.priority for each in popped(line)] == [5, 0, 0, 0]


def test_a_lower_or_equal_priority_takes_nobodys_place() -> None:
    line = queue(bound=2)
    pushed(line, waiter(priority=1), waiter(priority=1))
    for priority in (1, 0, -100):
        late = waiter(priority=priority)
        assert pushed(line, late) == [late]


def test_a_key_that_fills_the_queue_gives_up_places_to_others_until_they_are_level() -> None:
    line = queue(bound=6)
    pushed(line, *(waiter("a") for _ in range(6)))
    assert keys(pushed(line, *(waiter("b") for _ in range(5)))) == "aaabb"
    assert Counter(keys(popped(line))) == {"a": 3, "b": 3}


def test_places_are_level_by_the_shares() -> None:
    line = queue(bound=8)
    pushed(line, *(waiter("a") for _ in range(8)))
    pushed(line, *(waiter("b", share=3.0) for _ in range(20)))
    assert Counter(keys(popped(line))) == {"a": 2, "b": 6}


def test_of_keys_that_are_level_the_newest_gives_way() -> None:
    line = queue(bound=2)
    a, b = waiter("a", priority=-1), waiter("b", priority=-1)
    pushed(line, a, b)
    assert pushed(line, waiter("c")) == [b]


def test_with_fewer_places_the_newest_of_the_lowest_go() -> None:
    line = queue(bound=5)
    waiters = [waiter(priority=priority) for priority in (0, 1, 0, 2, 0)]
    pushed(line, *waiters)
    assert line.reconfigure(bound=3, timeout=30.0) == [waiters[4], waiters[2]]
    assert line.reconfigure(bound=10, timeout=30.0) == []
    assert pushed(line, *(waiter() for _ in range(8)))[:1] != []
    assert len(line) == 10


# --- time


def test_who_has_waited_for_the_timeout_is_due() -> None:
    line = queue(timeout=10.0)
    early, late = waiter(arrived=1.0, priority=9), waiter(arrived=2.0)
    pushed(line, early, late)
    assert line.deadline == 11.0
    assert line.expire(10.9) == []
    assert line.expire(11.0) == [early]
    assert line.deadline == 12.0
    assert line.expire(100.0) == [late]
    assert line.expire(200.0) == []
    assert len(line) == 0


@pytest.mark.parametrize(("timeout", "due"), [(1.0, [True, True]), (5.0, [True, False]), (50.0, [False, False])])
def test_a_changed_timeout_holds_for_those_who_wait(timeout: float, due: list[bool]) -> None:
    line = queue(timeout=10.0)
    waiters = [waiter(arrived=0.0), waiter(arrived=3.0)]
    pushed(line, *waiters)
    line.reconfigure(bound=10, timeout=timeout)
    late = line.expire(6.0)
    assert [each in late for each in waiters] == due


def test_all_can_be_sent_away_in_their_order() -> None:
    line = queue()
    waiters = [waiter(priority=priority) for priority in (0, 5, -5)]
    pushed(line, *waiters)
    assert line.clear() == waiters
    assert (len(line), set(line.lanes), line.deadline, line.next({LANE})) == (0, set(), None, None)
