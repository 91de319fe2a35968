"""Lines for a file, written beside the event loop.

The loop puts lines aside; several times a second what has gathered goes to a thread of its own, which writes it. A disk
that is slow or full holds up that thread and nobody else: lines beyond a bound are dropped and counted. The thread is a
daemon, so that a disk that hangs does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import Callable, Iterable
from errno import EAGAIN
from queue import SimpleQueue

import structlog

from config.load import ConfigError

_log = structlog.get_logger("gateway.log_file")

_QUEUED_LINES = 20_000  # some 10 MB of the access log's
_QUEUED_BYTES = 32 * 1024 * 1024
_GATHER_S = 0.1
_ATOMIC_BYTES = 4096  # PIPE_BUF on Linux: a pipe that others write to as well takes so many at once, or none
_CLOSE_S = 1.0
_STANDARD_ERROR = 2

Open = Callable[[], io.RawIOBase]
Dropped = Callable[[int], None]


def opener(path: str | None) -> Open:
    """How to open what lines go to; None: standard error."""
    if path is None:
        return lambda: io.FileIO(_STANDARD_ERROR, "wb", closefd=False)
    return lambda: io.FileIO(path, "ab")


def open_file(path: str | None, setting: str) -> io.RawIOBase:
    """Blocking. Raises ConfigError, which names the setting that the path is of."""
    try:
        return opener(path)()
    except OSError as error:
        raise ConfigError(f"$.{setting}: {path}: {error.strerror}") from None


class LogFile:
    """Used from one event loop. `dropped` is told how many lines were lost, from any thread. `name`: to a person."""

    def __init__(self, name: str, dropped: Dropped) -> None:
        self._name = name
        self._dropped = dropped
        self._lines: list[bytes] = []
        self._taken = self._taken_bytes = 0
        self._writer: _Writer | None = None

    def reconfigure(self, path: str | None, file: io.RawIOBase | None) -> None:
        """From now on lines go into `file`, which was opened for this path; None: none are taken any more."""
        self._flush()
        if file is None:
            self._retire()
        elif self._writer is None:
            self._writer = _Writer(self._name, file, opener(path), self._dropped)
            self._taken = self._taken_bytes = 0
        else:
            self._writer.go_on(file, opener(path))

    def write(self, line: bytes) -> bool:
        """Take a line, with its end; never blocks. Whether it was taken; if not, that has been counted."""
        writer = self._writer
        if writer is None:
            return False
        waiting = self._taken_bytes - writer.done_bytes
        if self._taken - writer.done >= _QUEUED_LINES or waiting >= _QUEUED_BYTES:
            self._dropped(1)
            return False
        self._taken += 1
        self._taken_bytes += len(line)
        self._lines.append(line)
        if len(self._lines) == 1:
            asyncio.get_running_loop().call_later(_GATHER_S, self._flush)
        return True

    def reopen(self) -> None:
        """Lines from now on go to what has the file's name now."""
        self._flush()
        if self._writer is not None:
            self._writer.reopen()

    async def close(self) -> None:
        """Write what was taken, for at most a second."""
        self._flush()
        if (writer := self._retire()) is not None:
            await asyncio.to_thread(writer.join, _CLOSE_S)

    def _flush(self) -> None:
        if self._lines and self._writer is not None:
            self._writer.write(self._lines)
            self._lines = []

    def _retire(self) -> _Writer | None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.end()
        return writer


class _Writer(threading.Thread):
    """Does what it is told, in order."""

    def __init__(self, name: str, file: io.RawIOBase, again: Open, dropped: Dropped) -> None:
        super().__init__(name=name, daemon=True)
        self.done = self.done_bytes = 0  # lines written or dropped
        self._file = file
        self._again = again
        self._dropped = dropped
        self._works = True
        self._torn = False  # the file ends within a line
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.start()

    def write(self, lines: list[bytes]) -> None:
        self._orders.put(lambda: self._write(lines))

    def go_on(self, file: io.RawIOBase, again: Open) -> None:
        """Close the present file for another."""

        def change() -> None:
            self._file.close()
            self._file, self._again, self._torn = file, again, False

        self._orders.put(change)

    def reopen(self) -> None:
        self._orders.put(self._reopen)

    def end(self) -> None:
        self._orders.put(None)

    def run(self) -> None:
        """The thread."""
        while (order := self._orders.get()) is not None:
            order()
        self._file.close()

    def _reopen(self) -> None:
        try:
            file = self._again()
        except OSError as error:
            _log.warning(f"{self.name} not opened again: it goes on where it was", error=str(error))
            return
        self._file.close()
        self._file, self._torn = file, False

    def _write(self, lines: list[bytes]) -> None:
        try:
            for piece in pieces(lines):
                self._write_all(piece)
        except OSError as error:
            self._dropped(len(lines))
            if self._works:
                _log.warning(f"{self.name} cannot be written: its lines are lost", error=error.strerror or str(error))
            self._works = False
        else:
            self._works = True
        self.done += len(lines)
        self.done_bytes += sum(map(len, lines))

    def _write_all(self, data: bytes) -> None:
        if self._torn:  # so that what was lost costs the next line nothing
            data = b"\n" + data
        while data:
            written = self._file.write(data)
            if written is None:
                raise BlockingIOError(EAGAIN, os.strerror(EAGAIN))
            if written:
                self._torn = not data[:written].endswith(b"\n")
            data = data[written:]


def pieces(lines: Iterable[bytes]) -> Iterable[bytes]:
    """Whole lines together, as many as go out at once; one that is longer by itself."""
    piece = bytearray()
    for line in lines:
        if piece and len(piece) + len(line) > _ATOMIC_BYTES:
            yield bytes(piece)
            piece.clear()
        piece += line
    if piece:
        yield bytes(piece)
