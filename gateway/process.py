"""What the system says of this process, for /metrics, under the names that everybody's dashboards know. Linux only.

The library's own lists every open file for it, which with 5,000 streams under way stops the event loop for 10 ms. Linux
tells their number from 6.2 on; before, they are listed in a thread, once a minute at most.
"""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from errno import EMFILE
from pathlib import Path
from threading import Thread
from typing import Final

from prometheus_client import CollectorRegistry

from gateway.labelled import State, States

# Opened once: no file is opened, and no path looked up, while requests are served.
_STATM: Final = os.open("/proc/self/statm", os.O_RDONLY)
_OPEN_FILES: Final = os.open("/proc/self/fd", os.O_RDONLY)
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_COUNT_EVERY_S: Final = 60.0
_START_FIELD: Final = 19  # of /proc/self/stat, behind the name in brackets


def register(registry: CollectorRegistry) -> None:
    """Tell of it from now on. O(1) at each scrape."""
    resident = State("process_resident_memory_bytes", "Resident memory size in bytes.")
    virtual = State("process_virtual_memory_bytes", "Virtual memory size in bytes.")
    cpu = State("process_cpu_seconds", "Total user and system CPU time spent in seconds.", kind="counter")
    opened = State("process_open_fds", "Number of open file descriptors.")
    most = State("process_max_fds", "Maximum number of open file descriptors.")
    start = State("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
    counted = _Counted()

    def ask() -> None:
        pages = os.pread(_STATM, 200, 0).split()
        virtual.add(int(pages[0]) * _PAGE_BYTES)
        resident.add(int(pages[1]) * _PAGE_BYTES)
        cpu.add(time.process_time())
        if (count := os.fstat(_OPEN_FILES).st_size or counted.ask()) > 0:
            opened.add(count)
        most.add(_most_files())
        start.add(_BEGAN)

    States((resident, virtual, cpu, opened, most, start), ask, registry)


class _Counted:
    """How many files were open a while ago; 0 before the first count is done."""

    def __init__(self) -> None:
        self._count = 0
        self._next = 0.0

    def ask(self) -> int:
        """O(1). Where it is too long ago, they are counted anew, for who asks next."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _COUNT_EVERY_S
            with suppress(RuntimeError):  # no thread can be had: what was counted last stays
                Thread(target=self._list, name="open files", daemon=True).start()
        return self._count

    def _list(self) -> None:
        try:
            # Path.iterdir is the same with an object for each. One of them is the list's own.
            self._count = len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208
        except OSError as error:
            if error.errno == EMFILE:  # to list them takes one more
                self._count = _most_files()


def _most_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _began() -> float:
    """Seconds since 1970."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    after_boot = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + after_boot


_BEGAN: Final = _began()
