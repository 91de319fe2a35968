"""What follows from a placement that is carried out, beside the request: columns, counters, a word in the log."""

from __future__ import annotations

import structlog

from gateway.decision import Ask, Decider, Decision
from gateway.metrics import Metrics
from scorers import Fault

_log = structlog.get_logger("gateway.placements")


class Placements:
    """Told of each. A scorer's first fault is logged with its traceback, and again when the gateway has restarted."""

    def __init__(self, decider: Decider, metrics: Metrics) -> None:
        self._decider = decider
        self._metrics = metrics
        self._logged: set[str] = set()

    def made(self, ask: Ask, decision: Decision) -> None:
        """A request goes where the decision says."""
        if self._decider.columns.wanted:
            self._decider.columns.placed(ask, decision)
        for name in decision.placed.skipped:
            self._metrics.filters_skipped.labels(name).inc()
        for fault in decision.placed.faults:
            self._fault(fault)

    def _fault(self, fault: Fault) -> None:
        self._metrics.scorer_faults.labels(fault.scorer).inc()
        if fault.scorer not in self._logged:
            self._logged.add(fault.scorer)
            _log.error("scorer failed, it counts as neutral", scorer=fault.scorer, exc_info=fault.error)
