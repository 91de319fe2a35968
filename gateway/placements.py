"""What follows from a placement that is carried out, beside the request: columns, counters, a word in the log."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping

import structlog
from msgspec.structs import replace

from gateway.decision import Ask, Decider, Decision
from gateway.decision_log import DecisionLog
from gateway.errors import NoPodReady
from gateway.explain_header import ExplainHeader
from gateway.links import Links
from gateway.metrics import Metrics, Record
from gateway.pulls import Pulls
from gateway.web.observer import Watcher
from scorers import Fault

_log = structlog.get_logger("gateway.placements")


class Placements:
    """Told of each. A scorer's first fault is logged with its traceback, and again when the gateway has restarted."""

    def __init__(
        self,
        decider: Decider,
        links: Links,
        pulls: Pulls,
        metrics: Metrics,
        log: DecisionLog,
        explains: ExplainHeader,
    ) -> None:
        self.decider = decider
        self.links = links
        self.pulls = pulls
        self.explains = explains
        self._decisions = log
        self._metrics = metrics
        self._logged: set[str] = set()
        self.watcher: Watcher | None = None

    def made(self, ask: Ask, decision: Decision, attempt: int) -> None:
        """A request goes where the decision says, for the first time or once more."""
        if self._decisions.on:
            self._decisions.made(ask, decision, attempt)
        if self.decider.columns.wanted:
            self.decider.columns.placed(ask, decision)
        placed = decision.placed
        for scorer, weight in self.decider.weights:
            self._metrics.scores.labels(scorer).value += weight * placed.scores[scorer][placed.chosen]
        for name in decision.placed.skipped:
            self._metrics.filters_skipped.labels(name).inc()
        for fault in decision.placed.faults:
            self._fault(fault)

    def around_what_hangs(self, decision: Decision, ask: Ask, tried: Mapping[str, object]) -> Decision:
        """Of what would wait for a pull that was given up: the sooner of another pod, and of sharing nothing there."""
        pod, stuck = decision.pod, self.pulls.waits_for(decision)
        if not stuck:
            return decision
        salt = uuid.uuid4().hex
        alone = replace(ask, only=frozenset({pod.name}), peek=replace(ask.peek, cache_salt=salt))
        best = replace(self.decider.decide(alone, tried), salt=salt)
        with contextlib.suppress(NoPodReady):
            other = self.decider.decide(ask, {**tried, pod.name: None, **dict.fromkeys(stuck)})
            sooner = (other.predicted_s or 0.0) < (best.predicted_s or 0.0)
            if sooner and not self.pulls.waits_for(other):
                best = other
        self._metrics.detours.labels("other_pod" if best.salt is None else "salt").inc()
        return best

    def ended(self, decision: Decision, record: Record) -> None:
        """It is over, however it went."""
        if decision.source is not None:
            self.links.pulled(decision.source, decision.chosen)
            self.pulls.answered(decision, record)

    def _fault(self, fault: Fault) -> None:
        self._metrics.scorer_faults.labels(fault.scorer).inc()
        if fault.scorer not in self._logged:
            self._logged.add(fault.scorer)
            _log.error("scorer failed, it counts as neutral", scorer=fault.scorer, exc_info=fault.error)
