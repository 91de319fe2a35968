"""Cores that a waiting pod leaves to those that compute.

The P2P tier keeps an idle engine stepping once a millisecond, so that it answers peers. Around those steps a pod of
vLLM 0.32 keeps nearly two cores busy with waiting: NIXL's progress thread polls without pause, and a worker process
spins for a second after each step, that is for ever. Beside GPUs nobody notices. Where the cores do the computing, two
idle pods take a small machine away from the one that works.

The worker can sleep some milliseconds at a time; a message wakes it mostly, but not reliably, so it must look by
itself. NIXL's thread must run, since a peer's write makes progress in it on both sides; it can sleep until something
comes, and yields to threads that have something to do.
"""

import contextlib
import functools
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SLEEP_MS = 1
_LONG_SLEEP_MS = 5
_LONG_AFTER_S = 0.1
"""A worker that nothing has reached for this long sleeps longer at a time: its engine has nothing to do."""

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
        quiet_s = time.monotonic() - getattr(self, "last_read", math.inf)
        sleep_ms = _LONG_SLEEP_MS if quiet_s > _LONG_AFTER_S else _SLEEP_MS
        wait(self, sleep_ms if timeout_ms is None else min(sleep_ms, timeout_ms))

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


_PROGRESS_PAUSE_US = 5000
"""How long NIXL's thread sleeps at most when nothing happens; what happens wakes it where the transport can tell."""


@contextlib.contextmanager
def pausing_progress(pause_us: int = _PROGRESS_PAUSE_US) -> Iterator[None]:
    """NIXL agents made inside the block wait for events between looks, where their thread else looks without pause.

    NIXL's Python API fixes the pause at none. Where its parts are not as known here, all stays as it is.
    """
    try:
        from nixl._api import nixl_agent  # noqa: PLC0415

        scope = nixl_agent.__init__.__globals__
        bindings = scope["nixlBind"]
        make = bindings.nixlAgent
    except (ImportError, AttributeError, KeyError):
        yield
        return
    scope["nixlBind"] = _Pausing(bindings, make, pause_us)
    try:
        yield
    finally:
        scope["nixlBind"] = bindings


class _Pausing:
    """NIXL's bindings, with a pause in the configuration of the agents they make."""

    def __init__(self, bindings: Any, make: Any, pause_us: int) -> None:  # noqa: ANN401
        self._bindings = bindings
        self._make = make
        self._pause_us = pause_us

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._bindings, name)

    def nixlAgent(self, name: str, config: Any) -> Any:  # noqa: ANN401, N802
        if hasattr(config, "pthrDelay"):
            config.pthrDelay = self._pause_us
        return self._make(name, config)
