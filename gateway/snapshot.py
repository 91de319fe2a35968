"""Warm starts: the index as one gateway knows it, for another, or for itself after a restart.

A stream of one line of JSON, which says when each pod's process started, and then the index's own snapshot, each
publisher with its position in its event stream. Who restores it asks the pods for the events since. A pod that is
another process by now, or whose events since then cannot be had, is not believed: its blocks are dropped when it comes
up, or lose credit (`Fleet`, `Subscriber`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import structlog

from gateway.metrics import Metrics
from gateway.pod import Restored
from gateway.pods import PodTable
from index import Loader, Publisher, RadixIndex, SnapshotError, dump

_log = structlog.get_logger("gateway.snapshot")

PATH: Final = "/index/snapshot"
_FETCH_S: Final = 60.0
_READ_BYTES: Final = 1 << 18
_MAX_HEAD_BYTES: Final = 1 << 20


class _Head(msgspec.Struct):
    started: dict[str, float | None]


class _Positions(Mapping[Publisher, int | None]):
    """Each publisher's position at the moment it is asked for; None where events are known to be missing."""

    def __init__(self, pods: PodTable) -> None:
        self._pods = pods

    def __getitem__(self, publisher: Publisher) -> int | None:
        stream = self._pods[publisher.pod].streams.get(publisher.rank)
        return stream.last_seq if stream is not None and stream.certain else None

    def __iter__(self) -> Iterator[Publisher]:
        return (Publisher(pod.name, rank) for pod in self._pods for rank in pod.streams)

    def __len__(self) -> int:
        return sum(len(pod.streams) for pod in self._pods)


def chunks(index: RadixIndex, pods: PodTable) -> Iterator[bytes]:
    """The stream; index and pods may change between two chunks."""
    yield msgspec.json.encode(_Head({pod.name: pod.started for pod in pods})) + b"\n"
    yield from dump(index, _Positions(pods))


async def restore(source: str, index: RadixIndex, pods: PodTable, metrics: Metrics) -> None:
    """Fill an empty index from a file, or from a gateway's URL. Whatever is wrong with it, the start is a cold one."""
    try:
        head, loader = await _load(source, index)
    except (SnapshotError, OSError, TimeoutError, aiohttp.ClientError) as error:
        _log.warning("not restored: starting cold", source=source, error=str(error) or type(error).__name__)
        metrics.restores.labels("failed").inc()
        for publisher in index.publishers():
            index.remove_pod(publisher.pod)
        return
    known = {pod.name: pod for pod in pods}
    for publisher, position in loader.positions.items():
        pod = known.get(publisher.pod)
        if pod is None:
            index.remove_pod(publisher.pod)
            continue
        if pod.restored is None:
            pod.restored = Restored(head.started.get(pod.name), {})
        pod.restored.positions[publisher.rank] = position
    metrics.restores.labels("ok").inc()
    _log.info("restored", source=source, publishers=len(loader.positions))


async def _load(source: str, index: RadixIndex) -> tuple[_Head, Loader]:
    loader, head, line = Loader(index), None, b""
    async for data in _read(source):
        if head is not None:
            loader.feed(data)
            continue
        line += data
        first, newline, rest = line.partition(b"\n")
        if newline:
            head = _head(first)
            loader.feed(rest)
        elif len(line) > _MAX_HEAD_BYTES:
            raise SnapshotError("not a snapshot")
    if head is None:
        raise SnapshotError("not a snapshot, or an empty one")
    loader.close()
    return head, loader


def _head(line: bytes) -> _Head:
    try:
        return msgspec.json.decode(line, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotError(f"not a snapshot: {error}") from error


async def _read(source: str) -> AsyncIterator[bytes]:
    if not source.startswith(("http://", "https://")):
        with await asyncio.to_thread(Path(source).open, "rb") as file:
            while data := await asyncio.to_thread(file.read, _READ_BYTES):
                yield data
        return
    url = source if source.rstrip("/").endswith(PATH) else source.rstrip("/") + PATH
    timeout = aiohttp.ClientTimeout(total=_FETCH_S)
    async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session, session.get(url) as answer:
        async for data in answer.content.iter_chunked(_READ_BYTES):
            yield data
