import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from engine_patch.idle import stop_spinning, yielding_threads


class Condition:
    """As vLLM's `SpinCondition`: spins for `busy_loop_s` after a read, then waits for a message."""

    def __init__(self) -> None:
        self.busy_loop_s = 1.0
        self.waits: list[int | None] = []

    def wait(self, timeout_ms: int | None = None) -> None:
        self.waits.append(timeout_ms)


def test_a_reader_made_before_sleeps_a_millisecond_instead_of_spinning() -> None:
    class Queue(Condition):
        pass

    condition = Queue()
    stop_spinning(Queue)
    condition.wait()
    condition.wait(timeout_ms=500)
    assert condition.busy_loop_s == 0
    assert condition.waits == [1, 1]


def test_stopping_twice_changes_nothing_more() -> None:
    class Queue(Condition):
        pass

    stop_spinning(Queue)
    once = Queue.wait
    stop_spinning(Queue)
    assert Queue.wait is once


@contextmanager
def waiting_thread() -> Iterator[int]:
    """The native id of a thread that lives as long as the block."""
    started, end = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    assert thread.native_id is not None
    yield thread.native_id
    end.set()
    thread.join()


def test_only_threads_started_inside_yield_to_others() -> None:
    with waiting_thread() as before:
        with yielding_threads():
            inside = waiting_thread()
            started = inside.__enter__()
        assert os.getpriority(os.PRIO_PROCESS, started) == 10
        assert os.getpriority(os.PRIO_PROCESS, before) == 0
        assert os.getpriority(os.PRIO_PROCESS, 0) == 0
        inside.__exit__(None, None, None)
