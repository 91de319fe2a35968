"""CPU time and memory of processes; the standard library only, for the peers' environments."""

import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_CPUCLOCK_SCHED = 2  # of clock_getcpuclockid(3): a process's clock id is its complemented pid, shifted, and the kind


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time that these processes have used, all threads, user and system, in nanosecond steps."""
    return sum(time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED) for pid in pids)


def stay_on_one_core() -> None:
    """Keep this process, with threads still to come, on one core.

    Work that is handed between two threads costs twice the CPU time when they run on two cores, each waking the other,
    and where they run is the scheduler's choice of the moment.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def process_tree(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += process_tree(int(child))
    return found


def resident_bytes(pid: int | str = "self") -> int:
    """Memory of a process now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def median_us(call: Callable[[T], object], arguments: list[T], runs: int) -> float:
    """Median CPU time of one call, µs, over the arguments in turn; the first call is not counted."""
    call(arguments[0])
    times = []
    for run in range(runs):
        argument = arguments[run % len(arguments)]
        began = time.process_time_ns()
        call(argument)
        times.append(time.process_time_ns() - began)
    return statistics.median(times) / 1e3
