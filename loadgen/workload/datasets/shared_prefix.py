"""Questions behind a set of long prefixes: tools, instructions, documents that many ask about.

How large the set is beside one pod's cache, and how unevenly it is asked about, decides what pays. A set that fits into
every pod's cache is a control in which all arms should agree. One that fits into the fleet's only rewards affinity, and
pulls where affinity would pile up a queue. A single prefix has an owner that affinity makes the bottleneck.

Shapes in use, in tokens: a pool of 128 x 48K (question 256, answer 64), 64, 32 or 8 x 48K (answer 28), 1 x 16K; a fresh
70K prefix every 96 requests (`prefix_uses`); 150 groups x 5 with 6,000 shared and 1,200 own tokens and answers of
1,000; and 50 documents of 10K that are asked about in two rounds (`draw: round-robin`).
"""

from collections.abc import Callable, Iterator
from itertools import accumulate, count, cycle
from random import Random
from typing import Literal

import msgspec

from loadgen.workload import Piece, Request
from loadgen.workload.datasets.distributions import Tokens, check_range, draw_tokens


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` requests (None: endless), each a question of its own behind one of `prefixes` prefixes.

    `draw`: "uniform"; "zipf", where the k-th prefix is drawn in proportion to k**-`zipf_exponent`; or "round-robin".
    After `prefix_uses` requests (None: never) a new prefix takes an old one's place. A request is of the phase "cold"
    if its prefix was not used before, else "warm".
    """

    prefixes: int
    prefix_tokens: Tokens
    question_tokens: Tokens = 256
    output_tokens: Tokens = 64
    draw: Literal["uniform", "zipf", "round-robin"] = "uniform"
    zipf_exponent: float = 1.0
    prefix_uses: int | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no request."""
        check_range(1, prefixes=self.prefixes, prefix_tokens=self.prefix_tokens, output_tokens=self.output_tokens)
        check_range(1, prefix_uses=self.prefix_uses, count=self.count)
        check_range(0, question_tokens=self.question_tokens, zipf_exponent=self.zipf_exponent)

    def requests(self, seed: int) -> Iterator[Request]:
        """The requests, all of which may be sent at once."""
        rng = Random(seed)
        drawn = self._drawn(rng)
        pieces: dict[int, Piece] = {}
        uses = [0] * self.prefixes
        for number in count() if self.count is None else range(self.count):
            prefix = drawn()
            warm = uses[prefix] > 0 and uses[prefix] != self.prefix_uses
            if not warm:
                pieces[prefix] = Piece(rng.getrandbits(64), draw_tokens(self.prefix_tokens, rng), "system")
                uses[prefix] = 0
            uses[prefix] += 1
            question = Piece(rng.getrandbits(64), draw_tokens(self.question_tokens, rng))
            yield Request(
                number=number,
                session=f"shared-prefix-{number}",
                prompt=(pieces[prefix], question) if question.tokens else (pieces[prefix],),
                output_tokens=draw_tokens(self.output_tokens, rng),
                phase="warm" if warm else "cold",
            )

    def _drawn(self, rng: Random) -> Callable[[], int]:
        """Gives the place of the next request's prefix, O(log prefixes) at most."""
        places = range(self.prefixes)
        if self.draw == "uniform":
            return lambda: rng.choice(places)
        if self.draw == "zipf":
            weights = list(accumulate((place + 1) ** -self.zipf_exponent for place in places))
            return lambda: rng.choices(places, cum_weights=weights)[0]
        return cycle(places).__next__
