import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest

from engine_patch.idle import pausing_progress, stop_spinning, yielding_threads


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


def test_a_reader_that_nothing_has_reached_for_a_while_sleeps_longer() -> None:
    class Queue(Condition):
        last_read = time.monotonic() - 10

    condition = Queue()
    stop_spinning(Queue)
    condition.wait()
    condition.wait(timeout_ms=3)
    condition.last_read = time.monotonic()
    condition.wait()
    assert condition.waits == [5, 3, 1]


def nixl(monkeypatch: pytest.MonkeyPatch, made: list[tuple[str, int]]) -> ModuleType:
    """NIXL's Python API, as far as it counts here: an agent that fixes the pause of its thread at none."""

    def make(name: str, config: SimpleNamespace) -> None:
        made.append((name, config.pthrDelay))

    api = ModuleType("nixl._api")
    api.__dict__["nixlBind"] = SimpleNamespace(nixlAgentConfig=lambda: SimpleNamespace(pthrDelay=1), nixlAgent=make)
    source = """
class nixl_agent:
    def __init__(self, name):
        config = nixlBind.nixlAgentConfig()
        config.pthrDelay = 0
        nixlBind.nixlAgent(name, config)
"""
    exec(source, api.__dict__)  # noqa: S102, as a module of its own, whose globals its methods look up
    monkeypatch.setitem(sys.modules, "nixl", ModuleType("nixl"))
    monkeypatch.setitem(sys.modules, "nixl._api", api)
    return api


def test_only_agents_made_inside_pause_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []
    api = nixl(monkeypatch, made)
    bindings = api.nixlBind
    with pausing_progress(700):
        api.nixl_agent("inside")
    api.nixl_agent("outside")
    assert made == [("inside", 700), ("outside", 0)]
    assert api.nixlBind is bindings


def test_another_nixl_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    api = nixl(monkeypatch, [])
    del api.__dict__["nixlBind"].nixlAgent
    with pausing_progress():
        pass
    monkeypatch.setitem(sys.modules, "nixl._api", None)
    with pausing_progress():
        pass


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
