"""Conversations: prompts that begin alike, grow turn by turn, and together outgrow the pods' caches. As token ids."""

from collections.abc import Iterator
from random import Random

from tests.gateway.fleet import BLOCK

_IDS = range(300, 100_000)  # of any vocabulary


class _Conversation:
    def __init__(self, opening: list[int], turns: int) -> None:
        self.tokens = list(opening)
        self.turns = turns


def conversations(
    seed: int, *, openings: int = 12, opening_blocks: int = 24, active: int = 40, turns: int = 8, turn_blocks: int = 3
) -> Iterator[list[int]]:
    """Prompts without end, the same for the same seed.

    So many conversations are under way at a time, each under one of a few openings, of which the first are used most.
    Whichever has its turn next grows by some blocks; after its last turn another takes its place.
    """
    random = Random(seed)
    texts = [_text(random, opening_blocks * BLOCK) for _ in range(openings)]
    popularity = [1 / (rank + 1) for rank in range(openings)]

    def opened() -> _Conversation:
        return _Conversation(random.choices(texts, popularity)[0], random.randint(1, turns))

    going = [opened() for _ in range(active)]
    while True:
        place = random.randrange(active)
        conversation = going[place]
        conversation.tokens += _text(random, random.randint(1, 2 * turn_blocks * BLOCK))
        conversation.turns -= 1
        if not conversation.turns:
            going[place] = opened()
        yield list(conversation.tokens)


def _text(random: Random, tokens: int) -> list[int]:
    return random.choices(_IDS, k=tokens)
