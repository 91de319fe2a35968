"""The columns of candidates that cost something to fill: filled while a configured scorer or filter reads them.

With the default placement nothing here is called, neither for a decision nor after it. The default scorer expects
first tokens by itself, by a formula that weighs more than a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from gateway.pod import Pod
from gateway.pods import PodTable
from gateway.sessions import Sessions
from scorers import AdapterState, Candidate, Column, Filter, Forecast, PlacementRequest, Scorer, is_cold
from scorers.ttft import FORESIGHT, PATIENCE

if TYPE_CHECKING:
    from gateway.decision import Ask, Decision

_Of = Callable[[Pod, int], Any]  # what a pod's rank has in a column


class _Asked(NamedTuple):
    """What a column may depend on."""

    ask: Ask
    request: PlacementRequest
    candidates: Sequence[Candidate]


class Columns:
    """Fills columns, and keeps what they say of requests that were placed. `wanted`: whether anybody reads any."""

    def __init__(self, pods: PodTable) -> None:
        self.sessions = Sessions()
        self._pods = pods
        self._turns = count(1)
        self._known: dict[Column, Callable[[_Asked], _Of]] = {
            "role": lambda _: lambda pod, _: pod.spec.role,
            "labels": lambda _: lambda pod, _: pod.spec.labels,
            "cold_turn": lambda _: lambda pod, rank: pod.cold_turns.get(rank, 0),
            "session": self._session,
            "adapter": self._adapter,
            "expected_ttft": _expected_ttft,
        }
        self.reconfigure(())

    def reconfigure(self, parts: Iterable[Scorer | Filter]) -> None:
        """From now on these are to be served. A session's place is not kept while nobody asks for it."""
        needed = {column for part in parts for column in getattr(part, "needs", ())}
        self._fills = [(column, fill) for column, fill in self._known.items() if column in needed]
        self.wanted = bool(self._fills)
        self._counts_turns = "cold_turn" in needed
        self.sessions.wanted = "session" in needed
        if not self.sessions.wanted:
            self.sessions.clear()

    def filled(
        self, ask: Ask, request: PlacementRequest, candidates: Sequence[Candidate], pods: Iterable[Pod]
    ) -> list[Candidate]:
        """The candidates, one per rank of the pods in their order, with the columns that are read. O(ranks)."""
        asked = _Asked(ask, request, candidates)
        fills = [(column, fill(asked)) for column, fill in self._fills]
        ranks = [(pod, rank) for pod in pods for rank in pod.ranks]
        return [
            replace(candidate, **{column: of(pod, rank) for column, of in fills})
            for candidate, (pod, rank) in zip(candidates, ranks, strict=True)
        ]

    def placed(self, ask: Ask, decision: Decision) -> None:
        """The request goes where the decision says; one that is only explained does not. O(candidates)."""
        pod, rank = decision.pod, decision.chosen.rank
        if ask.session is not None and self.sessions.wanted:
            self.sessions.placed(ask.model or "", ask.session, pod.publishers[rank])
        if self._counts_turns and is_cold(decision.prompt.tokens, decision.candidates):
            pod.cold_turns[rank] = next(self._turns)

    def _session(self, asked: _Asked) -> _Of:
        ask = asked.ask
        place = None if ask.session is None else self.sessions.place(ask.model or "", ask.session)
        return lambda pod, rank: pod.publishers[rank] == place

    def _adapter(self, asked: _Asked) -> _Of:
        model, oldest = asked.ask.model or "", self._pods.oldest_load

        def state(pod: Pod, rank: int) -> AdapterState | None:
            adapters, served = pod.rank_load(rank, oldest).adapters, pod.models.get(model)
            return None if adapters is None or served is None or not served.adapter else adapters.state(model)

        return state


def _expected_ttft(asked: _Asked) -> _Of:
    if asked.request.prompt_tokens is None:
        return lambda _, __: None
    seconds = expected_ttft(asked.request, asked.candidates)
    return lambda pod, rank: seconds[pod.url, rank]


def expected_ttft(request: PlacementRequest, candidates: Sequence[Candidate]) -> dict[tuple[str, int], float]:
    """When a request's first token is expected from each candidate, by pod and rank. O(candidates)."""
    forecast = Forecast(request, candidates, FORESIGHT, PATIENCE)
    return {(each.pod, each.rank): forecast.of(each).seconds for each in candidates}
