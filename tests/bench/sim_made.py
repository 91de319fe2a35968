"""A trace in Mooncake's form, made here, for where no recorded one is at hand: conversations of growing prompts.

All begin with the same 512 tokens, and each turn's prompt is all that was said before it, answers included, and a
question. Lengths, pauses and the rate are about those of recorded conversations.
"""

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from loadgen.workload.traces import BLOCK_TOKENS

_SEED: Final = 7
_SESSIONS_PER_S: Final = 1.0
_GOES_ON: Final = 0.7  # so often another turn follows
_PAUSE_S: Final = 40.0  # on average
_FIRST_TOKENS: Final = (8.6, 0.9)  # of the logarithm, mean and deviation: 5,400 and 8,100 tokens, median and mean
_QUESTION_TOKENS: Final = (6.2, 1.0)
_ANSWER_TOKENS: Final = (5.4, 0.9)
_MOST_TOKENS: Final = 100_000


class Line(msgspec.Struct):
    """As in the recorded ones; `timestamp` is in ms."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


def write(path: Path, requests: int) -> None:
    """The same lines for the same number of requests."""
    lines = sorted(_lines(requests), key=lambda line: line.timestamp)
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines[:requests]))


def _lines(requests: int) -> Iterator[Line]:
    """Of as many conversations as there are requests, so of the first of them more than enough."""
    rng = Random(_SEED)
    ids = count(1)
    at = 0.0
    for _ in range(requests):
        at += rng.expovariate(_SESSIONS_PER_S)
        yield from _conversation(rng, ids, at)


def _conversation(rng: Random, ids: Iterator[int], at: float) -> Iterator[Line]:
    blocks, tokens = [0], BLOCK_TOKENS + _drawn(rng, _FIRST_TOKENS)
    while tokens < _MOST_TOKENS:
        full, rest = divmod(tokens, BLOCK_TOKENS)
        blocks += islice(ids, full - len(blocks))
        answer = _drawn(rng, _ANSWER_TOKENS)
        # A block that is not full is another one in the next turn, as it is in the recorded traces.
        yield Line(round(at * 1e3), tokens, answer, blocks + list(islice(ids, 1 if rest else 0)))
        if rng.random() > _GOES_ON:
            return
        at += rng.expovariate(1 / _PAUSE_S)
        tokens += answer + _drawn(rng, _QUESTION_TOKENS)


def _drawn(rng: Random, of: tuple[float, float]) -> int:
    return 1 + int(rng.lognormvariate(*of))
