"""A terminal that is drawn on until somebody has seen enough: `q` or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gateway.top.page import Line
from gateway.top.view import Mood

_STYLES: Final[dict[Mood, str]] = {"plain": "", "good": "green", "warn": "yellow", "bad": "bold red"}
_QUIT: Final = frozenset(b"qQ\x03\x04")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class MissingRich(Exception):
    """rich is not installed."""


Page = Callable[[int, int], Sequence[Line]]
"""What is to be seen on so many columns and lines."""


class Screen:
    """`show` draws a page, again where the terminal's size changes. `left` is set when somebody wants to leave."""

    def __init__(self, draw: Callable[[Page], None]) -> None:
        self.left = asyncio.Event()
        self._draw = draw
        self._page: Page = lambda _, __: ()

    def show(self, page: Page) -> None:
        """From now on this."""
        self._page = page
        self._draw(page)

    def again(self) -> None:
        """The same, on what has another size."""
        self._draw(self._page)

    def pressed(self) -> None:
        """There is something to read, or nobody types there any more."""
        keys = os.read(sys.stdin.fileno(), 64)
        if not keys or not _QUIT.isdisjoint(keys):
            self.left.set()


@contextlib.contextmanager
def screen() -> Iterator[Screen]:
    """The terminal that the process has, as it was again at the end. Raises MissingRich."""
    try:
        from rich.console import Console  # noqa: PLC0415 (optional)
        from rich.live import Live  # noqa: PLC0415 (optional)
        from rich.text import Text  # noqa: PLC0415 (optional)
    except ImportError:
        raise MissingRich from None

    def draw(page: Page) -> None:
        lines = page(console.width, console.height)
        text = Text("\n", no_wrap=True, overflow="crop").join(
            Text(line.text, style="bold" if line.head else _STYLES[line.mood]) for line in lines
        )
        live.update(text, refresh=True)

    console = Console(highlight=False)
    loop = asyncio.get_running_loop()
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        shown = Screen(draw)
        with _keys(loop, shown.pressed):
            for number in _SIGNALS:
                loop.add_signal_handler(number, shown.left.set)
            loop.add_signal_handler(signal.SIGWINCH, shown.again)
            yield shown


@contextlib.contextmanager
def _keys(loop: asyncio.AbstractEventLoop, pressed: Callable[[], None]) -> Iterator[None]:
    """Each key as it is pressed and not shown, where there is a keyboard."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, pressed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
