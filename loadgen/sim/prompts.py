"""Token ids of prompts, and the keys of their blocks."""

from array import array
from collections import OrderedDict
from random import Random
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from gateway.tokens import TokenIds
from loadgen.workload import Piece, Request
from loadgen.workload.seeds import answer_piece

_KEPT_TOKENS: Final = 1 << 25
_TOKEN_BYTES: Final = 4
_NUMBER_BYTES: Final = 8


class _Said(NamedTuple):
    """What was asked and answered, by the number of the request."""

    number: int


_Name: TypeAlias = int | _Said  # a piece goes by its seed


class Prompts:
    """Makes ids of pieces; equal seeds are equal ids, from the first on. Keeps some of them, the last used ones."""

    def __init__(self, model: str, block_size: int) -> None:
        self._model = model
        self._size = block_size
        self._known: OrderedDict[_Name, TokenIds] = OrderedDict()
        self._kept = 0
        self._pieces: dict[_Said, tuple[Piece, ...]] = {}
        self._followers: dict[_Said, int] = {}
        self._random = np.empty(0, np.uint64)

    def prompt(self, request: Request) -> TokenIds:
        """The prompt's ids. O(tokens), copied as far as they are known; so are the keys of their blocks."""
        said = None if request.after is None else _Said(request.after)
        pieces = self._pieces.get(said, ()) if said else ()
        if said and pieces and request.prompt[: len(pieces)] == pieces:
            known = self._known[said]
            ids = TokenIds.grown(known, len(known))
            self._followed(said)
        else:
            pieces = request.prompt[:1]
            ids = self._begun(request.prompt[0])
        for piece in request.prompt[len(pieces) :]:
            ids.extend(self._piece(piece.seed, piece.tokens))
        return ids

    def whole(self, request: Request, prompt: TokenIds, *, followers: int = 0) -> tuple[TokenIds, list[int]]:
        """Ids of the prompt and its answer, and the keys of their full blocks. So many requests go on from them."""
        ids = TokenIds.grown(prompt, len(prompt))
        answer = answer_piece(request.number, request.output_tokens)
        ids.extend(self._piece(answer.seed, answer.tokens))
        keys = ids.keys(self._model, self._size, None).tolist()
        if followers:
            said = _Said(request.number)
            self._pieces[said] = (*request.prompt, answer)
            self._followers[said] = followers
            self._keep(said, ids)
        return ids, keys

    def _begun(self, first: Piece) -> TokenIds:
        """A prompt's first piece, with the keys of its blocks."""
        self._piece(first.seed, first.tokens)
        known = self._known[first.seed]
        known.keys(self._model, self._size, None)
        return TokenIds.grown(known, first.tokens)

    def _piece(self, seed: int, tokens: int) -> "array[int]":
        known = self._known.get(seed)
        if known is None or len(known) < tokens:
            known = TokenIds("I", self._text(seed, tokens))
            self._keep(seed, known)
        self._known.move_to_end(seed)
        return known if len(known) == tokens else known[:tokens]

    def _text(self, seed: int, tokens: int) -> bytes:
        """One random text for all, turned by the seed into its own, two ids at a time."""
        numbers = (tokens + 1) // 2
        if len(self._random) < numbers:
            self._random = np.frombuffer(Random(0).randbytes(2 * numbers * _NUMBER_BYTES), np.uint64)
        return (self._random[:numbers] ^ np.uint64(seed)).tobytes()[: tokens * _TOKEN_BYTES]

    def _followed(self, said: _Said) -> None:
        self._known.move_to_end(said)
        self._followers[said] -= 1
        if not self._followers[said]:
            self._forget(said)

    def _keep(self, name: _Name, ids: TokenIds) -> None:
        self._kept += len(ids) - len(self._known.get(name, ()))
        self._known[name] = ids
        self._known.move_to_end(name)
        while self._kept > _KEPT_TOKENS and len(self._known) > 1:
            self._forget(next(iter(self._known)))

    def _forget(self, name: _Name) -> None:
        self._kept -= len(self._known.pop(name))
        if isinstance(name, _Said):
            del self._pieces[name], self._followers[name]
