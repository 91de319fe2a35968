"""Blocking work that may never end, in threads that nobody waits for.

The threads of asyncio's executor are joined when the loop is closed, those of any executor when Python ends: one that
hangs on a disk keeps the process. Here each piece of work has a thread of its own, a daemon, which ends with the
process at the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from errno import EAGAIN
from functools import partial
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """What `work` returns or raises, in a thread of that name; OSError as well, where no thread can be had.

    A future that is cancelled is not told; the work goes on.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(future.set_result, work())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            settle = partial(future.set_exception, error)
        tell(loop, lambda: None if future.done() else settle())

    try:
        Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        future.set_exception(OSError(EAGAIN, str(error)))
    return future


def tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    """From any thread: do `what` on the loop, unless that is closed by now."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(what)
