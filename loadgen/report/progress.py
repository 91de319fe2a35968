"""How a load goes on, while it does: a line that is rewritten on a terminal, now and then a new one elsewhere."""

import asyncio
import contextlib
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TextIO

from loadgen.report.record import Record
from loadgen.report.table import shown

_RECENT: Final = 2048  # requests that live percentiles are of
_TERMINAL_S: Final = 0.5
_PLAIN_S: Final = 10.0


class Watched(Protocol):
    """What is asked about a run."""

    @property
    def under_way(self) -> int:
        """Requests under way."""
        ...

    def now(self) -> float:
        """Seconds since its start."""
        ...


class Progress:
    """Counts records, and shows what the last of them were like. `requests` and `seconds`: its size, where known."""

    def __init__(
        self, run: Watched, *, requests: int | None, seconds: float | None, file: TextIO | None = None
    ) -> None:
        self._run = run
        self._requests, self._seconds = requests, seconds
        self._file = file or sys.stderr
        self._completed = self._others = 0
        self._recent: deque[Record] = deque(maxlen=_RECENT)

    def add(self, record: Record) -> None:
        """Count a request."""
        self._recent.append(record)
        if record.completed:
            self._completed += 1
        else:
            self._others += 1

    @property
    def share(self) -> float | None:
        """How much of the load is over, 0…1, as far as that is known."""
        known = []
        if self._requests:
            known.append((self._completed + self._others) / self._requests)
        if self._seconds:
            known.append(self._run.now() / self._seconds)
        return min(max(known), 1.0) if known else None

    def lines(self) -> tuple[str, str]:
        """The state, and latencies in milliseconds over the last requests."""
        now = self._run.now()
        recent = [record for record in self._recent if record.completed]
        ttft = _percentiles([record.ttft_ms for record in recent if record.ttft_ms is not None])
        tpot = _percentiles([record.tpot_ms for record in recent if record.tpot_ms is not None])
        late = _percentiles([record.schedule_delay_ms for record in self._recent])
        share = self.share
        rate = shown(self._completed / now if now else 0.0)
        done = "" if share is None else f"{share:.0%}  "
        counts = f"{self._run.under_way} under way, {self._completed} completed, {self._others} not"
        return f"{done}{now:.0f} s  {counts}  {rate} req/s", f"p50/p90/p99 ms: ttft {ttft}  tpot {tpot}  delay {late}"

    async def show(self) -> None:
        """Until cancelled."""
        if not self._file.isatty():
            while True:
                await asyncio.sleep(_PLAIN_S)
                print("  ".join(self.lines()), file=self._file, flush=True)
        with _screen(self._file) as update:
            while True:
                update(self.share, self.lines())
                await asyncio.sleep(_TERMINAL_S)


def _columns() -> int:
    return shutil.get_terminal_size().columns


def _percentiles(values: list[float]) -> str:
    if not values:
        return "-"
    values.sort()
    return "/".join(shown(values[min(len(values) * percent // 100, len(values) - 1)]) for percent in (50, 90, 99))


@contextlib.contextmanager
def _screen(file: TextIO) -> Iterator[Callable[[float | None, tuple[str, str]], None]]:
    """A line of the terminal and what writes it: with a bar where rich is installed. The line stays at the end."""
    try:
        from rich.console import Console  # noqa: PLC0415 (optional)
        from rich.progress import BarColumn, TextColumn  # noqa: PLC0415 (optional)
        from rich.progress import Progress as Bar  # noqa: PLC0415 (optional)
    except ImportError:
        try:
            # Cut: a line that wraps cannot be written over.
            yield lambda _, lines: print(f"\r\x1b[K{'  '.join(lines)[: _columns() - 1]}", end="", file=file, flush=True)
        finally:
            print(file=file, flush=True)
        return
    columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=Console(file=file), auto_refresh=False) as bar:
        task = bar.add_task("", total=None)

        def update(share: float | None, lines: tuple[str, str]) -> None:
            told = "\n".join(lines)
            bar.update(task, total=None if share is None else 1.0, completed=share or 0.0, description=told)
            bar.refresh()

        yield update
