"""What the simulated model says: a pure function of the prompt's ids, so that every pod answers a prompt alike.

The answer is known before the first step; the engine only decides when each of its tokens is due. It consists of plain
words spelled in ASCII, one token per letter, so that no token's text depends on the next one.
"""

import hashlib
from array import array
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from loadgen.tokens import END

_WORDS: Final = [
    "the",
    "cache",
    "holds",
    "a",
    "long",
    "prefix",
    "and",
    "each",
    "pod",
    "shares",
    "what",
    "it",
    "keeps",
    "so",
    "no",
    "block",
    "is",
    "read",
    "twice",
    "when",
    "one",
    "peer",
    "has",
    "it",
    "near",
    "early",
    "late",
    "warm",
    "cold",
    "first",
    "next",
    "under",
    "over",
    "tier",
    "queue",
    "turn",
    "token",
    "answer",
    "question",
    "line",
    "page",
    "note",
    "river",
    "stone",
    "light",
]
# Where the model ends an answer by itself, in tokens.
_SHORTEST, _LONGEST = 24, 160


class Answer(NamedTuple):
    """Tokens in order, the text each adds, why it ends ("stop" or "length"), and the stop string met, if any."""

    token_ids: list[int]
    texts: list[str]
    finish_reason: str
    stop_reason: str | None


def answer(prompt: Sequence[int], limit: int, *, ignore_eos: bool = False, stop: Sequence[str] = ()) -> Answer:
    """Return the greedy answer of at most ``limit`` tokens. O(prompt + limit)."""
    random = Random(hashlib.sha256(array("Q", prompt).tobytes()).digest())
    natural = random.randint(_SHORTEST, _LONGEST)
    length = limit if ignore_eos else min(limit, natural)
    text = ""
    while len(text) < length:
        text += random.choice(_WORDS) + " "
    text = text[:length]
    ends = sorted((text.find(s) + len(s), s) for s in stop if s and s in text)
    if ends:
        end, met = ends[0]
        # vLLM counts the tokens of a stop string, and takes its text out of the answer.
        kept = text[: end - len(met)]
        return Answer(list(text[:end].encode()), [*kept, *[""] * len(met)], "stop", met)
    token_ids, texts = list(text.encode()), list(text)
    if not ignore_eos and natural < limit:
        return Answer([*token_ids, END], [*texts, ""], "stop", None)
    return Answer(token_ids, texts, "length", None)
