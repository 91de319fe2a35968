"""All that is about pulls and no request's own: what became of them, trials, and looks at ports."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from config.schema import P2P
from gateway.metrics import Metrics
from gateway.pods import PodTable
from gateway.poller import Poller
from gateway.ports import Ports
from gateway.pulls import Pulls
from gateway.trials import Trials
from gateway.upstream import PodApi
from index import RadixIndex


class Pulling:
    """The parts, wired. `beside` is to go on as long as the gateway does."""

    def __init__(
        self, pods: PodTable, index: RadixIndex, api: PodApi, poller: Poller, metrics: Metrics, p2p: P2P
    ) -> None:
        self.pulls = Pulls(pods, metrics, p2p)
        self.ports = Ports(pods, self.pulls, metrics, p2p)
        self.trials = Trials(pods, index, self.pulls, api, poller, metrics, p2p)
        self.beside: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (self.ports.run, self.trials.run)
        self._pods = pods
        self._p2p = p2p

    def reconfigure(self, p2p: P2P) -> None:
        """From now on so, for the pods that there are now."""
        self._p2p = p2p
        for part in (self.pulls, self.ports, self.trials):
            part.reconfigure(p2p)

    @property
    def probes(self) -> bool:
        """Whether a pod that comes up is given a prompt to compute, to be held against what its peers make of it."""
        return self._p2p.enabled and self._p2p.probe and len(list(self._pods)) > 1
