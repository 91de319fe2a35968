"""Structured logs on standard error: one JSON object per line, or text for a person.

What libraries log through `logging`, and what Python warns of, comes out in the same form.
"""

from __future__ import annotations

import logging
import sys

import structlog

from config.schema import Log


class _StandardError(logging.Handler):
    """Writes to what standard error is at the moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Format and write."""
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - logging's own contract: a line that cannot be written stops nobody
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
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
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
