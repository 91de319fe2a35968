"""Score, weigh, pick; and keep what led to the choice, so that it can be explained."""

from collections.abc import Sequence
from typing import NamedTuple

from scorers.base import Candidate, Picker, PlacementRequest, Scorer


class Placement(NamedTuple):
    """A choice with its explanation; every list is in the candidates' order."""

    chosen: int
    """Index into the candidates."""
    totals: list[float]
    """Weighted sums."""
    scores: dict[str, list[float]]
    """Unweighted values, 0 … 1, by scorer name."""


def place(
    request: PlacementRequest,
    candidates: Sequence[Candidate],
    scorers: Sequence[Scorer],
    picker: Picker,
    *,
    coordinate: float,
) -> Placement:
    """Choose where `request` is computed: total = Σ weight · score, then the picker.

    Without scorers all totals are 0 and the picker's tie-break decides. Two scorers of one name both count; the
    explanation keeps the later. `coordinate` in [0, 1) decides ties.

    Raises ValueError for no candidates, or a scorer that does not score them all. O(scorers · candidates).
    """
    if not candidates:
        raise ValueError("no candidates to place on")
    scores: dict[str, list[float]] = {}
    totals = [0.0] * len(candidates)
    for scorer in scorers:
        values = scorer.score(request, candidates)
        scores[scorer.name] = values
        if len(values) != len(totals):
            raise ValueError(f"{scorer.name} scored {len(values)} of {len(totals)} candidates")
        weight = scorer.weight
        for number, value in enumerate(values):  # for a few candidates in a third of a comprehension's time
            totals[number] += weight * value
    return Placement(picker.pick(totals, coordinate), totals, scores)
