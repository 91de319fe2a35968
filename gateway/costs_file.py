"""What was learned of the pods' speed, kept in a file over a restart.

One small object of JSON, read at the start, and written every so often and at the end. It is written beside its place
and then moved there, so whoever reads it finds all of one writing. Encoding and writing are a thread's, never the
event loop's. Nothing depends on the file: without it the gateway learns anew.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import structlog
from msgspec import Struct

from config.schema import Costs as Settings
from gateway.metrics import Metrics
from gateway.pods import PodTable

_log = structlog.get_logger("gateway.costs")

_MAX_BYTES: Final = 64 * 1024 * 1024  # ten thousand pairs take three
_LAST_S: Final = 2.0  # for the last writing: a disk that hangs must not keep the process
_UNFIT: Final = (ValueError, LookupError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError)


class _Kept(Struct, forbid_unknown_fields=True):
    """The file. `saved` is when it was written, seconds since 1970."""

    format: Literal["p2p-gateway costs"]
    version: Literal[1]
    saved: float
    costs: dict[str, Any]


class CostsFile:
    """Fills the table's costs, and keeps them."""

    def __init__(self, settings: Settings, pods: PodTable, metrics: Metrics) -> None:
        self._settings = settings
        self._pods = pods
        self._metrics = metrics
        self._changed = asyncio.Event()
        self._works = True
        self._writing: asyncio.Task[str | None] | None = None

    def reconfigure(self, settings: Settings) -> None:
        """It is written there from now on. What another file says is not read before the next start."""
        self._settings = settings
        self._changed.set()

    async def load(self) -> None:
        """Begin with what was learned before. A file that cannot be used is as good as none."""
        path = self._settings.path
        if path is None:
            return
        try:
            data = await asyncio.to_thread(_read, path)
            kept = msgspec.json.decode(data, type=_Kept)
            self._pods.costs.restore(kept.costs)
        except FileNotFoundError:
            self._counted("load", "missing")
            return
        except OSError as error:
            self._not_loaded(path, error.strerror or str(error))
            return
        except _UNFIT as error:
            moved = await asyncio.to_thread(_put_aside, path)  # it may be something else, and is written to soon
            self._not_loaded(path, str(error), moved_to=moved)
            return
        self._pods.prune()
        self._counted("load", "ok")
        _log.info("costs restored", path=path, age_s=round(time.time() - kept.saved))

    async def run(self) -> None:
        """Save every so often until cancelled, and then once more."""
        try:
            while True:
                await self._pause()
                self._begin()
                await self._end(None)
        finally:
            await self._end(_LAST_S)  # one that is under way would put what is older over what is written now
            self._begin()
            await self._end(_LAST_S)

    async def _pause(self) -> None:
        """One interval, begun anew when the settings change."""
        while True:
            try:
                async with asyncio.timeout(self._settings.save_interval):
                    await self._changed.wait()
            except TimeoutError:
                return
            self._changed.clear()

    def _begin(self) -> None:
        path = self._settings.path
        if path is not None and self._writing is None:
            state = self._pods.costs.state(self._pods.clock())
            self._writing = asyncio.create_task(asyncio.to_thread(_write, path, state), name="write costs")

    async def _end(self, seconds: float | None) -> None:
        """Wait for what is being written; cancelled meanwhile, it goes on being written."""
        if self._writing is None:
            return
        done, _ = await asyncio.wait([self._writing], timeout=seconds)
        if not done:
            return
        error, self._writing = self._writing.result(), None
        self._counted("save", "ok" if error is None else "failed")
        if error is not None and self._works:
            _log.warning("costs cannot be written: a restart will not know them", path=self._settings.path, error=error)
        self._works = error is None

    def _not_loaded(self, path: str, error: str, **told: str | None) -> None:
        _log.warning("costs not restored: they are learned anew", path=path, error=error, **told)
        self._counted("load", "failed")

    def _counted(self, action: str, result: str) -> None:
        self._metrics.costs_file.labels(action, result).inc()


def _read(path: str) -> bytes:
    with Path(path).open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError("too large for what it should be")
    return data


def _put_aside(path: str) -> str | None:
    """In a thread. Where the file is now; None: where it was."""
    aside = f"{path}.unusable"
    try:
        Path(path).replace(aside)
    except OSError:
        return None
    return aside


def _write(path: str, state: dict[str, Any]) -> str | None:
    """In a thread. What went wrong, None: nothing."""
    data = msgspec.json.encode(_Kept("p2p-gateway costs", 1, time.time(), state))
    target = Path(path)
    try:
        file = tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False)  # noqa: SIM115 - it is moved
        try:
            with file:
                file.write(data + b"\n")
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(target)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise
    except OSError as error:
        return error.strerror or str(error)
    return None
