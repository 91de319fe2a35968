"""Token ids of prompts, and the keys of their blocks."""

from array import array
from collections import OrderedDict
from random import Random
from typing import Final

from gateway.tokens import TokenIds
from index import block_keys
from loadgen.workload import Request
from loadgen.workload.seeds import answer_seed

_KEPT_TOKENS: Final = 1 << 25
_TOKEN_BYTES: Final = 4


class Prompts:
    """Makes ids of pieces; equal seeds are equal ids, from the first on. Keeps some of them, the last used ones."""

    def __init__(self, model: str, block_size: int) -> None:
        self._model = model
        self._size = block_size
        self._pieces: OrderedDict[int, array[int]] = OrderedDict()
        self._kept = 0

    def prompt(self, request: Request) -> TokenIds:
        """The prompt's ids. O(tokens), mostly copied."""
        ids = TokenIds("I")
        for piece in request.prompt:
            ids.extend(self._piece(piece.seed, piece.tokens))
        return ids

    def whole(self, request: Request, prompt: TokenIds) -> tuple["array[int]", list[int]]:
        """Ids of the prompt and its answer, and the keys of their full blocks."""
        ids = array("I")
        ids.frombytes(memoryview(prompt).cast("B"))
        ids.extend(self._piece(answer_seed(request.number), request.output_tokens))
        keys = prompt.keys(self._model, self._size, None).tolist()
        if not keys:
            return ids, list(TokenIds("I", ids).keys(self._model, self._size, None))
        return ids, keys + block_keys(ids[len(keys) * self._size :], self._size, keys[-1])

    def _piece(self, seed: int, tokens: int) -> "array[int]":
        known = self._pieces.get(seed)
        if known is None or len(known) < tokens:
            made = array("I", Random(seed).randbytes(tokens * _TOKEN_BYTES))
            self._kept += len(made) - (len(known) if known is not None else 0)
            self._pieces[seed] = known = made
            self._pieces.move_to_end(seed)
            while self._kept > _KEPT_TOKENS and len(self._pieces) > 1:
                self._kept -= len(self._pieces.popitem(last=False)[1])
        self._pieces.move_to_end(seed)
        return known if len(known) == tokens else known[:tokens]
