import fcntl
import itertools
import os
import queue
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from engine_patch.waking import Watch, engine_around

LONG_S = 30.0


class Engine:
    """As vLLM's: sleeps on its queue, and steps while the tier wants it to."""

    def __init__(self) -> None:
        self.input_queue: queue.Queue[str] = queue.Queue()
        self.found = engine_around()

    def process_input_sockets(self) -> None: ...


@contextmanager
def watched() -> Iterator[tuple[Watch, int, "queue.Queue[str]"]]:
    """A watch over a pipe, the pipe's writing end and where it wakes."""
    reader, writer = os.pipe()
    wakes: queue.Queue[str] = queue.Queue()
    watch = Watch(reader, lambda: wakes.put("wake"))
    try:
        yield watch, writer, wakes
    finally:
        watch.close()
        os.close(reader)
        os.close(writer)


def test_before_the_first_look_the_engine_has_to_step() -> None:
    with watched() as (watch, _, _):
        assert watch.woken
        assert not watch.asleep


def test_what_comes_wakes_the_engine_at_once() -> None:
    with watched() as (watch, writer, wakes):
        watch.looked()
        watch.arm(LONG_S)
        assert watch.asleep
        began = time.monotonic()
        os.write(writer, b"x")
        wakes.get(timeout=5)
        assert time.monotonic() - began < 1
        assert watch.woken
        assert not watch.asleep


def test_what_came_between_the_last_look_and_the_sleep_is_not_missed() -> None:
    with watched() as (watch, writer, wakes):
        watch.looked()
        os.write(writer, b"x")
        watch.arm(LONG_S)
        wakes.get(timeout=5)


def test_a_descriptor_beyond_the_first_1024_serves() -> None:
    reader, writer = os.pipe()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    far = fcntl.fcntl(reader, fcntl.F_DUPFD, 1024)
    wakes: queue.Queue[str] = queue.Queue()
    watch = Watch(far, lambda: wakes.put("wake"))
    watch.looked()
    watch.arm(LONG_S)
    os.write(writer, b"x")
    wakes.get(timeout=5)
    watch.close()
    for descriptor in (reader, writer, far):
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_nobody_watches_does_not_sleep() -> None:
    reader, writer = os.pipe()

    def fails() -> None:
        raise RuntimeError

    watch = Watch(reader, fails)
    watch.looked()
    watch.arm(0.01)
    watch._thread.join(5)
    assert not watch.alive
    watch.looked()
    watch.arm(LONG_S)
    assert not watch.asleep
    watch.close()
    os.close(reader)
    os.close(writer)


def test_after_a_tick_the_engine_wakes_in_any_case() -> None:
    with watched() as (watch, _, wakes):
        watch.looked()
        watch.arm(0.05)
        wakes.get(timeout=5)
        assert watch.woken


def test_an_engine_that_is_awake_is_not_woken() -> None:
    with watched() as (watch, writer, wakes):
        watch.looked()
        watch.arm(0.05)
        watch.looked()
        os.write(writer, b"x")
        with pytest.raises(queue.Empty):
            wakes.get(timeout=0.3)
        assert not watch.woken


def test_it_wakes_once_for_each_sleep() -> None:
    with watched() as (watch, writer, wakes):
        os.write(writer, b"x")
        for _ in range(20):
            watch.looked()
            watch.arm(LONG_S)
            wakes.get(timeout=5)
        with pytest.raises(queue.Empty):
            wakes.get(timeout=0.1)


def read_all(socket: zmq.Socket[bytes]) -> int:
    """How many messages there were."""
    for count in itertools.count():
        try:
            socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return count
    raise AssertionError


def test_the_descriptor_of_a_zeromq_socket_serves() -> None:
    """Message after message, each read up to the end before the engine sleeps, as the tier does."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as hears, context.socket(zmq.DEALER) as speaks:
        hears.linger = speaks.linger = 0
        speaks.connect(f"tcp://127.0.0.1:{hears.bind_to_random_port('tcp://127.0.0.1')}")
        wakes: queue.Queue[str] = queue.Queue()
        watch = Watch(int(hears.getsockopt(zmq.FD)), lambda: wakes.put("wake"))
        received = 0
        for number in range(200):
            speaks.send(str(number).encode())
            while received <= number:
                watch.looked()
                received += read_all(hears)
                if received <= number:
                    watch.arm(LONG_S)
                    wakes.get(timeout=5)
        watch.close()
    assert received == 200


def test_the_engine_that_is_being_made_is_found() -> None:
    engine = Engine()
    assert engine.found is engine


def test_where_there_is_none_none_is_found() -> None:
    assert engine_around() is None
