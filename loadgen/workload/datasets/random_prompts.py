"""Prompts that share nothing, so that no cache helps: what placement by load alone is worth."""

from collections.abc import Iterator
from itertools import count
from random import Random

import msgspec

from loadgen.workload import Piece, Request
from loadgen.workload.datasets.distributions import Tokens, check_range, draw_tokens


class RandomPrompts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` requests (None: endless) of their own text each; lengths in tokens."""

    input_tokens: Tokens = 1024
    output_tokens: Tokens = 128
    count: int | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no request."""
        check_range(1, input_tokens=self.input_tokens, output_tokens=self.output_tokens, count=self.count)

    def requests(self, seed: int) -> Iterator[Request]:
        """The requests, all of which may be sent at once."""
        rng = Random(seed)
        for number in count() if self.count is None else range(self.count):
            prompt = Piece(rng.getrandbits(64), draw_tokens(self.input_tokens, rng))
            yield Request(
                number=number,
                session=f"random-{number}",
                prompt=(prompt,),
                output_tokens=draw_tokens(self.output_tokens, rng),
            )
