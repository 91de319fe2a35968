"""A conversation as it grows: each turn's prompt repeats all that was said in it, and adds something."""

from collections.abc import Iterable

from loadgen.workload import Piece, Request
from loadgen.workload.seeds import answer_piece


class Session:
    """Makes a session's requests, each of which waits for the one before it.

    `opening` is what its first prompt begins with; pieces without tokens are left out. `after` is the request that the
    first turn waits for.
    """

    def __init__(self, name: str, opening: Iterable[Piece] = (), *, after: int | None = None) -> None:
        self.name = name
        self._said = tuple(piece for piece in opening if piece.tokens)
        self._last = after
        self._forks = 0

    @property
    def tokens(self) -> int:
        """How much was said so far, the last answer included."""
        return sum(piece.tokens for piece in self._said)

    def turn(
        self, number: int, new: Iterable[Piece], output_tokens: int, *, at: float = 0.0, pause: float = 0.0, phase: str
    ) -> Request:
        """The next turn, as the request of that number. O(pieces so far)."""
        prompt = (*self._said, *(piece for piece in new if piece.tokens))
        after, self._last = self._last, number
        self._said = (*prompt, answer_piece(number, output_tokens))
        return Request(
            number=number,
            session=self.name,
            prompt=prompt,
            output_tokens=output_tokens,
            at=at,
            after=after,
            pause=pause if after is not None else 0.0,
            phase=phase,
        )

    def fork(self) -> "Session":
        """A session of its own that goes on from what was said in this one, after its last answer."""
        self._forks += 1
        return Session(f"{self.name}.{self._forks}", self._said, after=self._last)
