from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim.clock import Clock


@given(st.lists(st.integers(0, 5)))
def test_what_is_due_happens_in_order_and_at_one_moment_in_the_order_of_asking(times: list[int]) -> None:
    clock, happened = Clock(), list[tuple[float, int]]()
    for number, when in enumerate(times):
        clock.at(when, lambda number=number: happened.append((clock.now, number)))  # type: ignore[misc]
    clock.run()
    assert happened == sorted((float(when), number) for number, when in enumerate(times))


def test_what_is_due_in_the_past_happens_now() -> None:
    clock, happened = Clock(), list[float]()

    def late() -> None:
        clock.at(1.0, lambda: happened.append(clock.now))

    clock.at(3.0, late)
    clock.run()
    assert happened == [3.0]


def test_what_is_cancelled_does_not_happen() -> None:
    clock, happened = Clock(), list[str]()
    timer = clock.at(1.0, lambda: happened.append("cancelled"))
    clock.at(2.0, lambda: happened.append("kept"))
    timer.cancel()
    timer.cancel()
    clock.run()
    assert happened == ["kept"]
    assert clock.now == 2.0


def test_what_is_due_can_cancel_what_is_due_at_the_same_moment() -> None:
    clock, happened = Clock(), list[str]()

    def cancel() -> None:
        timer.cancel()

    clock.at(1.0, cancel)
    timer = clock.at(1.0, lambda: happened.append("cancelled"))
    clock.run()
    assert happened == []


def test_a_run_until_some_time_ends_then_and_goes_on_from_there() -> None:
    clock, happened = Clock(), list[float]()
    for when in (1.0, 2.0, 3.0):
        clock.at(when, lambda: happened.append(clock.now))
    clock.run(2.0)
    assert (happened, clock.now) == ([1.0, 2.0], 2.0)
    clock.run(2.5)
    assert clock.now == 2.5
    clock.after(0.25, lambda: happened.append(clock.now))
    clock.run()
    assert (happened, clock.now) == ([1.0, 2.0, 2.75, 3.0], 3.0)
