"""What a load consists of: its requests, when each is due, and what its prompts are made of.

A prompt is a sequence of pieces, and a piece is the beginning of an endless text that a seed names. Two prompts share
what they begin with alike, so how much of a prompt could be cached is known without tokenizing anything: a client makes
text or ids of the pieces, a simulation block hashes.

Requests form sessions: one may wait for another's answer, as a turn does for the turn before it and a sub-agent for the
one that spawned it.
"""

from typing import Literal, NamedTuple, TypeAlias

import msgspec

Role: TypeAlias = Literal["system", "user", "assistant"]


class Piece(NamedTuple):
    """The first `tokens` tokens of the text `seed`.

    `answer_of`: it stands for the answer to the request of that number, of which a client may have the real text.
    """

    seed: int
    tokens: int
    role: Role = "user"
    answer_of: int | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a load. Of a load all `number`s differ, and rise in the order in which requests are made known.

    It is due `at` so many seconds after the load's start, but not before `pause` seconds after the end of the answer to
    the request numbered `after`, which comes before it. A load in a closed loop goes by `after` and `pause` alone.
    `phase` tells parts of a load apart in its results.
    """

    number: int
    session: str
    prompt: tuple[Piece, ...]
    output_tokens: int
    at: float = 0.0
    after: int | None = None
    pause: float = 0.0
    phase: str = ""

    @property
    def prompt_tokens(self) -> int:
        """How long the prompt is, without what a chat template adds."""
        return sum(piece.tokens for piece in self.prompt)
