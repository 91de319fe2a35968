"""What blocks of prompts are told apart by: all that stands in front of their ends."""

from collections.abc import Iterable

from loadgen.workload import Piece, Request
from loadgen.workload.seeds import answer_piece

Prefix = tuple[tuple[int, int], ...]


def prefixes(prompt: Iterable[Piece], block_size: int) -> list[Prefix]:
    """Of each full block, the texts up to its end and how much of each; equal where prompts agree up to there."""
    found: list[Prefix] = []
    before: Prefix = ()
    start = 0
    for piece in prompt:
        end = start + piece.tokens
        found += [
            (*before, (piece.seed, at - start))
            for at in range((start // block_size + 1) * block_size, end + 1, block_size)
        ]
        before, start = (*before, (piece.seed, piece.tokens)), end
    return found


def with_answer(request: Request) -> tuple[Piece, ...]:
    """A request's prompt and its whole answer: what a pod has computed when it ends."""
    return (*request.prompt, answer_piece(request.number, request.output_tokens))
