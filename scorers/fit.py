"""Costs that are learned while they change: a linear model of non-negative terms, fitted as samples come.

    seconds ≈ Σ coefficient_j · term_j,   every coefficient >= 0

The fit minimises Σ w (seconds - model)² with w = 1 ÷ (model · max(model, seconds)), each sample's by the model that it
met. So a millisecond of a short request counts as much as a hundred of a long one, a sample twice as long as the model
moves it as far as one half as long, and none further than one of 0 seconds: w · (seconds - model) is in ±1 ÷ model. Of
`memory` samples the oldest weighs a third of the newest, and all weigh half as much every `_HALF_LIFE_S`.

Robust: of a sample that is more than `_TRUSTED` times the model, that part stands for the model in its weight. So the
further out it is the less it moves, and a model that was next to nothing does not make it count more than all others. A
true step is followed, since every sample tells of it.

The prior is worth `_PRIOR_WEIGHT` of a sample, in units of the prior itself. It decides what samples leave open: how
much of equally long prompts is fixed and how much per token cannot be told from them.

Source: weighted recursive least squares with exponential forgetting, solved by coordinate descent, which keeps the
bound at 0. Pure: time is an argument.
"""

from collections.abc import Callable, Sequence
from math import exp2
from operator import mul
from typing import Final, Generic, NamedTuple, TypeVar

Terms = TypeVar("Terms", bound=tuple[float, ...])
"""A NamedTuple of numbers: the coefficients of a model, or what of each term a sample has."""

_HALF_LIFE_S: Final = 1800.0
_TRUSTED: Final = 4.0
_PRIOR_WEIGHT: Final = 0.01
_SWEEPS: Final = 4

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

    `memory`: samples, the more the steadier and the slower to follow. Memory and time per sample: the square of the
    number of terms. Raises ValueError for a prior that is none.
    """

    __slots__ = ("_at", "_kept", "_memory", "_prior", "_products", "_sums", "_weight", "coefficients", "least")

    def __init__(self, prior: "Terms | Fit[Terms]", memory: int) -> None:
        if not isinstance(prior, Fit) and not all(0 < each <= _MOST_S for each in prior):
            raise ValueError(f"coefficients > 0 are needed, not {prior}")
        self._prior = prior
        self.coefficients: Terms = self._usual()
        self.least: tuple[float, ...] = prior.least if isinstance(prior, Fit) else tuple(_LEAST * x for x in prior)
        """What counts as a usual coefficient at least."""
        self._memory = memory
        self._kept = 1.0 - 1.0 / memory
        terms = len(self.coefficients)
        self._products = [[0.0] * terms for _ in range(terms)]
        self._sums = [0.0] * terms
        self._weight = 0.0
        self._at = 0.0

    def seconds(self, terms: Terms) -> float:
        """What the model says."""
        return _product(self.coefficients, terms)

    def evidence(self, now: float) -> float:
        """How many samples' worth the fit rests on, from 0 to its memory."""
        return self._weight * _aged(now - self._at)

    def observe(self, terms: Terms, seconds: float, now: float) -> None:
        """A sample: these terms took so long. `terms` are >= 0, not all of them 0."""
        if now - self._at < _SETTLED_EVERY_S and self._weight > self._memory / 2:
            return
        seconds = max(_SHORTEST_S, seconds)
        expected = max(_SHORTEST_S, self.seconds(terms), seconds / _TRUSTED)
        kept, weight = self._kept * _aged(now - self._at), 1.0 / (expected * max(expected, seconds))
        products, sums = self._products, self._sums
        for row, term in enumerate(terms):
            weighted = weight * term
            sums[row] = kept * sums[row] + weighted * seconds
            products[row] = [kept * old + weighted * other for old, other in zip(products[row], terms, strict=True)]
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

    def _solve(self) -> None:
        rows = []
        for row, (products, total, usual) in enumerate(zip(self._products, self._sums, self._usual(), strict=True)):
            prior = max(usual, self.least[row])
            pull = _PRIOR_WEIGHT / prior
            rows.append((row, products, products[row], total + pull, products[row] + pull / prior))
        found = list(self.coefficients)
        for _ in range(_SWEEPS):
            for row, products, own, total, scale in rows:
                found[row] = max(0.0, (total - _product(products, found) + own * found[row]) / scale)
        self.coefficients = self._made(found)


def _product(left: Sequence[float], right: Sequence[float]) -> float:
    total: float = sum(map(mul, left, right))
    return total


def _aged(seconds: float) -> float:
    return exp2(-max(0.0, seconds) / _HALF_LIFE_S)
