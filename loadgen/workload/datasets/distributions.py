"""Lengths and pauses: a number, or a distribution that each one is drawn from.

In a file: `256`, `{type: uniform, low: 1, high: 20}` or `{type: lognormal, median: 1800, mean: 3500}`.
"""

import math
from random import Random
from typing import TypeAlias

import msgspec


class Uniform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="uniform"):
    """All between `low` and `high`, both included, equally likely."""

    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse what is empty or unbounded."""
        if not -math.inf < self.low <= self.high < math.inf:
            raise ValueError(f"low must be at most high, and both finite, not {self.low} and {self.high}")

    def draw(self, rng: Random) -> float:
        """One value."""
        return rng.uniform(self.low, self.high)


class LogNormal(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="lognormal"
):
    """A logarithm that is normal: ln `median` on average, with a variance of 2 ln(`mean` / `median`).

    What is drawn above `high` counts as `high`; `median` and `mean` are those without that limit.
    """

    median: float
    mean: float
    high: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no such distribution has."""
        if not 0 < self.median <= self.mean < math.inf:
            raise ValueError(f"median must be above 0 and at most mean, not {self.median} with mean {self.mean}")
        if self.high is not None and not self.high >= self.median:
            raise ValueError(f"high must be at least median, not {self.high}")

    def draw(self, rng: Random) -> float:
        """One value."""
        sigma = math.sqrt(2.0 * math.log(self.mean / self.median))
        value = rng.lognormvariate(math.log(self.median), sigma)
        return value if self.high is None else min(value, self.high)


Tokens: TypeAlias = int | Uniform | LogNormal
Seconds: TypeAlias = float | Uniform | LogNormal


def draw_tokens(of: Tokens, rng: Random) -> int:
    """A whole number, at least 1 where it is drawn from a lognormal distribution."""
    match of:
        case Uniform():
            return rng.randint(round(of.low), round(of.high))
        case LogNormal():
            return max(1, round(of.draw(rng)))
    return of


def draw_seconds(of: Seconds, rng: Random) -> float:
    """A duration in seconds."""
    return of.draw(rng) if isinstance(of, Uniform | LogNormal) else of


def check_range(low: float, high: float = math.inf, /, **values: Seconds | None) -> None:
    """ValueError for what is, or may be drawn, below `low` or above `high` or is not finite; None is left out.

    Lognormal values are above 0, which is enough for all that they are used for.
    """
    for name, value in values.items():
        match value:
            case None | LogNormal():
                continue
            case Uniform():
                fits = low <= value.low and value.high <= high
            case _:
                fits = low <= value <= high and value < math.inf
        if not fits:
            limits = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
            raise ValueError(f"{name} must be {limits}, not {value}")
