"""Which lengths are measured, and in which order: pure.

Each round goes through all lengths, one round up and the next one down, and at each length both ways: pods take turns
as source. What comes first at a length, the pull or the computing, changes from round to round, so that neither gains
from what the machine did before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

DEFAULT_LENGTHS: Final = (512, 1024, 2048, 4096, 8192, 16_384, 32_768)
MOST_LENGTHS: Final = 32
MOST_ROUNDS: Final = 100
SHORTEST: Final = 64
"""Tokens: a prompt of less than a block has nothing to pull."""

FEWEST: Final = 2
"""Lengths: a fixed cost and one per token cannot be told apart by fewer."""


class LadderError(ValueError):
    """One line: why these lengths cannot be measured."""


class Turn(NamedTuple):
    """One measurement: `source` and `consumer` are 0 and 1, or the other way round."""

    round: int
    tokens: int
    source: int
    consumer: int
    pull_first: bool


def ladder(wanted: Sequence[int] | None, longest: int | None) -> tuple[int, ...]:
    """The lengths to measure, ascending: those wanted, else the usual ones, that pods of `longest` tokens can answer.

    Raises LadderError where too few are left, or one that was asked for is not possible.
    """
    lengths = sorted(set(DEFAULT_LENGTHS if wanted is None else wanted))
    fitting = tuple(tokens for tokens in lengths if longest is None or tokens < longest)
    if wanted is None and longest is not None and longest in lengths:
        fitting = (*fitting, longest - SHORTEST)  # what a limit leaves of the length of the same size
    if wanted is not None:
        if lengths[0] < SHORTEST:
            raise LadderError(f"a length of {lengths[0]} is less than {SHORTEST} tokens")
        if len(lengths) > MOST_LENGTHS:
            raise LadderError(f"more than {MOST_LENGTHS} lengths")
        if len(fitting) < len(lengths):
            raise LadderError(f"{lengths[-1]} tokens and an answer do not fit into the pods' {longest}")
    if len(fitting) < FEWEST:
        raise LadderError(f"at least {FEWEST} lengths are needed" + (f" below {longest} tokens" if longest else ""))
    return fitting


def turns(lengths: Sequence[int], rounds: int) -> Iterator[Turn]:
    """All measurements in their order."""
    for number in range(rounds):
        for tokens in lengths if number % 2 == 0 else reversed(lengths):
            for source in (0, 1):
                yield Turn(number, tokens, source, 1 - source, (number + source) % 2 == 1)
