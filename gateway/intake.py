"""One publisher's event batches, from bytes into the index, counted; and whose turn it is.

Event work is cut into slices of time. Subscribers take turns: at most one slice is worked on in each turn of the event
loop, whoever's it is. Were each subscriber to take its slice whenever it has events, a request would wait for as many
slices as there are busy pods.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import msgspec
import structlog

from gateway.agreement import Agreement, Disagreement, Matter
from gateway.labelled import Count, Counter
from gateway.metrics import Metrics
from gateway.pod import EventStream, Pod
from index import BlockStored, DecodeError, Publisher, RadixIndex, decode_batch

_log = structlog.get_logger("gateway.events")

_SLICE_S = 0.001  # what a request may wait for; a batch is not cut, and one of a full engine step is half of this

_FIXES: dict[Matter, str] = {
    "block-size": "give both the same --block-size",
    "hash": "give both the same PYTHONHASHSEED, --prefix-caching-hash-algo and adapter paths",
}


def tell_disagreements(found: Iterable[Disagreement]) -> None:
    """Once for each pair of pods and matter."""
    for each in found:
        _log.warning(
            "pods cannot pull from each other, and are not named to each other",
            pod=each.pod,
            peer=each.peer,
            differ_in=each.matter,
            fix=_FIXES.get(each.matter, f"start both with the same {each.matter}"),
        )


class Turns:
    """`async with turns as until:` do event work until `time.perf_counter()` reaches `until`; shared by all pods."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> float:
        await self._lock.acquire()
        return time.perf_counter() + _SLICE_S

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.sleep(0)  # everybody else's turn, before the next slice
        finally:
            self._lock.release()


class Intake:
    """Applies one publisher's batches."""

    def __init__(
        self, pod: Pod, publisher: Publisher, *, index: RadixIndex, agreement: Agreement, metrics: Metrics
    ) -> None:
        self._pod = pod
        self._publisher = publisher
        self._stream: EventStream = pod.streams[publisher.rank]
        self._index = index
        self._agreement = agreement
        self._metrics = metrics
        self._outcomes: dict[str, Count] = {}
        self._effects: dict[str, Count] = {}
        self._reported: set[str] = set()

    def apply(self, payload: bytes) -> None:
        """Decode and apply; what cannot be used is counted, and logged once per reason. O(blocks + tokens)."""
        try:
            batch = decode_batch(payload)
        except DecodeError as error:
            self.count("undecodable")
            self._report_once("undecodable", str(error))
            return
        self.count("applied")
        now = self._stream.last_event_at = time.monotonic()
        applied = self._index.apply(self._publisher, batch.events)
        self._stream.turnover.applied(applied.stored_blocks, applied.removed_blocks, now)
        effects = msgspec.structs.asdict(applied)
        for reason, count in (*batch.errors.items(), *effects.items()):
            if count:
                _child(self._effects, self._metrics.event_effects, self._pod.name, reason).inc(count)
        for reason in batch.errors:
            self._report_once(reason, "event not used")
        for event in batch.events:
            if isinstance(event, BlockStored) and event.parent_block_hash is None:
                self._compare(event)

    def forget(self) -> None:
        """The engine is a new one: what the old one held is gone."""
        _log.warning("engine restarted", pod=self._pod.name, rank=self._publisher.rank)
        self._index.clear(self._publisher)

    def count(self, outcome: str) -> None:
        """Count a batch."""
        _child(self._outcomes, self._metrics.events, self._pod.name, outcome).inc()

    def count_replay(self, result: str) -> None:
        """Count a replay."""
        self._metrics.replays.labels(self._pod.name, result).inc()

    def _compare(self, event: BlockStored) -> None:
        tell_disagreements(self._agreement.observe(self._publisher, self._pod.base_model, event))

    def _report_once(self, reason: str, detail: str) -> None:
        if reason not in self._reported:
            self._reported.add(reason)
            _log.warning("unusable events", pod=self._pod.name, reason=reason, detail=detail[:200])


def _child(known: dict[str, Count], counter: Counter, pod: str, label: str) -> Count:
    """The counter of one label value; looked up once, since a busy pod counts thousands of batches a second."""
    child = known.get(label)
    if child is None:
        child = known[label] = counter.labels(pod, label)
    return child
