"""One JSON object per decision: where a request goes, and why; of a share of them, all that it was made of.

The access log tells how a request went, when it has ended. This one tells why it went where it did, when that is
decided; both have its id. Off, it costs a look at an attribute.
"""

from __future__ import annotations

import io
import random
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog
from msgspec import UNSET

from config.schema import Config
from config.schema import DecisionLog as Settings
from gateway import log_file
from gateway.decision import Ask, Decision
from gateway.decision_lines import PodNote, Start, line, table
from gateway.log_file import Dropped, LogFile
from scorers import Barred, Costs

_log = structlog.get_logger("gateway.decision_log")

_OFF: Final = Settings()
_AGAIN_S: Final = 5.0  # all costs of a large fleet are megabytes: not for each line that a disk loses
_MOST_COSTS: Final = 256  # ranks and pairs in one table: a millisecond


def open_file(settings: Settings) -> io.RawIOBase | None:
    """Blocking. None: no log is wanted. Raises ConfigError."""
    return log_file.open_file(settings.path, "decision_log.path") if settings.enabled else None


class DecisionLog:
    """Used from one event loop. `on`: whether it wants to hear of decisions. `dropped` as `LogFile` has it."""

    def __init__(self, costs: Costs, dropped: Dropped) -> None:
        self.on = False
        self._costs = costs
        self._dropped = dropped
        self._settings = _OFF
        self._config: Config | None = None
        self._encoder = msgspec.json.Encoder()
        self._begun = False  # what the next table goes on from is in the file, as far as is known
        self._number = 0
        self._barred: Barred | None = None  # of the table before
        self._not_before = 0.0  # where what was begun is lost
        self._faulted = False
        self._file = LogFile("decision log", self._lost)
        self.close = self._file.close

    def reconfigure(self, config: Config, file: io.RawIOBase | None) -> None:
        """From now on so, into `file`, which `open_file` opened; decisions go by this configuration."""
        self._config, self._settings = config, config.decision_log
        settings = self._settings
        self.on = settings.enabled and max(settings.sample, settings.full_sample) > 0
        self._costs.follow(follows=self.on and settings.full_sample > 0)
        self._anew()
        self._file.reconfigure(settings.path, file)

    def reopen(self) -> None:
        """Lines from now on go to what has the file's name now."""
        self._anew()
        self._file.reopen()

    def made(self, ask: Ask, decision: Decision, attempt: int) -> None:
        """A decision, of which nothing has followed yet. Never blocks. O(candidates) for a full line, else O(1).

        Whatever is wrong with a line costs the line; of what is a fault, the first traceback is logged.
        """
        settings, draw = self._settings, random.random()  # noqa: S311 - it decides on a line of a log
        try:
            if draw < settings.full_sample and (self._begun or decision.request.now >= self._not_before):
                self._full(ask, decision, attempt)
            elif draw < max(settings.sample, settings.full_sample):
                self._write(line(ask, decision, attempt, datetime.now(UTC), None))
        except UnicodeEncodeError:  # whatever a client calls a model
            self._lost(1)
        except Exception:  # noqa: BLE001 - such as what a scorer of somebody's own left behind: the request goes on
            self._lost(1)
            if not self._faulted:
                self._faulted = True
                _log.exception("decision not logged")

    def _full(self, ask: Ask, decision: Decision, attempt: int) -> None:
        now, whole = datetime.now(UTC), not self._begun
        if whole:
            # Before it is written: should it be lost, that is told from a thread.
            self._begun, self._number = True, 0
            self._not_before = decision.request.now + _AGAIN_S
        barred = decision.request.barred
        as_before = not whole and barred is self._barred
        costs = self._costs.changes(whole=whole, most=_MOST_COSTS)
        told = table(ask, decision, self._number, costs, UNSET if as_before else barred)
        self._number, self._barred = self._number + 1, barred
        if not whole or self._write(self._start(now)):
            self._write(line(ask, decision, attempt, now, told))

    def _anew(self) -> None:
        self._begun, self._not_before = False, 0.0

    def _start(self, now: datetime) -> Start:
        assert self._config is not None, "what is on was configured"  # noqa: S101 - for mypy
        pods = {pod.url.rstrip("/"): PodNote(pod.role, pod.labels) for pod in self._config.pods}
        return Start(timestamp=now, placement=self._config.placement, p2p=self._config.p2p, pods=pods)

    def _write(self, what: object) -> bool:
        return self._file.write(self._encoder.encode(what) + b"\n")

    def _lost(self, count: int) -> None:
        """From any thread. What comes next cannot build on what was lost."""
        self._begun = False
        self._dropped(count)
