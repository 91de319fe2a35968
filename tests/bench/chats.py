"""The chats that routers are loaded with."""

import random
import time
from collections.abc import Iterator
from itertools import count, cycle
from typing import Final

import msgspec

MODEL: Final = "bench-model"
LONG_BYTES: Final = 128 * 1024
CONVERSATIONS: Final = 32
_TEXT: Final = (
    "the value of a key is read by one call and then kept in the cache so that what comes next can be found at once , "
    "if it has not changed ; where there is no such key , an error tells which name was given and what to do with it ."
)
"""Whose words come to a little over four characters a token, as usual English does."""

_TURN: Final = (
    b',{"role":"assistant","content":"an answer of the backend"},'
    b'{"role":"user","content":"And what about the next one, number %d?"}'
)


def chat(number: int, length: int, **fields: object) -> bytes:
    """A chat body whose prompt is `number`'s from its first words on, about `length` bytes long."""
    words = f"Question {number}: what is the capital of country {number}? Answer in a single word, please."
    rng = random.Random(number)
    filler = " ".join(rng.choices(_TEXT.split(), k=length // 3))
    system = {"role": "system", "content": f"You are a helpful assistant, number {number}."}
    user = {"role": "user", "content": f"{words} {filler}"[: max(length, len(words))]}
    return msgspec.json.encode({"model": MODEL, "messages": [system, user], "temperature": 0, **fields})


def long_chats(first: int) -> Iterator[bytes]:
    """Chats of 128 KB that differ from their beginnings on, endlessly, by their numbers from `first` on."""
    before, after = chat(0, LONG_BYTES, max_tokens=1).split(b"number 0.", 1)
    for number in count(first):
        yield b"%bnumber %020d.%b" % (before, number, after)


def turns(first: int) -> Iterator[bytes]:
    """First the beginnings of `CONVERSATIONS` long chats, then their next turns, round after round.

    The turns are new at every call.
    """
    beginnings = long_chats(first)
    said = [next(beginnings).rsplit(b"]", 1) for _ in range(CONVERSATIONS)]
    for messages, rest in said:
        yield b"%b]%b" % (messages, rest)
    for conversation, turn in zip(cycle(said), count(time.monotonic_ns()), strict=False):
        conversation[0] += _TURN % turn
        yield b"]".join(conversation)
