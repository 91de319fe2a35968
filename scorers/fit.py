"""Costs that are learned while they change: a linear model of non-negative terms, fitted as samples come.

    seconds ≈ Σ coefficient_j · term_j,   every coefficient >= 0

The fit minimises Σ w (seconds - model)², with each sample's w by the model that it met and by how far samples are off:

    off = |seconds - model| ÷ max(model, seconds)            usual: the running median of off
    w   = min(1, usual ÷ off) ÷ (near · max(near, seconds))  near = max(model, seconds ÷ `_TRUSTED`)

So a millisecond of a short request counts as much as a hundred of a long one. The nearer half of the samples counts in
full, the others hardly more than by the side that they are on, as in a median: what else goes on makes some samples
several times as long as they should be, and a mean would be of that as well. From `_TRUSTED` times the model on, the
longer a sample is the less it moves. Yet a true step is followed: with each sample that is further off `usual` grows
by a tenth, as it shrinks with each that is nearer. Of `memory` samples the oldest weighs a third of the newest, and all
weigh half as much every `_HALF_LIFE_S`.

Where a sample is what was left when something else had been taken off, that was off as well. It is `beside`, and is
added to both, seconds and model, before they are held against each other.

The prior is worth `_PRIOR_WEIGHT` of a sample, of each coefficient in units of the prior, or of itself where that is
more: an engine may take a hundred times what was believed. It decides what samples leave open: how much of equally long
prompts is fixed and how much per token cannot be told from them. In a model of `one_scale` the units are the prior
times a factor s, the best there is, and s is worth as much in units of 1: a long prompt tells of short ones, too.

Source: weighted recursive least squares with exponential forgetting; Huber's weights, with a median by stochastic
approximation as their scale; Gaussian elimination, again without the lowest term as long as that is below 0. Pure: time
is an argument.
"""

from collections.abc import Callable, Sequence
from math import exp2
from operator import mul
from typing import Final, Generic, NamedTuple, TypeVar

Terms = TypeVar("Terms", bound=tuple[float, ...])
"""A NamedTuple of numbers: the coefficients of a model, or what of each term a sample has."""

_HALF_LIFE_S: Final = 1800.0
_TRUSTED: Final = 2.5
_PRIOR_WEIGHT: Final = 0.01

_AT_FIRST: Final = 0.5
_MORE: Final = 1.1
_NEAREST: Final = 0.05
_FARTHEST: Final = 0.7
"""How far samples usually are off goes by this factor, within bounds: else what never differed would not be followed
when it does, and what was far off for long would be trusted late."""

_SHORTEST_S: Final = 1e-3
"""Nothing is timed, and no weight told from others, more precisely."""

_MOST_S: Final = 1e6
"""Nothing that is done once takes eleven days."""

_LEAST: Final = 0.02
"""Share of the first prior below which no coefficient counts as the usual one: what is usually 0 may yet be learned."""

_SETTLED_EVERY_S: Final = 0.02
"""How often a fit takes a sample that has all that its memory holds. More of them would say nothing new, and cost."""


class Kept(NamedTuple):
    """What is worth keeping of a fit: its coefficients, and on how many samples they rest."""

    coefficients: tuple[float, ...]
    evidence: float


class Exact(NamedTuple):
    """All that expectations follow from: `weight` is the evidence as it was at the time `at`."""

    coefficients: tuple[float, ...]
    weight: float
    at: float


class Fit(Generic[Terms]):
    """One model. `prior` gives the coefficients before the first sample, each > 0; a fit may be another one's prior.

    `one_scale`: what a prior is off by is rather one factor than several, as where all terms are one engine's work.

    `memory`: samples, the more the steadier and the slower to follow. Memory and time per sample: the square of the
    number of terms. Raises ValueError for a prior that is none.
    """

    __slots__ = (
        "_at",
        "_kept",
        "_memory",
        "_one_scale",
        "_prior",
        "_products",
        "_sums",
        "_usual_off",
        "_weight",
        "coefficients",
        "least",
    )

    def __init__(self, prior: "Terms | Fit[Terms]", memory: int, *, one_scale: bool = False) -> None:
        if not isinstance(prior, Fit) and not all(0 < each <= _MOST_S for each in prior):
            raise ValueError(f"coefficients > 0 are needed, not {prior}")
        self._prior = prior
        self.coefficients: Terms = self._usual()
        self.least: tuple[float, ...] = prior.least if isinstance(prior, Fit) else tuple(_LEAST * x for x in prior)
        """What counts as a usual coefficient at least."""
        self._one_scale = one_scale
        self._memory = memory
        self._kept = 1.0 - 1.0 / memory
        terms = len(self.coefficients)
        self._products = [[0.0] * (terms - row) for row in range(terms)]  # symmetric: from the diagonal on
        self._sums = [0.0] * terms
        self._usual_off = _AT_FIRST
        self._weight = 0.0
        self._at = 0.0

    def seconds(self, terms: Terms) -> float:
        """What the model says."""
        return _product(self.coefficients, terms)

    def evidence(self, now: float) -> float:
        """How many samples' worth the fit rests on, from 0 to its memory."""
        return self._weight * _aged(now - self._at)

    def observe(self, terms: Terms, seconds: float, now: float, beside: float = 0.0) -> None:
        """A sample: these terms took so long, `beside` more that was taken off. `terms` are >= 0, not all of them 0."""
        if now - self._at < _SETTLED_EVERY_S and self._weight > self._memory / 2:
            return
        kept, weight = self._kept * _aged(now - self._at), self._weighed(self.seconds(terms) + beside, seconds + beside)
        seconds = max(_SHORTEST_S, seconds + beside) - beside
        products, sums = self._products, self._sums
        for row, term in enumerate(terms):
            weighted = weight * term
            sums[row] = kept * sums[row] + weighted * seconds
            products[row] = [
                kept * old + weighted * other for old, other in zip(products[row], terms[row:], strict=True)
            ]
        self._weight = kept * self._weight + 1.0
        self._at = now
        self._solve()

    def state(self, now: float) -> Kept:
        """What is worth keeping."""
        return Kept(tuple(self.coefficients), self.evidence(now))

    def restore(self, coefficients: Sequence[float]) -> None:
        """Begin with what was kept, as a prior. Raises ValueError or TypeError for what is no such thing."""
        if len(coefficients) != len(self.coefficients) or not all(0 <= each <= _MOST_S for each in coefficients):
            raise ValueError(f"{len(self.coefficients)} coefficients >= 0 are needed, not {coefficients}")
        self._prior = self.coefficients = self._made([float(each) for each in coefficients])

    def exact(self) -> Exact:
        """What a copy has to be told to expect the same, to the last bit."""
        return Exact(tuple(self.coefficients), self._weight, self._at)

    def become(self, exact: Exact) -> None:
        """Expect from now on what that one does; such a copy is not to be taught."""
        self.coefficients = self._made(exact.coefficients)
        self._weight, self._at = exact.weight, exact.at

    def _usual(self) -> Terms:
        return self._prior.coefficients if isinstance(self._prior, Fit) else self._prior

    def _made(self, coefficients: Sequence[float]) -> Terms:
        make: Callable[..., Terms] = type(self.coefficients)  # a NamedTuple, of which mypy sees a tuple
        return make(*coefficients)

    def _weighed(self, expected: float, seconds: float) -> float:
        """What a sample weighs; what is usual has changed by it."""
        expected, seconds = max(_SHORTEST_S, expected), max(_SHORTEST_S, seconds)
        off, usual = abs(seconds - expected) / max(expected, seconds), self._usual_off
        near = max(expected, seconds / _TRUSTED)
        weight = 1.0 / (near * max(near, seconds))
        if off <= usual:
            self._usual_off = max(_NEAREST, usual / _MORE)
            return weight
        self._usual_off = min(_FARTHEST, usual * _MORE)
        return weight * usual / off

    def _solve(self) -> None:
        priors = list(map(max, self._usual(), self.least))
        units = [min(_MOST_S, max(pair)) for pair in zip(priors, self.coefficients, strict=True)]
        shares = [prior / unit for prior, unit in zip(priors, units, strict=True)]
        whole = 1.0 + _product(shares, shares) if self._one_scale else 1.0
        ridges, rows = [_PRIOR_WEIGHT / (whole * unit**2) for unit in units], []
        for row, (products, total, unit) in enumerate(zip(self._products, self._sums, units, strict=True)):
            pull = _PRIOR_WEIGHT * shares[row] / (whole * unit)
            equation = [*products, total + pull]
            equation[0] += _PRIOR_WEIGHT / unit**2
            if self._one_scale:
                for other in range(row, len(units)):
                    equation[other - row] -= pull * shares[other] / units[other]
            rows.append(equation)
        found = _solution([*map(list, rows)], ridges)
        if min(found) < 0.0:
            found = _not_below_0(rows, ridges, units, found)
        self.coefficients = self._made(found)


def _not_below_0(
    rows: Sequence[Sequence[float]], ridges: Sequence[float], units: Sequence[float], found: list[float]
) -> list[float]:
    """From what solves these equations to what does without the lowest term, as long as one is below 0."""
    left = list(range(len(rows)))
    while left and min(found) < 0.0:
        del left[min(range(len(left)), key=lambda each: found[each] / units[left[each]])]
        fewer = [[rows[row][other - row] for other in left if other >= row] + [rows[row][-1]] for row in left]
        found = _solution(fewer, [ridges[row] for row in left])
    whole = dict(zip(left, found, strict=True))
    return [whole.get(row, 0.0) for row in range(len(rows))]


def _solution(rows: Sequence[list[float]], ridges: Sequence[float]) -> list[float]:
    """Of symmetric equations: of each row what is from the diagonal on, and the right side; all of it is changed.

    But for rounding no pivot is below its ridge.
    """
    for step, (row, ridge) in enumerate(zip(rows, ridges, strict=True)):
        pivot = row[0] = max(row[0], ridge)
        for further in range(1, len(row) - 1):
            if row[further]:
                share, other = row[further] / pivot, rows[step + further]
                other[:] = [each - share * own for each, own in zip(other, row[further:], strict=True)]
    found: list[float] = []
    for row in reversed(rows):
        found.insert(0, (row[-1] - _product(row[1:-1], found)) / row[0])
    return found


def _product(left: Sequence[float], right: Sequence[float]) -> float:
    total: float = sum(map(mul, left, right))
    return total


def _aged(seconds: float) -> float:
    return exp2(-max(0.0, seconds) / _HALF_LIFE_S)
