"""Schedules, asked as the runner asks them."""

from collections.abc import Iterable, Iterator
from itertools import count
from math import inf

import pytest

from loadgen.client.schedule import ClosedLoop, OpenLoop, Schedule
from loadgen.workload import Piece, Request


def request(
    number: int, *, at: float = 0.0, after: int | None = None, pause: float = 0.0, session: str = ""
) -> Request:
    return Request(
        number=number, session=session, prompt=(Piece(1, 1),), output_tokens=1, at=at, after=after, pause=pause
    )


def sessions(turns: int, count: int, pause: float = 0.0) -> Iterator[Request]:
    for number in range(turns * count):
        turn = number % turns
        yield request(number, after=number - 1 if turn else None, pause=pause if turn else 0.0)


def all_due(schedule: Schedule, now: float) -> list[tuple[float, int]]:
    found = []
    while (due := schedule.take(now)) is not None:
        found.append((due.at, due.request.number))
    return found


def test_an_open_loop_goes_by_its_own_times() -> None:
    schedule = OpenLoop([request(0, at=1.0), request(1, at=2.0)])
    assert all_due(schedule, 0.5) == []
    assert schedule.next_at() == 1.0
    assert all_due(schedule, 5.0) == [(1.0, 0), (2.0, 1)]
    assert schedule.next_at() == inf


def test_a_follower_is_due_after_the_end_and_the_pause_and_not_before_its_own_time() -> None:
    followers = [request(1, after=0, pause=2.0), request(2, after=0, at=9.0)]
    schedule = OpenLoop([request(0), *followers])
    (due,) = [schedule.take(0.0)]
    assert due is not None
    assert schedule.next_at() == inf
    schedule.ended(due.request, 4.0)
    assert all_due(schedule, 10.0) == [(6.0, 1), (9.0, 2)]


def test_a_follower_that_is_read_after_the_end_is_due_all_the_same() -> None:
    load = [request(0), *(request(number, at=3.0) for number in range(1, 40)), request(40, after=0)]
    schedule = OpenLoop(load)
    first = schedule.take(0.0)
    assert first is not None
    schedule.ended(first.request, 1.0)
    assert (1.0, 40) in all_due(schedule, 3.0)


def test_what_a_limit_holds_back_was_due_at_its_time() -> None:
    schedule = OpenLoop([request(0, at=1.0), request(1, at=2.0)], most=1)
    first = schedule.take(3.0)
    assert first is not None
    assert (schedule.take(3.0), schedule.next_at(), schedule.overdue(3.0)) == (None, inf, 1)
    schedule.ended(first.request, 5.0)
    assert all_due(schedule, 5.0) == [(2.0, 1)]


def test_an_endless_load_is_read_as_far_as_needed() -> None:
    read = count()

    def endless() -> Iterable[Request]:
        return (request(number, at=float(number)) for number in read)

    schedule = OpenLoop(endless())
    assert len(all_due(schedule, 10.0)) == 11
    assert next(read) < 40
    assert len(list(schedule.ahead())) == 16


def test_a_closed_loop_sends_when_one_has_ended() -> None:
    schedule = ClosedLoop([request(number) for number in range(4)], concurrency=2)
    assert all_due(schedule, 0.0) == [(0.0, 0), (0.0, 1)]
    schedule.ended(request(1), 3.0)
    assert all_due(schedule, 3.1) == [(3.0, 2)]


def test_a_closed_loops_places_open_within_its_ramp() -> None:
    schedule = ClosedLoop([request(number) for number in range(4)], concurrency=4, ramp_s=2.0)
    assert all_due(schedule, 0.0) == [(0.0, 0)]
    assert schedule.next_at() == 0.5
    assert all_due(schedule, 2.0) == [(0.5, 1), (1.0, 2), (1.5, 3)]


def test_in_a_closed_loop_of_requests_turns_come_before_new_sessions_and_pauses_hold_no_place() -> None:
    schedule = ClosedLoop(sessions(2, 3, pause=1.0), concurrency=1)
    assert all_due(schedule, 0.0) == [(0.0, 0)]
    schedule.ended(request(0), 1.0)
    assert all_due(schedule, 1.5) == [(1.0, 2)]
    schedule.ended(request(2), 3.0)
    assert all_due(schedule, 3.0) == [(3.0, 1)]


def test_in_a_closed_loop_of_sessions_a_place_is_kept_to_the_end_of_the_session() -> None:
    schedule = ClosedLoop(sessions(2, 3, pause=1.0), concurrency=1, unit="sessions")
    assert all_due(schedule, 0.0) == [(0.0, 0)]
    schedule.ended(request(0), 1.0)
    assert (all_due(schedule, 1.5), schedule.next_at()) == ([], 2.0)
    assert all_due(schedule, 2.0) == [(2.0, 1)]
    schedule.ended(request(1), 3.0)
    assert all_due(schedule, 3.0) == [(3.0, 2)]


@pytest.mark.parametrize("unit", ["requests", "sessions"])
def test_every_request_is_handed_out_once(unit: str) -> None:
    schedule = ClosedLoop(sessions(3, 30), concurrency=4, unit=unit)  # type: ignore[arg-type]
    now, numbers = 0.0, []
    while due := schedule.take(now):
        numbers.append(due.request.number)
        now += 1.0
        schedule.ended(due.request, now)
    assert sorted(numbers) == list(range(90))
