"""The pod table: all pods, who of them can serve now, and what is known between them."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from gateway.agreement import Agreement
from gateway.leases import Lease
from gateway.pairs import Pairs
from gateway.pod import UNKNOWN_LOAD, Load, Pod
from gateway.pull_lease import Pull
from index import Arrival, Cached, Coming, Expected, Publisher
from scorers import Candidate, Costs

_NOTHING_CACHED = Cached(0, 0, 0)
_UNKNOWN_LOADS: Mapping[int, Load] = {}
_TIERED = True
_NOTHING_EXPECTED: Mapping[Publisher, int] = {}
_NOTHING_COMES: Mapping[Publisher, Arrival] = {}


class PodTable:
    """All configured pods, by name, and what is known between them.

    `changed` is called with a pod that has come or is gone, and after each poll.
    """

    def __init__(
        self,
        pods: Iterable[Pod],
        *,
        max_load_age: float,
        max_requests: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agreement = Agreement(self._differ)
        self.pairs = Pairs()
        self.costs = Costs()
        self.expected = Expected()
        self.coming = Coming()
        self.clock = clock
        self.changed: Callable[[Pod], None] = _told_nobody
        self.reconfigure(pods, max_load_age=max_load_age, max_requests=max_requests)

    def reconfigure(self, pods: Iterable[Pod], *, max_load_age: float, max_requests: int | None) -> None:
        """From now on these pods and bounds."""
        self._pods = {pod.name: pod for pod in pods}
        self._max_load_age = max_load_age
        self._max_requests = max_requests

    def __contains__(self, name: str) -> bool:
        return name in self._pods

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods.values())

    def __getitem__(self, name: str) -> Pod:
        return self._pods[name]

    @property
    def oldest_load(self) -> float:
        """Load that was polled before this counts as unknown."""
        return self.clock() - self._max_load_age

    @property
    def ready(self) -> bool:
        """Whether any pod can serve."""
        return any(pod.state == "ready" for pod in self)

    def knows(self, model: str) -> bool:
        """Whether a pod is known to serve the model, ready or not."""
        for pod in self._pods.values():  # noqa: SIM110 - several times as fast as `any`, in every request
            if model in pod.models:
                return True
        return False

    def models(self) -> dict[str, list[Pod]]:
        """Model id → the pods known to serve it, ready or not."""
        serving: dict[str, list[Pod]] = {}
        for pod in self:
            for model in pod.models:
                serving.setdefault(model, []).append(pod)
        return serving

    def serving(
        self,
        model: str | None,
        excluded: frozenset[str] = frozenset(),
        only: frozenset[str] | None = None,
        now: float | None = None,
    ) -> list[Pod]:
        """Ready pods for a model, best kind only: healthy; else suspect or stalled; else those with an open breaker.

        A pod under suspicion, or stalled, is still better than no answer, so it drops out only while another can serve.
        A pod with as many requests as it may have serves no more. `model` None: any; `only`: no others than these.
        """
        now = self.clock() if now is None else now
        ready = self.ready_for(model, only)
        if excluded:
            ready = [pod for pod in ready if pod.name not in excluded]
        if self._max_requests is not None:
            ready = [pod for pod in ready if pod.requests < self._max_requests]
        for pod in ready:  # nearly always nothing is wrong with any, and nobody has to be left out
            if pod.suspect or pod.stalled or not (pod.breaker.closed or pod.breaker.admits(now)):
                break
        else:
            return ready
        admitted = [p for p in ready if p.breaker.admits(now)]
        return [p for p in admitted if not (p.suspect or p.stalled)] or admitted or ready

    def overloaded(self, model: str | None, only: frozenset[str] | None = None) -> bool:
        """Whether ready pods serve a model, and all have as many requests as they may."""
        ready = self.ready_for(model, only)
        return self._max_requests is not None and bool(ready) and all(p.requests >= self._max_requests for p in ready)

    def ready_for(self, model: str | None, only: frozenset[str] | None = None) -> list[Pod]:
        """Ready pods for a model, whatever else is known of them. `model` and `only` as in `serving`."""
        pods = self._pods.values()
        ready = [pod for pod in pods if pod.state == "ready" and (model is None or model in pod.models)]
        return ready if only is None else [pod for pod in ready if pod.name in only]

    def candidates(
        self,
        pods: Iterable[Pod],
        cached: Mapping[Publisher, Cached],
        speculative: Mapping[Publisher, int] = _NOTHING_EXPECTED,
        now: float | None = None,
        coming: Mapping[Publisher, Arrival] = _NOTHING_COMES,
    ) -> list[Candidate]:
        """One candidate per rank; `speculative`: tokens that are expected there, `coming`: being pulled. O(ranks)."""
        now = self.clock() if now is None else now
        oldest = now - self._max_load_age
        found: list[Candidate] = []
        for pod in pods:
            loads = pod.load if pod.load_at >= oldest else _UNKNOWN_LOADS
            host, port = (None, None) if pod.p2p is None or pod.suspect or pod.stalled else pod.p2p
            for rank, publisher, counts, stream in pod.rows:
                gpu, cpu, longest = cached.get(publisher, _NOTHING_CACHED)
                waiting, running, kv_usage, _, _, kv_tokens = loads.get(rank, UNKNOWN_LOAD)
                found.append(
                    Candidate(  # by position: a call with over 15 names goes by way of a dict, in four times the time
                        pod.url,
                        rank,
                        host,
                        None if port is None else port + rank,
                        gpu,
                        cpu,
                        longest,
                        1.0 if stream.trust.whole else stream.trust.credit(now),
                        speculative.get(publisher, 0) if speculative else 0,
                        _TIERED,
                        waiting,
                        running,
                        kv_usage,
                        counts.requests,
                        counts.tokens,
                        counts.unanswered,
                        counts.square,
                        counts.context,
                        counts.progress_s(now) if counts.unanswered else 0.0,
                        counts.pulls,
                        counts.pulled_tokens,
                        counts.serving,
                        counts.serving_tokens,
                        counts.awaited,
                        stream.turnover.share,
                        kv_tokens,
                    )
                )
        if not coming:
            return found
        publishers = [row.publisher for pod in pods for row in pod.rows]
        return [_with(each, coming.get(publisher), now) for publisher, each in zip(publishers, found, strict=True)]

    def leased(
        self,
        pod: Pod,
        rank: int,
        uncached_tokens: int,
        *,
        square: int = 0,
        prompts: Sequence[array[int]] = (),
        pull: Pull | None = None,
    ) -> Lease:
        """A request under way on a pod for as long as the lease's context lasts; see `Lease` and `InFlight`."""
        return Lease(self, pod, rank, uncached_tokens, square, prompts, pull)

    def forget(self, name: str) -> None:
        """The pod has left, and may come back as another: nothing is known of what it holds, or will."""
        self.agreement.forget(name)
        self.expected.forget(name)
        if name in self._pods:
            self.pairs.parted(self._pods[name].url)
            self.costs.parted(self._pods[name].url)

    def prune(self) -> None:
        """Costs of pods that are not in the table are not worth keeping. O(pairs)."""
        urls = [pod.url for pod in self]
        self.costs.keep(urls)
        self.pairs.keep(urls)

    def _differ(self) -> None:
        """Other pods than before can never pull from each other."""
        found = [(self._pods.get(each.pod), self._pods.get(each.peer)) for each in self.agreement.found]
        self.pairs.differ((pod.url, peer.url) for pod, peer in found if pod is not None and peer is not None)


def _told_nobody(_: Pod) -> None:
    pass


def _with(candidate: Candidate, arrival: Arrival | None, now: float) -> Candidate:
    """A candidate to which something comes. What is late is expected to take as long again as it is."""
    if arrival is None:
        return candidate
    tokens, due, (pod, rank) = arrival
    return replace(candidate, coming_tokens=tokens, coming_s=abs(due - now), coming_from=pod, coming_rank=rank)
