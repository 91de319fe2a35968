"""A changed configuration, put in force while requests go on: as a whole, or not at all.

What is bound to a socket or built into a structure at the start stays as it is until the next one. Everything else is
changed, after all that can fail has been tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple

import structlog
from msgspec import Struct
from msgspec.structs import fields, replace

from config.load import Config, ConfigError
from gateway.metrics import Metrics

_log = structlog.get_logger("gateway.reload")
_UNTIL_RESTART: Final = ("listen", "admin", "upstream_tls", "index")

_Step = Callable[[Config], Awaitable[None]]
Result = Literal["ok", "restart_needed", "failed", "nothing_to_reload"]


class ConfigFile(NamedTuple):
    """Where a configuration came from. `read` blocks, and raises ConfigError."""

    path: Path
    read: Callable[[], Config]


class Reloader:
    """Knows the configuration in force. `change` puts another in force, or raises ConfigError and changes nothing.

    `check` raises ConfigError for what is wrong in those parts that wait for a restart.
    """

    def __init__(
        self, config: Config, file: ConfigFile | None, *, change: _Step, check: _Step, metrics: Metrics
    ) -> None:
        self.config = config
        self._file = file
        self._change = change
        self._check = check
        self._metrics = metrics

    async def reload(self) -> Result:
        """Read the file again and put it in force; the answer is counted, and logged with its reason."""
        result = await self._reload()
        self._metrics.config_reloads.labels(result).inc()
        if result in ("ok", "restart_needed"):
            self._metrics.config_loaded.set_to_current_time()
        return result

    async def _reload(self) -> Result:
        if self._file is None:
            _log.warning("nothing to reload: the gateway was started without --config")
            return "nothing_to_reload"
        try:
            waiting = await self._take_over(self._file)
        except ConfigError as error:
            _log.warning("changed configuration not used, the one before stays in force", error=str(error))
            return "failed"
        except Exception:  # noqa: BLE001 - whatever it is, requests go on, and the log has the traceback
            _log.exception("unexpected error in a reload")
            return "failed"
        _log.info("changed configuration in force", pods=len(self.config.pods))
        if waiting:
            _log.warning("these changes need a restart", settings=waiting)
            return "restart_needed"
        return "ok"

    async def _take_over(self, file: ConfigFile) -> list[str]:
        """The settings that wait for a restart. Raises ConfigError."""
        found = await asyncio.to_thread(file.read)
        config, waiting = until_restart(self.config, found)
        try:
            await self._check(found)
            await self._change(config)
        except ConfigError as error:  # of a file that the configuration names
            raise ConfigError(f"{file.path}: {error}") from error
        self.config = config
        return waiting


def until_restart(old: Config, new: Config) -> tuple[Config, list[str]]:
    """`new` with what stays until a restart as in `old`, and the settings in which the two differ there."""
    kept = {section: getattr(old, section) for section in _UNTIL_RESTART}
    waiting = [path for section in kept for path in differing(kept[section], getattr(new, section), section)]
    return replace(new, **kept), waiting


def differing(old: object, new: object, path: str) -> list[str]:
    """The settings below `path` in which two configurations differ."""
    if old == new:
        return []
    if not isinstance(old, Struct):
        return [path]
    below = (differing(getattr(old, f.name), getattr(new, f.name), f"{path}.{f.name}") for f in fields(old))
    return [setting for settings in below for setting in settings]
