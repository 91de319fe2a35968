"""Filter, score, weigh, pick; and keep what led to the choice, so that it can be explained."""

from collections.abc import Sequence
from typing import NamedTuple

from scorers.base import UNKNOWN, Candidate, Filter, Picker, PlacementRequest, Scorer


class Fault(NamedTuple):
    """A scorer that counted as neutral, since it did not keep its promises."""

    scorer: str
    error: Exception


class Placement(NamedTuple):
    """A choice with its explanation; every list is in the candidates' order."""

    chosen: int
    """Index into the candidates."""
    totals: list[float]
    """Weighted sums; 0 of those that a filter dropped."""
    scores: dict[str, list[float]]
    """Unweighted values, 0 … 1, by scorer name; likewise."""
    dropped: tuple[str | None, ...] = ()
    """The filter by which each candidate was dropped, None: it was kept. Empty where all were."""
    skipped: tuple[str, ...] = ()
    """The filters that would have left nobody."""
    faults: tuple[Fault, ...] = ()


def place(
    request: PlacementRequest,
    candidates: Sequence[Candidate],
    scorers: Sequence[Scorer],
    picker: Picker,
    *,
    coordinate: float,
    filters: Sequence[Filter] = (),
) -> Placement:
    """Choose where `request` is computed: total = Σ weight · score of those that the filters keep, then the picker.

    Each filter is asked about those that the ones before it kept, and is skipped where it keeps none of them. What was
    dropped is not scored, and is nothing that scores are relative to. Without scorers all totals are 0 and the picker's
    tie-break decides. Two scorers of one name both count; the explanation keeps the later. A scorer that raises, or
    does not score them all, counts as neutral, 0.5 for all. `coordinate` in [0, 1) decides ties.

    Raises ValueError for no candidates. O((filters + scorers) · candidates).
    """
    if not candidates:
        raise ValueError("no candidates to place on")
    if filters:
        return _place_filtered(request, candidates, scorers, picker, coordinate, filters)
    scores: dict[str, list[float]] = {}
    faults: tuple[Fault, ...] = ()
    totals = [0.0] * len(candidates)
    for scorer in scorers:
        try:
            values = scorer.score(request, candidates)
            if len(values) != len(totals):
                raise ValueError(f"scored {len(values)} of {len(totals)} candidates")  # noqa: TRY301 - called often
        except Exception as error:  # noqa: BLE001 - it may be anybody's, and no request fails for it
            values = [UNKNOWN] * len(totals)
            faults += (Fault(scorer.name, error),)
        scores[scorer.name] = values
        weight = scorer.weight
        for number, value in enumerate(values):  # for a few candidates in a third of a comprehension's time
            totals[number] += weight * value
    placed = Placement(picker.pick(totals, coordinate), totals, scores)
    return placed._replace(faults=faults) if faults else placed


def _place_filtered(
    request: PlacementRequest,
    candidates: Sequence[Candidate],
    scorers: Sequence[Scorer],
    picker: Picker,
    coordinate: float,
    filters: Sequence[Filter],
) -> Placement:
    kept = list(range(len(candidates)))
    dropped: list[str | None] = [None] * len(candidates)
    skipped: list[str] = []
    for each in filters:
        left = each.keep(request, [candidates[index] for index in kept])
        if not any(left):
            skipped.append(each.name)
            continue
        for index, stays in zip(kept, left, strict=True):
            if not stays:
                dropped[index] = each.name
        kept = [index for index in kept if dropped[index] is None]
    placed = place(request, [candidates[index] for index in kept], scorers, picker, coordinate=coordinate)
    if len(kept) == len(candidates):
        return placed._replace(skipped=tuple(skipped))

    def spread(values: list[float]) -> list[float]:
        whole = [0.0] * len(candidates)
        for index, value in zip(kept, values, strict=True):
            whole[index] = value
        return whole

    return Placement(
        kept[placed.chosen],
        spread(placed.totals),
        {name: spread(values) for name, values in placed.scores.items()},
        tuple(dropped),
        tuple(skipped),
        placed.faults,
    )
