"""Files that are read again when they change: keys, certificates, credentials.

A file counts as changed when its time, size or inode does; a link is followed, so a mounted secret that is swapped as
a whole is seen too. Reading happens in a thread, taking over on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog

from config.load import ConfigError
from gateway.metrics import Metrics

_log = structlog.get_logger("gateway.watch")
_INTERVAL_S = 1.0

T = TypeVar("T")
_Signature = tuple[tuple[int, int, int] | None, ...]


class _Watched(NamedTuple):
    what: str
    files: Sequence[str]
    read_again: Callable[[], Awaitable[None]]


class Watch:
    """Who added a file is given it again and again, as long as `run` runs."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._watched: list[_Watched] = []
        self._seen: list[_Signature] = []

    async def add(self, what: str, files: Sequence[str], read: Callable[[], T], use: Callable[[T], None]) -> None:
        """`use(read())` now, and whenever one of `files` changes. Raises ConfigError, as `read` and `use` may."""

        async def read_again() -> None:
            use(await asyncio.to_thread(read))

        seen = await asyncio.to_thread(_signature, files)  # before reading: a change meanwhile is seen later
        await read_again()
        self._watched.append(_Watched(what, files, read_again))
        self._seen.append(seen)

    async def run(self) -> None:
        """Look at all files until cancelled. What cannot be used leaves in force what is."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            for i, watched in enumerate(self._watched):
                now = await asyncio.to_thread(_signature, watched.files)
                if now != self._seen[i]:
                    self._seen[i] = now
                    await self._changed(watched)

    async def _changed(self, watched: _Watched) -> None:
        try:
            await watched.read_again()
        except ConfigError as error:
            self._metrics.reloads.labels(watched.what, "failed").inc()
            _log.warning("changed file not used, what it said before stays in force", file=str(error))
        else:
            self._metrics.reloads.labels(watched.what, "ok").inc()
            _log.info("changed file in force", what=watched.what, files=list(watched.files))


def _signature(files: Sequence[str]) -> _Signature:
    return tuple(_stat(Path(file)) for file in files)


def _stat(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
