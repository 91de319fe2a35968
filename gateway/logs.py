"""Structured logs on standard error: one JSON object per line, or text for a person.

What libraries log through `logging`, and what Python warns of, comes out in the same form. A line that cannot be
written, since whoever read standard error has gone or its disk is full, is counted and stops nobody.
"""

from __future__ import annotations

import io
import logging
import sys
from typing import TextIO, cast

import structlog

from config.schema import Log

_STANDARD_ERROR = 2


class _Lines:
    """Standard error without a buffer: what is left in one fails again when the process ends, and changes its code."""

    def __init__(self) -> None:
        self.lost = 0
        self._file = io.FileIO(_STANDARD_ERROR, "wb", closefd=False)

    def write(self, text: str) -> None:
        """Write a line, or count it as lost."""
        try:
            self._file.write(text.encode("utf-8", "backslashreplace"))
        except OSError:
            self.lost += 1

    def flush(self) -> None:
        """Nothing is kept."""


_lines = _Lines()  # of the process, as its standard error and Python's logging are


def lost_lines() -> int:
    """How many lines could not be written."""
    return _lines.lost


class _StandardError(logging.Handler):
    """Where libraries' records go."""

    def emit(self, record: logging.LogRecord) -> None:
        """Format and write."""
        try:
            _lines.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - logging's own contract: a record that cannot be formatted stops nobody
            self.handleError(record)


def configure(settings: Log) -> None:
    """Set up logging for the process; may be called again. Below `level` nothing is formatted."""
    renderer: structlog.types.Processor
    if settings.format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            # The default one shows the values of variables, in which prompts and keys may stand.
            exception_formatter=structlog.dev.plain_traceback,
        )
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    steps: list[structlog.types.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*steps, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _lines)),
        cache_logger_on_first_use=False,  # a cached one would keep its level for good
    )
    _bridge(level, steps, renderer)


def _bridge(level: int, steps: list[structlog.types.Processor], renderer: structlog.types.Processor) -> None:
    handler = _StandardError()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *steps],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    for before in root.handlers[:]:
        if isinstance(before, _StandardError):
            root.removeHandler(before)
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)
