"""The lines of the decision log, as they are written and read again.

A `Line` says where a request goes and why. One with a `Table` has all that the decision was made of, so that it can be
made again: the candidates with every column, the random coordinate, and what was believed of costs. Costs are many and
change little from one request to the next, so a table has only what has changed since the table before; so it is with
pulls that must not be named. The `Start` in front of a table begins anew: it has the configuration, and that table all
costs; of a large fleet the first of them, and the tables after it the rest. It is there first in every file, whenever
the configuration changes, and after a line was lost. Between two starts the tables' numbers have no gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import astuple, replace

from gateway.decision import Ask, Barrier, Decision
from scorers import Barred, Candidate, CostChanges, PlacementRequest

VERSION: Final = 1

Level = Literal["info", "debug"]


class PodNote(Struct, frozen=True):
    """What the configuration says of a pod that a scorer or a filter may read."""

    role: str
    labels: dict[str, str]


class Start(Struct, frozen=True, kw_only=True, tag_field="event", tag="decision log"):
    """What decisions go by from here on. `placement` and `p2p` are sections of a configuration; pods by URL."""

    timestamp: datetime
    level: Level = "info"
    version: int = VERSION
    placement: Any
    p2p: Any
    pods: dict[str, PodNote]


class Table(Struct, frozen=True, kw_only=True):
    """All that a decision was made of. `candidates` are rows of `columns`; the other lists are in their order.

    Of the request, `costs` and `barred` stand here. `barred` unset: as in the table before.
    """

    number: int
    request: PlacementRequest
    coordinate: float
    no_pull: Barrier | None
    barred: Barred | UnsetType | None = UNSET
    columns: tuple[str, ...]
    candidates: list[tuple[Any, ...]]
    filtered_by: tuple[str | None, ...]
    scores: dict[str, list[float]]
    totals: list[float]
    costs: CostChanges

    def rows(self) -> list[Candidate]:
        """The candidates. Raises TypeError for columns that this version does not know."""
        return [Candidate(**dict(zip(self.columns, row, strict=True))) for row in self.candidates]


class Line(Struct, frozen=True, kw_only=True, tag_field="event", tag="decision"):
    """One decision: of a request, or of one more attempt of it. Tokens and scores are those of the chosen rank."""

    timestamp: datetime
    level: Level
    request_id: str
    attempt: int
    model: str
    tokens_from: str
    prompt_tokens: int | None
    candidates: int
    pod: str
    rank: int
    gpu_tokens: int
    cpu_tokens: int
    any_tokens: int
    scores: dict[str, float]
    total: float
    filters_skipped: tuple[str, ...]
    predicted_cached: int | None
    predicted_ttft_s: float | None
    source: str | None
    source_rank: int | None
    source_tokens: int
    source_reason: str
    table: Table | UnsetType = UNSET


_COLUMNS: Final = Candidate.__struct_fields__


def line(ask: Ask, decision: Decision, attempt: int, timestamp: datetime, table: Table | None) -> Line:
    """The request's attempt is counted from 1. O(1) beside the table."""
    placed, chosen, source, predicted = decision.placed, decision.chosen, decision.source, decision.predicted_s
    index = placed.chosen
    return Line(
        timestamp=timestamp,
        level="info" if table is None else "debug",
        request_id=ask.request_id,
        attempt=attempt,
        model=ask.model or "",
        tokens_from=ask.prompt.tokens_from,
        prompt_tokens=decision.request.prompt_tokens,
        candidates=len(decision.candidates),
        pod=chosen.pod,
        rank=chosen.rank,
        gpu_tokens=chosen.gpu_tokens,
        cpu_tokens=chosen.cpu_tokens,
        any_tokens=chosen.any_tokens,
        scores={name: values[index] for name, values in placed.scores.items()},
        total=placed.totals[index],
        filters_skipped=placed.skipped,
        predicted_cached=decision.predicted_cached,
        predicted_ttft_s=None if predicted is None else round(predicted, 4),
        source=None if source is None else source.pod,
        source_rank=None if source is None else source.rank,
        source_tokens=decision.source_tokens,
        source_reason=decision.source_reason,
        table=UNSET if table is None else table,
    )


def table(ask: Ask, decision: Decision, number: int, costs: CostChanges, barred: Barred | UnsetType | None) -> Table:
    """To be asked before anything happens after the decision. O(candidates)."""
    placed = decision.placed
    return Table(
        number=number,
        request=replace(decision.request, costs=None, barred=None),
        coordinate=decision.coordinate,
        no_pull=ask.no_pull,
        barred=barred,
        columns=_COLUMNS,
        candidates=_rows(decision.candidates),
        filtered_by=placed.dropped,
        scores=placed.scores,
        totals=placed.totals,
        costs=costs,
    )


def _rows(candidates: Sequence[Candidate]) -> list[tuple[Any, ...]]:
    return list(map(astuple, candidates))
