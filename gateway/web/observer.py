"""What is kept of requests while somebody looks: sums of the second, and the latest decisions with their tables.

Sums are of all requests. Decisions are explained as they are made, since costs go on changing; that takes time on the
way of a request, so no more of them are than fit into a small share of each second, pulls apart from all others. The
rest is counted.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final, Protocol

import msgspec
import structlog
from msgspec import Struct

from gateway.decision import Ask, Decision
from gateway.explained import explanation
from gateway.metrics import Record

_log = structlog.get_logger("gateway.web")

DECISIONS: Final = 200
_TABLES_BYTES: Final = 8 * 1024 * 1024  # with 128 pods a table has 80 KB
_EXPLAINING_S: Final = 0.003  # of each second, twice: for decisions that name a source, and for the others
_FIRST_TOKENS: Final = 10_000  # of a second; with more, the latest
_FAILED: Final = 400
_OK: Final = 200


class Watcher(Protocol):
    """What is told of requests. Both are on their way, so they are quick and raise nothing."""

    def placed(self, ask: Ask, decision: Decision, record: Record) -> None:
        """A request goes where the decision says."""

    def ended(self, record: Record, now: float) -> None:
        """It is over, whichever way."""


class Seen(Struct):
    """One decision that is shown. `record` is that of its request, which goes on being filled."""

    number: int
    at: float
    request_id: str
    decision: dict[str, Any]
    table: bytes
    record: Record
    ended: float | None = None
    retried: bool = False
    told: str = ""

    @property
    def state(self) -> str:
        """`waiting` for its first byte, `streaming`, `done`, or `retried`: what came of it is another decision's."""
        if self.retried:
            return "retried"
        if self.ended is not None:
            return "done"
        return "waiting" if self.record.first_byte is None else "streaming"

    def row(self) -> dict[str, Any]:
        """As it is shown."""
        row: dict[str, Any] = {"n": self.number, "at": self.at, "id": self.request_id, **self.decision}
        row["state"] = self.state
        if self.retried:
            return row
        record = self.record
        first = record.first_byte
        row["reported_cached"] = record.reported_cached
        if first is not None:
            row["ttft_ms"] = round((first - record.started) * 1e3, 1)
            row["taken_ms"] = round((first - record.placed) * 1e3, 1)
        if self.ended is not None:
            row["duration_ms"] = round((self.ended - record.started) * 1e3, 1)
            row["status"] = record.status
            row["failed"] = _failed(record)
        return row


class Observer:
    """A `Watcher`. `pulls` and all else of `second` begin anew with each call of it; decisions stay."""

    def __init__(self) -> None:
        self._seen: deque[Seen] = deque()
        self._tables = 0  # bytes
        self._number = 0
        self._open: dict[int, Seen] = {}  # by the id of their record, which is alive as long as they are
        self._logged = False
        self._awaited: dict[int, Record] = {}  # of which the first byte has not been counted yet
        self._begin()

    def _begin(self) -> None:
        self._requests = self._failed = self._decisions = self._unexplained = 0
        self._prompt = self._cached = self._generated = 0
        self._spent = [0.0, 0.0]
        self._first_tokens: deque[float] = deque(maxlen=_FIRST_TOKENS)
        self._pulled: deque[float] = deque(maxlen=_FIRST_TOKENS)
        self._pulls: dict[tuple[str, str], list[int]] = {}

    def placed(self, ask: Ask, decision: Decision, record: Record) -> None:
        """Count it, and keep it with its table if there is time for that. O(candidates)."""
        self._decisions += 1
        self._awaited[id(record)] = record
        if (before := self._open.pop(id(record), None)) is not None:
            before.retried = True
        named = decision.source_pod is not None
        if decision.source_pod is not None:
            pulled = self._pulls.setdefault((decision.source_pod.name, decision.pod.name), [0, 0])
            pulled[0] += 1
            pulled[1] += decision.pulled_tokens
        if self._spent[named] >= _EXPLAINING_S:
            self._unexplained += 1
            return
        began = time.perf_counter()
        try:
            self._keep(ask, decision, record)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not fail a request
            self._unexplained += 1
            self._fault(error)
        self._spent[named] += time.perf_counter() - began

    def ended(self, record: Record, now: float) -> None:
        """Count what it came to."""
        self._requests += 1
        self._failed += _failed(record)
        self._prompt += record.prompt_tokens or 0
        cached = record.predicted_cached if record.reported_cached is None else record.reported_cached
        self._cached += min(cached or 0, record.prompt_tokens or 0)
        self._generated += record.reported_completion or 0
        if self._awaited.pop(id(record), None) is not None:
            self._began(record)
        if (seen := self._open.pop(id(record), None)) is not None:
            seen.ended = now

    def forget(self) -> None:
        """Nobody looks any more: nothing is told from now on, so nothing that is under way comes to its end here."""
        self._open.clear()
        self._awaited.clear()
        for seen in [each for each in self._seen if each.ended is None]:
            self._seen.remove(seen)
            self._tables -= len(seen.table)
        self._begin()

    def second(self) -> dict[str, Any]:
        """What has come since the last call. O(requests that wait for their first byte)."""
        for key, record in [(key, each) for key, each in self._awaited.items() if each.first_byte is not None]:
            del self._awaited[key]
            self._began(record)
        first = sorted(self._first_tokens)
        sums = {
            "requests": self._requests,
            "failed": self._failed,
            "decisions": self._decisions,
            "unexplained": self._unexplained,
            "prompt": self._prompt,
            "cached": self._cached,
            "generated": self._generated,
            "first_tokens": len(first),
            "p50_ms": _quantile(first, 0.5),
            "p95_ms": _quantile(first, 0.95),
            "pulled_p50_ms": _quantile(sorted(self._pulled), 0.5),
            "pulls": [[*pair, *pulled] for pair, pulled in self._pulls.items()],
        }
        self._begin()
        return sums

    def changed(self) -> list[dict[str, Any]]:
        """Rows of the decisions that are new, or in another state than at the last call. O(decisions kept)."""
        changed = [seen for seen in self._seen if seen.told != seen.state]
        for seen in changed:
            seen.told = seen.state
        return [seen.row() for seen in changed]

    def rows(self) -> list[dict[str, Any]]:
        """All there are, oldest first."""
        return [seen.row() for seen in self._seen]

    def table(self, number: int) -> tuple[dict[str, Any], bytes] | None:
        """A decision's row and its explanation in JSON; None: it is not kept any more. O(decisions kept)."""
        return next(((seen.row(), seen.table) for seen in self._seen if seen.number == number), None)

    def _keep(self, ask: Ask, decision: Decision, record: Record) -> None:
        table = msgspec.json.encode(explanation(decision))
        seconds = decision.predicted_s if ask.timely else None
        told = {
            "endpoint": record.endpoint,
            "model": ask.model,
            "pod": decision.pod.name,
            "rank": decision.chosen.rank,
            "source": decision.source_pod and decision.source_pod.name,
            "reason": decision.source_reason,
            "attempt": record.attempts,
            "tokens": record.prompt_tokens,
            "cached": decision.chosen.any_tokens,
            "pulled": decision.pulled_tokens,
            "predicted_cached": record.predicted_cached,
            "predicted_ms": None if seconds is None else round(seconds * 1e3, 1),
        }
        self._number += 1
        seen = Seen(self._number, round(time.time(), 3), ask.request_id, told, table, record)
        self._seen.append(seen)
        self._open[id(record)] = seen
        self._tables += len(table)
        while len(self._seen) > DECISIONS or self._tables > _TABLES_BYTES:
            gone = self._seen.popleft()
            self._tables -= len(gone.table)
            if self._open.get(id(gone.record)) is gone:
                del self._open[id(gone.record)]

    def _fault(self, error: Exception) -> None:
        if not self._logged:
            self._logged = True
            _log.error("a decision could not be explained for the live page", exc_info=error)

    def _began(self, record: Record) -> None:
        if record.first_byte is not None and record.status == _OK:
            taken = record.first_byte - record.started
            self._first_tokens.append(taken)
            if record.source:
                self._pulled.append(taken)


def _failed(record: Record) -> bool:
    return record.status >= _FAILED or bool(record.broken or record.engine_error)


def _quantile(ordered: list[float], share: float) -> float | None:
    """In milliseconds; None of nothing."""
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3, 1)
