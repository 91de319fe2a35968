"""One JSON object per request, written beside the event loop.

The loop encodes a line and puts it aside; several times a second what has gathered goes to a thread of its own, which
writes it. A disk that is slow or full holds up that thread and nobody else: lines beyond a bound are dropped and
counted. The thread is a daemon, so that a disk that hangs does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from errno import EAGAIN
from queue import SimpleQueue

import msgspec
import structlog
from msgspec import Struct

from config.load import ConfigError
from config.schema import AccessLog as Settings

_log = structlog.get_logger("gateway.access_log")

_QUEUED_LINES = 20_000  # some 10 MB
_GATHER_S = 0.1
_ATOMIC_BYTES = 4096  # PIPE_BUF on Linux: a pipe that others write to as well takes so many at once, or none
_CLOSE_S = 1.0
_STANDARD_ERROR = 2

Open = Callable[[], io.RawIOBase]


class Line(Struct):
    """What is told of a request. Tokens as predicted and as reported; null where nothing was said."""

    request_id: str
    method: str
    path: str
    status: int
    key: str | None
    model: str
    pod: str
    source: str | None
    source_reason: str
    attempts: int
    tokens_from: str
    tokens_reason: str | None
    prompt_tokens: int | None
    predicted_cached: int | None
    reported_cached: int | None
    completion_tokens: int | None
    ttft_s: float | None
    predicted_ttft_s: float | None
    duration_s: float
    bytes: int
    broken: str | None
    client: str | None = None
    queued_s: float | None = None
    event: str = "request"
    level: str = "info"
    timestamp: datetime | None = None


def opener(path: str | None) -> Open:
    """How to open what lines go to."""
    if path is None:
        return lambda: io.FileIO(_STANDARD_ERROR, "wb", closefd=False)
    return lambda: io.FileIO(path, "ab")


def open_file(settings: Settings) -> io.RawIOBase | None:
    """Blocking. None: no log is wanted. Raises ConfigError."""
    if not settings.enabled:
        return None
    try:
        return opener(settings.path)()
    except OSError as error:
        raise ConfigError(f"$.access_log.path: {settings.path}: {error.strerror}") from None


class AccessLog:
    """Used from one event loop. `dropped` is told how many lines were lost, from any thread."""

    def __init__(self, dropped: Callable[[int], None]) -> None:
        self._dropped = dropped
        self._settings = Settings(enabled=False)
        self._encoder = msgspec.json.Encoder()
        self._lines: list[bytes] = []
        self._taken = 0
        self._writer: _Writer | None = None

    def reconfigure(self, settings: Settings, file: io.RawIOBase | None) -> None:
        """From now on so, into `file`, which `open_file` opened for these settings."""
        self._flush()
        self._settings = settings
        if file is None:
            self._retire()
        elif self._writer is None:
            self._writer = _Writer(file, opener(settings.path), self._dropped)
            self._taken = 0
        else:
            self._writer.go_on(file, opener(settings.path))

    @property
    def shows_clients(self) -> bool:
        """Whether lines have the client's address."""
        return self._settings.client_address

    def wants(self, *, failed: bool) -> bool:
        """Whether a request gets a line."""
        settings = self._settings
        if not settings.enabled:
            return False
        return (failed and settings.always_errors) or settings.sample >= 1.0 or random.random() < settings.sample  # noqa: S311

    def write(self, line: Line) -> None:
        """Take a line; never blocks."""
        writer = self._writer
        if writer is None:
            return
        if self._taken - writer.done >= _QUEUED_LINES:
            self._dropped(1)
            return
        line.timestamp = datetime.now(UTC)
        self._taken += 1
        self._lines.append(self._encoder.encode(line) + b"\n")
        if len(self._lines) == 1:
            asyncio.get_running_loop().call_later(_GATHER_S, self._flush)

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

    def __init__(self, file: io.RawIOBase, again: Open, dropped: Callable[[int], None]) -> None:
        super().__init__(name="access log", daemon=True)
        self.done = 0  # lines written or dropped
        self._file = file
        self._again = again
        self._dropped = dropped
        self._works = True
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.start()

    def write(self, lines: list[bytes]) -> None:
        self._orders.put(lambda: self._write(lines))

    def go_on(self, file: io.RawIOBase, again: Open) -> None:
        """Close the present file for another."""

        def change() -> None:
            self._file.close()
            self._file, self._again = file, again

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
            _log.warning("access log not opened again: it goes on where it was", error=str(error))
            return
        self._file.close()
        self._file = file

    def _write(self, lines: list[bytes]) -> None:
        try:
            for piece in _pieces(lines):
                _write_all(self._file, piece)
        except OSError as error:
            self._dropped(len(lines))
            if self._works:
                _log.warning("access log cannot be written: its lines are lost", error=error.strerror or str(error))
            self._works = False
        else:
            self._works = True
        self.done += len(lines)


def _pieces(lines: Iterable[bytes]) -> Iterable[bytes]:
    """Whole lines together, as many as go out at once."""
    piece = bytearray()
    for line in lines:
        if piece and len(piece) + len(line) > _ATOMIC_BYTES:
            yield bytes(piece)
            piece.clear()
        piece += line
    if piece:
        yield bytes(piece)


def _write_all(file: io.RawIOBase, data: bytes) -> None:
    while data:
        written = file.write(data)
        if written is None:
            raise BlockingIOError(EAGAIN, os.strerror(EAGAIN))
        data = data[written:]
