"""One JSON object per request, written beside the event loop."""

from __future__ import annotations

import io
import random
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from config.schema import AccessLog as Settings
from gateway import log_file
from gateway.log_file import Dropped, LogFile


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
    late_source: str | None = None
    event: str = "request"
    level: str = "info"
    timestamp: datetime | None = None


def open_file(settings: Settings) -> io.RawIOBase | None:
    """Blocking. None: no log is wanted. Raises ConfigError."""
    return log_file.open_file(settings.path, "access_log.path") if settings.enabled else None


class AccessLog:
    """Used from one event loop. `dropped` is told how many lines were lost, from any thread."""

    def __init__(self, dropped: Dropped) -> None:
        self._settings = Settings(enabled=False)
        self._encoder = msgspec.json.Encoder()
        self._file = LogFile("access log", dropped)
        self.reopen, self.close = self._file.reopen, self._file.close

    def reconfigure(self, settings: Settings, file: io.RawIOBase | None) -> None:
        """From now on so, into `file`, which `open_file` opened for these settings."""
        self._settings = settings
        self._file.reconfigure(settings.path, file)

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
        line.timestamp = datetime.now(UTC)
        self._file.write(self._encoder.encode(line) + b"\n")
