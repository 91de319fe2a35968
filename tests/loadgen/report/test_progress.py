import asyncio
import contextlib
import io
import sys

import pytest

from loadgen.report.progress import Progress
from loadgen.report.table import show
from tests.loadgen.report.records import failure, record


class Run:
    under_way = 3

    def now(self) -> float:
        return 10.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_has_the_state_and_live_percentiles() -> None:
    progress = Progress(Run(), requests=40, seconds=None)
    for number in range(9):
        progress.add(record(number))
    progress.add(failure(9))
    assert progress.lines() == (
        "25%  10 s  3 under way, 9 completed, 1 not  0.9 req/s",
        "p50/p90/p99 ms: ttft 101/101/101  tpot 10/10/10  delay 1/1/1",
    )


def test_before_the_first_request_nothing_is_known() -> None:
    progress = Progress(Run(), requests=None, seconds=None)
    assert progress.share is None
    assert "ttft -" in progress.lines()[1]


def test_the_share_is_of_whatever_ends_first() -> None:
    assert Progress(Run(), requests=100, seconds=20.0).share == 0.5
    assert Progress(Run(), requests=None, seconds=5.0).share == 1.0


async def shown(file: Terminal, times: int) -> None:
    """Show progress until something was written so many times."""
    wrote = asyncio.Event()
    write = file.write

    def noted(text: str) -> int:
        wrote.set()
        return write(text)

    file.write = noted  # type: ignore[method-assign]
    task = asyncio.create_task(Progress(Run(), requests=40, seconds=None, file=file).show())
    async with asyncio.timeout(10):
        for _ in range(times):
            await wrote.wait()
            wrote.clear()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("rich", [True, False])
async def test_a_terminal_has_one_line_that_changes(rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setenv("COLUMNS", "200")
    file = Terminal()
    await shown(file, 1)
    assert "3 under way" in file.getvalue()
    assert file.getvalue().endswith("\n") or rich


@pytest.mark.parametrize("rich", [True, False])
def test_a_block_is_framed_where_rich_is_installed(rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    file = Terminal()
    show("title", "a [b] c", file)
    assert "a [b] c" in file.getvalue()
    assert ("╭" in file.getvalue()) is rich
    plain = io.StringIO()
    show("title", "text", plain)
    assert plain.getvalue() == "title\n\ntext\n"
