"""What is kept of every request that clients make, whichever way it ended: one record, counted and logged once."""

from __future__ import annotations

import random
import time

from gateway.access_log import AccessLog, Line
from gateway.exposition import trace_of
from gateway.front.request import Request
from gateway.metrics import Metrics, Record
from gateway.web.observer import Watcher

CLIENT_LEFT_STATUS = 499  # nginx's, known to every dashboard
_MAX_REQUEST_ID_LENGTH = 128
_FAILED = 400


class Journal:
    """`begins` and `ended` go together, once per request."""

    def __init__(self, metrics: Metrics, access_log: AccessLog) -> None:
        self._metrics = metrics
        self._access_log = access_log
        self.watcher: Watcher | None = None

    def begins(self, request: Request) -> Record:
        """Give a request its id and its record."""
        request.id = _request_id(request.given_id)
        record = request.record = Record(started=time.monotonic(), endpoint=request.endpoint.label)
        if traceparent := request.traceparent:
            record.trace = trace_of(traceparent)
        return record

    def ended(self, request: Request, record: Record) -> None:
        """Count it and log it."""
        now = time.monotonic()
        if request.key is not None:
            record.key = request.key.id
        self._metrics.completed(record, now)
        if self.watcher is not None:
            self.watcher.ended(record, now)
        if self._access_log.wants(failed=record.status >= _FAILED or bool(record.broken)):
            self._access_log.write(self._line(request, record, now))

    def _line(self, request: Request, record: Record, now: float) -> Line:
        return Line(
            request_id=request.id,
            method=request.method,
            path=request.path,
            status=record.status,
            key=record.key or None,
            model=record.model,
            pod=record.pod,
            source=record.source or None,
            source_reason=record.source_reason,
            late_source=record.late_source or None,
            attempts=record.attempts,
            tokens_from=record.tokens_from,
            tokens_reason=record.tokens_reason or None,
            prompt_tokens=record.prompt_tokens,
            predicted_cached=record.predicted_cached,
            reported_cached=record.reported_cached,
            completion_tokens=record.reported_completion,
            ttft_s=None if record.first_byte is None else round(record.first_byte - record.started, 4),
            predicted_ttft_s=None if record.predicted_ttft is None else round(record.predicted_ttft, 4),
            duration_s=round(now - record.started, 4),
            bytes=request.sent,
            broken=record.broken or None,
            client=request.remote if self._access_log.shows_clients else None,
            queued_s=None if record.queued is None else round(record.queued, 4),
        )


def _request_id(given: str) -> str:
    """The client's `x-request-id` where it is usable, else a fresh one."""
    if 0 < len(given) <= _MAX_REQUEST_ID_LENGTH and given.isprintable():
        return given
    return random.getrandbits(128).to_bytes(16, "big").hex()
