"""A logged decision, made once more: by the same code, from the same inputs, by the same rules or by others."""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gateway.columns import expected_ttft
from gateway.decision import decided
from gateway.decision_lines import PodNote
from gateway.forecasts import first_token_s
from loadgen.sim.logged import Logged, Rules
from scorers import Candidate, PlacementRequest

_MADE_ANEW: Final = frozenset({"role", "labels", "expected_ttft"})
"""Columns that a log has whether or not the rules in force read them, or what they are made of."""


class Choice(Struct, frozen=True):
    """What came out."""

    pod: str
    rank: int
    source: str | None
    source_rank: int | None
    source_reason: str


class Redecided(Struct, frozen=True):
    """What comes out, and what it rests on. `predicted_s`: None where the prompt's length is not known."""

    choice: Choice
    totals: list[float]
    scores: dict[str, list[float]]
    filtered_by: tuple[str | None, ...]
    predicted_s: float | None

    def same_as(self, logged: Logged) -> bool:
        """Whether all of it is as it was logged, to the last bit."""
        table = logged.table
        return (self.choice, self.totals, self.scores, self.filtered_by) == (
            (logged_choice(logged), table.totals, table.scores, table.filtered_by)
        )


def logged_choice(logged: Logged) -> Choice:
    """What came out at the time."""
    line = logged.line
    return Choice(line.pod, line.rank, line.source, line.source_rank, line.source_reason)


def redecided(logged: Logged, rules: Rules) -> Redecided:
    """Decide by these rules. O(candidates)."""
    request, candidates, p2p = logged.request, logged.candidates, rules.p2p
    if rules is not logged.rules:
        no_pull = logged.table.no_pull
        request = replace(request, pulls=p2p.enabled and no_pull is None, pull_floor=p2p.floor)
        columns = needed(rules) & _MADE_ANEW - needed(logged.rules)
        candidates = _with(columns, request, candidates, logged.pods)
    placed, sourced = decided(
        request,
        candidates,
        rules.placement,
        p2p,
        coordinate=logged.table.coordinate,
        no_pull=logged.table.no_pull,
    )
    chosen, source = candidates[placed.chosen], sourced.source
    peer: tuple[str | None, int | None] = (None, None) if source is None else (source.pod, source.rank)
    return Redecided(
        Choice(chosen.pod, chosen.rank, *peer, sourced.reason),
        placed.totals,
        placed.scores,
        placed.dropped,
        _predicted_s(request, chosen, source, sourced.expected_s),
    )


def needed(rules: Rules) -> frozenset[str]:
    """The columns that scorers and filters read."""
    parts = (*rules.placement.scorers, *rules.placement.filters)
    return frozenset(column for part in parts for column in getattr(part, "needs", ()))


def missing(logged: Logged, rules: Rules) -> frozenset[str]:
    """The columns that these rules read and the log does not have, since the rules in force did not read them."""
    return needed(rules) - needed(logged.rules) - _MADE_ANEW


def _with(
    columns: Iterable[str], request: PlacementRequest, candidates: list[Candidate], pods: Mapping[str, PodNote]
) -> list[Candidate]:
    """The candidates with columns that are made anew."""
    wanted = set(columns)
    if not wanted:
        return candidates
    seconds = expected_ttft(request, candidates) if request.prompt_tokens is not None else {}
    unknown = PodNote("both", {})
    return [
        replace(each, **{column: value for column, value in values.items() if column in wanted})
        for each in candidates
        for note in [pods.get(each.pod, unknown)]
        for values in [
            {"role": note.role, "labels": note.labels, "expected_ttft": seconds.get((each.pod, each.rank))},
        ]
    ]


def _predicted_s(
    request: PlacementRequest, chosen: Candidate, source: Candidate | None, expected_s: float
) -> float | None:
    if request.prompt_tokens is None:
        return None
    return expected_s or first_token_s(request, chosen, source)
