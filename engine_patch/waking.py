"""An idle engine that sleeps, and wakes when a peer speaks.

vLLM's engine sleeps on its queue of requests while nothing needs it. The P2P tier hears its peers only when the engine
steps, so vLLM's own keeps it stepping for ever. Here a thread watches the tier's socket instead, as long as the engine
has nothing to do, and puts the same empty request on the queue with which vLLM itself wakes an engine that is to end.

The socket is read by the engine's thread only; the watching thread looks at its file descriptor. That one is readable
while something has come that was not looked at yet, so nothing is missed between the engine's last look and the watch.
"""

import math
import os
import select
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Watch:
    """Watches a file descriptor while the engine sleeps, and wakes it."""

    def __init__(self, descriptor: int, wake: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._wake = wake
        self._tick_s = 0.0
        self._armed = threading.Event()
        self._closed = False
        self._stop_reader, self._stop_writer = os.pipe()
        self.woken = True
        """Something may have come since `looked`. Until then the engine has to step."""
        self._thread = threading.Thread(target=self._run, name="p2p_tier_watch", daemon=True)
        self._thread.start()

    def looked(self) -> None:
        """The engine is awake and about to read the socket."""
        self._armed.clear()
        self.woken = False

    def arm(self, tick_s: float) -> None:
        """The engine goes to sleep: wake it when something comes, and after `tick_s` seconds in any case."""
        if not self._armed.is_set():
            self._tick_s = tick_s
            self._armed.set()

    @property
    def asleep(self) -> bool:
        """Whether nothing has come since the engine was allowed to sleep."""
        return self._armed.is_set() and not self.woken and self.alive

    @property
    def alive(self) -> bool:
        """Whether somebody watches. If not, nobody wakes the engine, and it must not sleep."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread, before the socket is closed."""
        self._closed = True
        os.write(self._stop_writer, b"\0")
        self._armed.set()
        self._thread.join()
        os.close(self._stop_reader)
        os.close(self._stop_writer)

    def _run(self) -> None:
        look = select.poll()  # `select` takes no descriptor over 1,023, and an engine has many
        look.register(self._descriptor, select.POLLIN)
        look.register(self._stop_reader, select.POLLIN)
        while True:
            self._armed.wait()
            look.poll(math.ceil(1000 * self._tick_s))
            if self._closed:
                return
            if not self._armed.is_set():
                continue  # it woke by itself, for a request
            # First the flag: the engine looks at it when it has been woken.
            self.woken = True
            self._armed.clear()
            self._wake()


def engine_around(frame: FrameType | None = None) -> Any:  # noqa: ANN401
    """The engine in whose constructor this is called, or None.

    A tier is not told which engine it serves, and is made while that engine is. Elsewhere, as in a process that steps
    its engine itself, there is no queue to sleep on and no engine to find.
    """
    frame = frame or sys._getframe()  # noqa: SLF001
    while frame is not None:
        candidate = frame.f_locals.get("self")
        if hasattr(candidate, "input_queue") and hasattr(candidate, "process_input_sockets"):
            return candidate
        frame = frame.f_back
    return None
