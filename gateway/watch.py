"""Files that are read again when they change: keys, certificates, credentials.

A file counts as changed when its time, size or inode does; a link is followed, so a mounted secret that is swapped as
a whole is seen too. Reading happens in a thread, taking over on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
from msgspec import Struct

from config.load import ConfigError
from gateway.metrics import Metrics

_log = structlog.get_logger("gateway.watch")
_INTERVAL_S = 1.0

T = TypeVar("T")
_Signature = tuple[tuple[int, int, int] | None, ...]


class _Watched(Struct, eq=False):
    what: str
    files: Sequence[str]
    seen: _Signature
    read_again: Callable[[], Awaitable[Callable[[], None]]]  # what it returns puts in force what was read


class Files:
    """Files that were read and found good, and are not in force yet."""

    def __init__(self) -> None:
        self.watched: list[_Watched] = []
        self.uses: list[Callable[[], None]] = []

    async def add(self, what: str, files: Sequence[str], read: Callable[[], T], use: Callable[[T], None]) -> None:
        """Read; `use` is for later. Raises ConfigError, as `read` may."""

        async def read_again() -> Callable[[], None]:
            return partial(use, await asyncio.to_thread(read))

        seen = await asyncio.to_thread(_signature, files)  # before reading: a change meanwhile is seen later
        self.uses.append(await read_again())
        self.watched.append(_Watched(what, files, seen, read_again))


class Watch:
    """Follows files as long as `run` runs: for good those that were added, until the next ones those of `follow`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._for_good: list[_Watched] = []
        self._following: list[_Watched] = []

    async def add(self, what: str, files: Sequence[str], read: Callable[[], T], use: Callable[[T], None]) -> None:
        """`use(read())` now, and whenever one of `files` changes. Raises ConfigError, as `read` and `use` may."""
        found = Files()
        await found.add(what, files, read, use)
        for put_in_force in found.uses:
            put_in_force()
        self._for_good += found.watched

    def follow(self, found: Files) -> None:
        """Put these in force, and follow them in the place of those that were followed so before."""
        for put_in_force in found.uses:
            put_in_force()
        self._following = found.watched

    async def run(self) -> None:
        """Look at all files until cancelled. What cannot be used leaves in force what is."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            for watched in (*self._for_good, *self._following):
                now = await asyncio.to_thread(_signature, watched.files)
                if now != watched.seen:
                    watched.seen = now
                    await self._changed(watched)

    async def _changed(self, watched: _Watched) -> None:
        try:
            put_in_force = await watched.read_again()
            if watched not in self._for_good and watched not in self._following:
                return  # the configuration has changed meanwhile, and does not name it any more
            put_in_force()
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
