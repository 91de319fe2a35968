"""How long a request that pulls may be without a first byte, looked at without a clock."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.watchdog import LOOK_S, Bounds, Look, Margin, Seen, Watch, patience_s

BOUNDS = Bounds(1.0, 4.0)
NOBODY_AHEAD = Seen(0, 1)


def watch(*, wait_s: float = 0.0, patience: float = 2.0, streams: bool = True) -> Watch:
    return Watch(100.0, wait_s=wait_s, patience_s=patience, bounds=BOUNDS, streams=streams)


def asked(**fields: bool) -> Watch:
    """One that is due, and has had its pod polled."""
    due = watch(**fields)
    assert due.look(102.0, NOBODY_AHEAD).finding == "poll"
    return due


def polled(waiting: int | None, *, deferred: int | None = None, running: int | None = None, pulls: int = 1) -> Seen:
    return Seen(0, pulls, 0.0, 102.01, waiting, running, deferred)


def test_patience_is_what_it_would_take_alone_and_the_margin_within_the_bounds() -> None:
    assert patience_s(1.0, 0.1, 0.5, BOUNDS, met=True) == 1.5
    assert patience_s(0.1, 0.1, 0.0, BOUNDS, met=True) == 1.0
    assert patience_s(30.0, 0.1, 0.0, BOUNDS, met=True) == 4.0


def test_a_pull_that_is_expected_to_take_long_has_longer_than_the_cap() -> None:
    assert patience_s(30.0, 10.0, 0.0, BOUNDS, met=True) == 15.0
    assert patience_s(11.0, 10.0, 0.0, BOUNDS, met=True) == 11.0


def test_a_pair_that_never_pulled_has_at_least_the_cap() -> None:
    assert patience_s(0.1, 0.1, 0.0, BOUNDS, met=False) == 4.0
    assert patience_s(30.0, 10.0, 0.0, BOUNDS, met=False) == 15.0


def test_the_margin_is_by_how_much_pulls_come_late_and_vary() -> None:
    margin = Margin()
    assert margin.seconds == 0.0
    margin.observe(0.2)
    assert margin.seconds == 0.2 + 4 * 0.1
    for _ in range(200):
        margin.observe(0.2)
    assert 0.2 <= margin.seconds < 0.201
    for _ in range(200):
        margin.observe(-1.0)
    assert 0.0 <= margin.seconds < 0.01


@given(st.lists(st.floats(-100, 100), max_size=50))
def test_the_margin_is_never_below_nothing(late: list[float]) -> None:
    margin = Margin()
    for each in late:
        margin.observe(each)
    assert margin.seconds >= 0


def test_the_first_look_is_when_its_time_is_up_or_soon_where_others_are_before_it() -> None:
    assert watch(wait_s=1.0).first_s(100.0, 0) == 3.0
    assert watch().first_s(103.0, 0) == 0.0
    assert watch().first_s(100.0, 1) == LOOK_S


def test_its_time_begins_when_those_before_it_have_answered() -> None:
    one = watch()
    for now in (100.25, 101.5, 110.0):
        assert one.look(now, Seen(2, 1)) == Look("wait", LOOK_S)
    assert one.look(110.25, NOBODY_AHEAD) == Look("wait", 1.75)
    assert one.look(112.0, NOBODY_AHEAD).finding == "poll"


def test_those_before_it_take_nothing_off_the_wait_that_was_expected() -> None:
    one = watch(wait_s=20.0)
    assert one.look(101.0, Seen(1, 1)) == Look("wait", LOOK_S)
    assert one.look(102.0, NOBODY_AHEAD) == Look("wait", 20.0)


def test_a_pod_that_computes_other_prompts_has_three_of_its_steps_more_once() -> None:
    one, busy = watch(), Seen(0, 1, 5.0)
    assert one.look(102.0, busy) == Look("wait", 15.0)
    assert one.look(116.0, busy) == Look("wait", 1.0)
    assert one.look(117.0, busy).finding == "poll"
    assert one.look(117.1, polled(1, deferred=1)._replace(step_s=5.0, polled_at=117.05)) == Look("wait", LOOK_S)


def polls(one: Watch, now: float, *found: Seen) -> list[Look]:
    """What comes of one poll after the other, each of them answered at once."""
    looks = []
    for seen in found:
        looks.append(one.look(now, seen._replace(polled_at=now)))
        now += looks[-1].again_s
        assert one.look(now, seen._replace(polled_at=0.0)).finding == "poll"
    return looks


def test_a_stream_is_given_up_when_two_polls_in_a_row_say_that_all_that_pull_there_are_deferred() -> None:
    all_are = polled(1, deferred=1)
    assert polls(asked(), 102.1, all_are, all_are) == [Look("wait", LOOK_S), Look("fire", LOOK_S)]


def test_an_answer_in_one_piece_is_given_up_at_the_third_in_a_row_each_a_patience_apart() -> None:
    all_are = polled(3, deferred=2, pulls=2)
    assert polls(asked(streams=False), 102.1, *[all_are] * 3) == [*[Look("wait", 2.0)] * 2, Look("fire", LOOK_S)]


def test_a_poll_by_which_fewer_are_deferred_ends_the_row() -> None:
    all_are, some, none = (polled(3, deferred=deferred, pulls=2) for deferred in (2, 1, 0))
    for fewer in (some, none):
        looks = polls(asked(streams=False), 102.1, all_are, all_are, fewer, all_are, all_are, all_are)
        assert [look.finding for look in looks] == ["wait"] * 5 + ["fire"]
    looks = polls(asked(), 102.1, all_are, none, all_are, all_are)
    assert [look.finding for look in looks] == ["wait"] * 3 + ["fire"]


def test_who_may_not_go_again_has_its_pod_polled_anew() -> None:
    all_are = polled(1, deferred=1)
    one = asked()
    assert polls(one, 102.1, all_are, all_are, all_are)[1:] == [Look("fire", LOOK_S)] * 2
    assert one.look(104.0, polled(0, running=1)._replace(polled_at=104.0)).finding == "over"


def test_a_pod_that_computes_it_is_left_alone() -> None:
    for streams in (True, False):
        assert asked(streams=streams).look(102.1, polled(0, deferred=0, running=1)).finding == "over"
        assert asked(streams=streams).look(102.1, polled(0)).finding == "over"


def test_a_pod_that_neither_runs_it_nor_has_it_wait_is_asked_again() -> None:
    between = polled(0, deferred=0, running=0)
    assert asked(streams=False).look(102.1, between) == Look("wait", 2.0)
    assert asked().look(102.1, between) == Look("wait", BOUNDS.cap)


def test_a_pod_that_has_no_room_for_it_yet_gets_time_once_more() -> None:
    one = asked()
    for now in (102.1, 104.2, 106.3):
        seen = polled(4, running=8, deferred=0)._replace(polled_at=now)
        assert one.look(now, seen) == Look("wait", 2.0)
        assert one.look(now + 2.0, seen).finding == "poll"


def test_where_only_some_are_deferred_a_stream_gets_the_cap_and_an_answer_in_one_piece_what_it_takes() -> None:
    one = asked()
    some = polled(2, deferred=1, pulls=2)
    assert one.look(102.1, some) == Look("wait", BOUNDS.cap)
    assert one.look(106.1, some).finding == "poll"
    assert one.look(106.2, some._replace(polled_at=106.15)).finding == "fire"

    one = asked(streams=False)
    for now in (102.1, 104.2, 106.3):
        assert one.look(now, some._replace(polled_at=now)) == Look("wait", 2.0)
        assert one.look(now + 2.0, some).finding == "poll"


def test_a_pod_that_does_not_say_why_requests_wait_is_judged_by_whether_it_runs_any() -> None:
    idle = polled(1, running=0)
    assert [look.finding for look in polls(asked(streams=False), 102.1, idle, idle, idle)] == ["wait", "wait", "fire"]
    assert asked(streams=False).look(102.1, polled(1, running=3)) == Look("wait", 2.0)
    assert asked().look(102.1, polled(1, running=3)) == Look("wait", BOUNDS.cap)


def test_a_poll_is_waited_for_a_second_and_then_done_without() -> None:
    for streams, seconds in ((True, BOUNDS.cap), (False, 2.0)):
        one = asked(streams=streams)
        stale = polled(1, deferred=1)._replace(polled_at=101.0)
        assert one.look(102.5, stale).finding == "wait"
        assert one.look(103.1, stale) == Look("wait", seconds)


def test_a_pod_that_says_nothing_of_its_load_is_one_of_which_nobody_can_tell() -> None:
    assert asked().look(102.1, polled(None)) == Look("wait", BOUNDS.cap)
    assert asked(streams=False).look(102.1, polled(None)) == Look("wait", 2.0)
