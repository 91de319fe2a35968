"""What is kept of every request that clients make, whichever way it ended: one record, counted and logged once."""

from __future__ import annotations

import random
import time

from aiohttp import web

from gateway.access_log import AccessLog, Line
from gateway.gate import key_id
from gateway.metrics import Metrics, Record
from gateway.surface import endpoint_of

CLIENT_LEFT_STATUS = 499  # nginx's, known to every dashboard
REQUEST_ID = web.RequestKey("request_id", str)
RECORD = web.RequestKey("record", Record)
_MAX_REQUEST_ID_LENGTH = 128
_FAILED = 400


class Journal:
    """`begins` and `ended` go together, once per request."""

    def __init__(self, metrics: Metrics, access_log: AccessLog) -> None:
        self._metrics = metrics
        self._access_log = access_log

    def begins(self, request: web.Request) -> Record:
        """Give a request its id and its record."""
        request[REQUEST_ID] = _request_id(request)
        record = request[RECORD] = Record(started=time.monotonic(), endpoint=endpoint_of(request).label)
        return record

    def ended(self, request: web.Request, record: Record) -> None:
        """Count it and log it."""
        now = time.monotonic()
        record.key = key_id(request)
        self._metrics.completed(record, now)
        if self._access_log.wants(failed=record.status >= _FAILED or bool(record.broken)):
            self._access_log.write(self._line(request, record, now))

    def _line(self, request: web.Request, record: Record, now: float) -> Line:
        return Line(
            request_id=request[REQUEST_ID],
            method=request.method,
            path=request.path,
            status=record.status,
            key=record.key or None,
            model=record.model,
            pod=record.pod,
            source=record.source or None,
            source_reason=record.source_reason,
            attempts=record.attempts,
            tokens_from=record.tokens_from,
            prompt_tokens=record.prompt_tokens,
            predicted_cached=record.predicted_cached,
            reported_cached=record.reported_cached,
            completion_tokens=record.reported_completion,
            ttft_s=None if record.first_byte is None else round(record.first_byte - record.started, 4),
            duration_s=round(now - record.started, 4),
            bytes=request.writer.output_size,
            broken=record.broken or None,
            client=request.remote if self._access_log.shows_clients else None,
        )


def _request_id(request: web.Request) -> str:
    """The client's `x-request-id` where it is usable, else a fresh one."""
    given = request.headers.get("x-request-id", "")
    if 0 < len(given) <= _MAX_REQUEST_ID_LENGTH and given.isprintable():
        return given
    return f"{random.getrandbits(128):032x}"
