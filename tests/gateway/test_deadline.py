import asyncio

import pytest

from gateway.deadline import Deadline, Deadlines


async def test_what_is_awaited_when_the_deadline_passes_ends_as_a_timeout() -> None:
    with pytest.raises(TimeoutError), Deadline(0.01) as deadline:
        await asyncio.Event().wait()
    assert deadline.expired
    await asyncio.sleep(0)  # nothing is left to cancel


async def test_what_is_done_in_time_is_left_alone() -> None:
    with Deadline(0.02) as deadline:
        pass
    await asyncio.sleep(0.03)
    assert not deadline.expired


async def test_a_deadline_that_is_put_off_does_not_pass() -> None:
    async def put_off() -> None:
        with Deadline(0.02) as deadline:
            deadline.move(3600)
            await asyncio.sleep(0.05)  # past where it was first
            assert not deadline.expired
            deadline.move(0.02)
            await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimeoutError):
        await put_off()
    assert loop.time() - began >= 0.07 - 0.001


async def test_a_deadline_can_be_brought_forward() -> None:
    async def bring_forward() -> None:
        with Deadline(3600) as deadline:
            deadline.move(0.01)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await bring_forward()


async def test_a_cancellation_by_somebody_else_stays_one() -> None:
    entered = asyncio.Event()

    async def wait() -> None:
        with Deadline(3600):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_that_comes_with_the_deadline_is_not_lost() -> None:
    async def wait() -> None:
        task = asyncio.current_task()
        assert task is not None
        with Deadline(0.01):
            try:
                await asyncio.Event().wait()
            finally:
                task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(wait())


async def test_another_failure_is_not_taken_for_a_timeout() -> None:
    async def fail() -> None:
        with Deadline(0.01):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise KeyError from None

    with pytest.raises(KeyError):
        await fail()


async def _too_long(deadline: Deadline) -> None:
    with deadline:
        await asyncio.Event().wait()


async def test_one_that_was_left_is_entered_again_and_passes_in_its_own_time() -> None:
    deadlines = Deadlines()
    with deadlines.within(3600) as first:
        pass
    with pytest.raises(TimeoutError):
        await _too_long(second := deadlines.within(0.01))
    assert second is first
    with deadlines.within(3600) as third:
        assert third is first
        assert not third.expired
        await asyncio.sleep(0.02)
        assert not third.expired


async def test_a_timer_of_one_that_was_left_harms_nobody() -> None:
    deadlines = Deadlines()
    with deadlines.within(0.01):
        pass
    await asyncio.sleep(0.03)  # it rings, and nobody is there
    with deadlines.within(0.5) as again:  # far more than a busy machine takes to the next line but one
        await asyncio.sleep(0.01)
        again.move(3600)
        await asyncio.sleep(0.51)
        assert not again.expired


async def test_those_under_way_at_once_are_different() -> None:
    deadlines = Deadlines()
    with deadlines.within(3600) as outer:
        with pytest.raises(TimeoutError):
            await _too_long(inner := deadlines.within(0.01))
        assert inner is not outer
        assert (outer.expired, inner.expired) == (False, True)


class Counting:
    """A guard that wants to be asked again so many times."""

    def __init__(self, *answers: float) -> None:
        self.answers = list(answers)

    def first_s(self) -> float:
        return 0.01

    def rings(self) -> float:
        return self.answers.pop(0)


async def test_a_guard_is_asked_until_it_says_that_the_deadline_passes() -> None:
    guard = Counting(0.01, 0.01, 0.0, 5.0)
    with pytest.raises(TimeoutError), Deadline(3600, guard=guard):
        await asyncio.Event().wait()
    assert guard.answers == [5.0]


async def test_a_guard_never_puts_a_deadline_off() -> None:
    guard = Counting(3600.0, 0.0)
    with pytest.raises(TimeoutError), Deadline(0.03, guard=guard):
        await asyncio.Event().wait()
    assert guard.answers == [0.0]


async def test_a_guard_that_is_let_go_is_not_asked_and_serves_no_later_use() -> None:
    deadlines, guard = Deadlines(), Counting()
    with deadlines.within(3600, guard) as first:
        first.unguarded()
        await asyncio.sleep(0.03)
        assert not first.expired
    second = deadlines.within(0.02)
    assert second is first
    with pytest.raises(TimeoutError), second:
        await asyncio.Event().wait()
