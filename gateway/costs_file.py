"""What was learned of the pods' speed, kept in a file over a restart.

One small object of JSON, read at the start, and written every so often and at the end. It is written beside its place
and then moved there, so whoever reads it finds all of one writing. What was there and could not be used is put aside
then, not before: nothing is moved that is not about to be replaced. Encoding and writing are a thread's, never the
event loop's. Nothing depends on the file: without it the gateway learns anew, and a disk that hangs is waited for no
longer than a deadline.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from errno import EINVAL
from functools import partial
from pathlib import Path
from stat import S_IMODE
from typing import Any, Final, Literal

import msgspec
import structlog
from msgspec import Struct

from config.schema import Costs as Settings
from gateway.metrics import Metrics
from gateway.pods import PodTable
from gateway.threads import begin
from scorers import Costs

_log = structlog.get_logger("gateway.costs")

_READABLE: Final = 0o644  # it holds no secret
_MAX_BYTES: Final = 64 * 1024 * 1024  # ten thousand pairs take three
_LOAD_S: Final = 5.0  # nothing is served before; a disk that wakes up answers within
_SAVE_S: Final = 30.0  # a busy network disk may take some seconds for one flush
_LAST_S: Final = 2.0  # at the end, for what is under way and the last writing together: the process waits for it
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
        self._unusable: str | None = None  # where what is there was not written by this process and is not known to it
        self._warned: str | None = None  # where writing failed last
        self._writing: dict[str, asyncio.Future[str | None]] = {}  # at most one for each path

    def reconfigure(self, settings: Settings) -> None:
        """It is written there from now on. What another file says is not read before the next start."""
        self._settings = settings
        self._changed.set()

    async def load(self) -> None:
        """Begin with what was learned before. A file that cannot be used in time is as good as none."""
        path = self._settings.path
        if path is None:
            return
        try:
            async with asyncio.timeout(_LOAD_S):
                data = await begin(partial(_read, path), "read costs")
            kept = msgspec.json.decode(data, type=_Kept)
            self._pods.costs.restore(kept.costs)
        except FileNotFoundError:
            self._counted("load", "missing")
            return
        except (OSError, *_UNFIT) as error:
            self._unusable = path
            self._counted("load", "failed")
            _log.warning("costs not restored: they are learned anew", path=path, error=_reason(error))
            return
        self._pods.prune()
        self._counted("load", "ok")
        _log.info("costs restored", path=path, age_s=round(time.time() - kept.saved))

    async def run(self) -> None:
        """Save every so often until cancelled, and then once more."""
        try:
            while True:
                await self._pause()
                await self._save(_SAVE_S)
        finally:
            await self._save(_LAST_S)

    async def _pause(self) -> None:
        """One interval, begun anew when the settings change."""
        while True:
            try:
                async with asyncio.timeout(self._settings.save_interval):
                    await self._changed.wait()
            except TimeoutError:
                return
            self._changed.clear()

    async def _save(self, seconds: float) -> None:
        """Write, once what is under way there has ended: it would put what is older over what is newer.

        Within `seconds`; what takes longer is counted as failed, and goes on.
        """
        path = self._settings.path
        if path is None:
            return
        deadline = asyncio.get_running_loop().time() + seconds
        if await self._ended(path, deadline):
            state = self._pods.costs.state(self._pods.clock())
            write = partial(_write, path, state, aside=path == self._unusable)
            self._writing[path] = begin(write, "write costs")
            await self._ended(path, deadline)

    async def _ended(self, path: str, deadline: float) -> bool:
        """Whether nothing is being written there any more. Cancelled meanwhile, it goes on being written."""
        writing = self._writing.get(path)
        if writing is None:
            return True
        await asyncio.wait([writing], timeout=deadline - asyncio.get_running_loop().time())
        if not writing.done():
            self._not_saved(path, TimeoutError())
            return False
        del self._writing[path]
        try:
            moved_to = writing.result()
        except OSError as error:
            self._not_saved(path, error)
        else:
            self._saved(path, moved_to)
        return True

    def _saved(self, path: str, moved_to: str | None) -> None:
        self._counted("save", "ok")
        if moved_to is not None:
            _log.info("costs written; what could not be used was put aside", path=path, moved_to=moved_to)
        if path == self._unusable:
            self._unusable = None
        self._warned = None

    def _not_saved(self, path: str, error: OSError) -> None:
        self._counted("save", "failed")
        if path != self._warned:
            _log.warning("costs cannot be written: a restart will not know them", path=path, error=_reason(error))
        self._warned = path

    def _counted(self, action: str, result: str) -> None:
        self._metrics.costs_file.labels(action, result).inc()


def kept(path: str) -> dict[str, Any]:
    """What a file keeps, as `Costs.restore` takes it. Raises OSError; ValueError for what is no such file."""
    try:
        costs = msgspec.json.decode(_read(path), type=_Kept).costs
        Costs().restore(costs)
    except _UNFIT as error:
        raise ValueError(str(error)) from error
    return costs


def keep(path: str, state: dict[str, Any]) -> None:
    """Write what `Costs.state` gave, for a gateway that starts later, maybe as somebody else. Raises OSError."""
    replace(Path(path), _encoded(state))


def replace(file: Path, data: bytes) -> None:
    """Write all of it or nothing, with the rights that the file had, or for anybody to read. Raises OSError."""
    before = file.stat() if file.exists() else None
    _put(file, data, aside=False)
    file.chmod(_READABLE if before is None else S_IMODE(before.st_mode))
    if before is not None and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(file, before.st_uid, before.st_gid)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error) or "the disk does not answer"
    return str(error)


def _read(path: str) -> bytes:
    with Path(path).open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError("too large for what it should be")
    return data


def _write(path: str, state: dict[str, Any], *, aside: bool) -> str | None:
    """In a thread. Where what was there is now, None: replaced. Raises OSError."""
    return _put(Path(path), _encoded(state), aside=aside)


def _encoded(state: dict[str, Any]) -> bytes:
    return msgspec.json.encode(_Kept("p2p-gateway costs", 1, time.time(), state)) + b"\n"


def _put(target: Path, data: bytes, *, aside: bool) -> str | None:
    """As `_write`. Only files are replaced: no directories, devices, pipes."""
    if target.exists() and not target.is_file():
        raise OSError(EINVAL, "not a file")
    file = tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False)  # noqa: SIM115 - it is moved
    try:
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        moved_to = _put_aside(target) if aside else None
        Path(file.name).replace(target)
    except OSError:
        Path(file.name).unlink(missing_ok=True)
        raise
    return moved_to


def _put_aside(file: Path) -> str | None:
    """Where it is now; None: where it was."""
    try:
        return str(file.replace(f"{file}.unusable"))
    except OSError:
        return None
