"""People who chat with an assistant: one system prompt for all, short questions, time to read and think.

A prompt grows by some hundred tokens a turn, and between two turns of a conversation a pod serves many others: what
is left of it then depends on how much the pod's tiers hold.
"""

from collections.abc import Iterator
from itertools import count
from random import Random

import msgspec

from loadgen.workload import Piece, Request
from loadgen.workload.datasets.distributions import (
    LogNormal,
    Seconds,
    Tokens,
    Uniform,
    check_range,
    draw_seconds,
    draw_tokens,
)
from loadgen.workload.datasets.session import Session


class Chat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`conversations` conversations (None: endless), each of `turns` turns or as many as `max_prompt_tokens` allows.

    `think` is how many seconds after an answer the next question comes. Phases: "first" is a conversation's first turn,
    "next" each later one.
    """

    conversations: int | None = None
    system_tokens: Tokens = 1_000
    turns: Tokens = Uniform(low=1, high=10)
    question_tokens: Tokens = LogNormal(median=50, mean=120, high=4_000)
    output_tokens: Tokens = LogNormal(median=200, mean=300, high=2_000)
    think: Seconds = LogNormal(median=15, mean=30, high=600)
    max_prompt_tokens: int = 32_000

    def __post_init__(self) -> None:
        """Refuse what makes no conversation."""
        check_range(1, conversations=self.conversations, turns=self.turns, question_tokens=self.question_tokens)
        check_range(1, output_tokens=self.output_tokens, max_prompt_tokens=self.max_prompt_tokens)
        check_range(0, system_tokens=self.system_tokens, think=self.think)

    def requests(self, seed: int) -> Iterator[Request]:
        """The conversations. The first prompt of one is sent however long it is."""
        rng = Random(seed)
        numbers = count()
        system = Piece(rng.getrandbits(64), draw_tokens(self.system_tokens, rng), "system")
        for conversation in count() if self.conversations is None else range(self.conversations):
            session = Session(f"chat-{conversation}", [system])
            for turn in range(draw_tokens(self.turns, rng)):
                question = Piece(rng.getrandbits(64), draw_tokens(self.question_tokens, rng))
                if turn and session.tokens + question.tokens > self.max_prompt_tokens:
                    break
                yield session.turn(
                    next(numbers),
                    [question],
                    draw_tokens(self.output_tokens, rng),
                    pause=draw_seconds(self.think, rng),
                    phase="next" if turn else "first",
                )
