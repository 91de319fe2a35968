"""Conversations about one long document each: nothing is shared between them, almost all of it within one.

A first turn is cold everywhere; each later one is warm on a single pod, unless others pull from it. Many live
conversations together are more than the fleet's caches hold.

Shapes in use: 192 conversations x 48K tokens, 6 turns, 256 in and 256 out, 128 live; 96 conversations, 64 live, cold.
Documents that are all asked about before any is asked again are `shared-prefix` in round-robin.
"""

from collections.abc import Iterator
from itertools import count
from random import Random

import msgspec

from loadgen.workload import Piece, Request
from loadgen.workload.arrivals import closed_loop
from loadgen.workload.datasets.distributions import Seconds, Tokens, check_range, draw_seconds, draw_tokens
from loadgen.workload.datasets.session import Session


class DocQa(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`conversations` conversations of `turns` turns, of which at most `live` go on at a time (None: no limit).

    Every prompt begins with the same `common_tokens`, as a chat template or instructions make it, then the document.
    A question is asked `pause` seconds after the last answer. Phases: "cold" is a conversation's first turn, "warm"
    each later one.
    """

    conversations: int = 192
    common_tokens: int = 0
    document_tokens: Tokens = 48_000
    turns: Tokens = 6
    question_tokens: Tokens = 256
    output_tokens: Tokens = 256
    pause: Seconds = 0.0
    live: int | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no conversation."""
        check_range(1, conversations=self.conversations, document_tokens=self.document_tokens, turns=self.turns)
        check_range(1, question_tokens=self.question_tokens, output_tokens=self.output_tokens, live=self.live)
        check_range(0, pause=self.pause, common_tokens=self.common_tokens)

    def requests(self, seed: int) -> Iterator[Request]:
        """The conversations; with a limit, each waits for the end of the one `live` before it."""
        requests = self._requests(Random(seed))
        return requests if self.live is None else closed_loop(requests, self.live)

    def _requests(self, rng: Random) -> Iterator[Request]:
        numbers = count()
        common = [Piece(rng.getrandbits(64), self.common_tokens, "system")] if self.common_tokens else []
        for conversation in range(self.conversations):
            document = Piece(rng.getrandbits(64), draw_tokens(self.document_tokens, rng), "system")
            session = Session(f"docqa-{conversation}", [*common, document])
            for turn in range(draw_tokens(self.turns, rng)):
                question = Piece(rng.getrandbits(64), draw_tokens(self.question_tokens, rng))
                yield session.turn(
                    next(numbers),
                    [question],
                    draw_tokens(self.output_tokens, rng),
                    pause=draw_seconds(self.pause, rng),
                    phase="warm" if turn else "cold",
                )
