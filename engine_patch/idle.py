"""Cores that a waiting pod leaves to those that compute.

The P2P tier keeps an idle engine stepping once a millisecond, so that it answers peers. Around those steps a pod of
vLLM 0.32 keeps nearly two cores busy with waiting: NIXL's progress thread polls without pause, and a worker process
spins for a second after each step, that is for ever. Beside GPUs nobody notices. Where the cores do the computing, two
idle pods take a small machine away from the one that works.

The worker can sleep a millisecond at a time; a message wakes it mostly, but not reliably, so it must look by itself.
NIXL's thread must poll, since a peer's write makes progress in it on both sides; it yields to threads that have
something to do.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SLEEP_MS = 1

_NICENESS = 10
"""Against a thread that computes, the polling thread gets a tenth of a core: a few milliseconds in every thirty, which
a pull does not notice beside the engine's own steps."""


def stop_spinning(condition: Any) -> None:  # noqa: ANN401
    """Let readers of vLLM's message queue sleep between looks; `condition` is the class `SpinCondition`.

    Changes queues that exist already too, since a worker makes its queue before it loads this package. Idempotent.
    """
    wait = condition.wait
    if hasattr(wait, "__wrapped__"):
        return

    @functools.wraps(wait)
    def sleep_until_message(self: Any, timeout_ms: int | None = None) -> None:  # noqa: ANN401
        self.busy_loop_s = 0
        wait(self, _SLEEP_MS if timeout_ms is None else min(_SLEEP_MS, timeout_ms))

    condition.wait = sleep_until_message


@contextlib.contextmanager
def yielding_threads() -> Iterator[None]:
    """Threads started inside the block get a lower priority, except those of ZeroMQ, which sleep while they wait."""
    before = set(_threads())
    yield
    for thread in set(_threads()) - before:
        with contextlib.suppress(OSError):
            if not Path(f"/proc/self/task/{thread}/comm").read_text().startswith("ZMQ"):
                os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)


def _threads() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc/self/task").iterdir())
