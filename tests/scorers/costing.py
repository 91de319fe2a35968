"""Ranks, work and prices of a fleet whose costs are known."""

from scorers import Prefill, Pull

A, B, C = ("http://a:8000", 0), ("http://b:8000", 0), ("http://c:8000", 1)
PREFILL = Prefill(fixed=0.027, token=2.5e-5, square=3.1e-10, decode=1e-4)
PULL = Pull(fixed=0.025, token=4e-6, step=1.2, setup=0.5)


def prompt(tokens: int, held: int = 0, decoding: int = 0) -> Prefill:
    return Prefill(1.0, float(tokens - held), float(tokens * tokens - held * held), float(decoding))


def moved(tokens: int, step_s: float = 0.0, *, met: bool = True) -> Pull:
    return Pull(1.0, float(tokens), step_s, 0.0 if met else 1.0)


def taken(costs: Prefill | Pull, terms: Prefill | Pull) -> float:
    return sum(cost * term for cost, term in zip(costs, terms, strict=True))
