"""What a request asks to be computed, as token ids."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from gateway.openai import Peek
from gateway.tokens.refusal import Reason
from index import Media, block_keys, media_extras, root_key

if TYPE_CHECKING:
    _Array = array[int]
else:
    _Array = array  # not subscriptable before 3.12

_MOST_KEYS = 4  # a fleet of one block size and no salts needs one
_PIECE = 4096  # ids that are written as JSON together, and kept so


class TokenIds(_Array):
    """Unsigned 32-bit ids, type code "I"; a prompt that comes again brings the block keys that were made of it.

    `media`: what stands in it beside text, in order.
    """

    media: tuple[Media, ...] = ()

    def __init__(self, *_: object) -> None:
        self._keys: dict[tuple[str, int, str | None], array[int]] = {}
        self._taken_over: dict[tuple[str, int, str | None], array[int]] = {}
        self._json: list[bytes] = []

    @classmethod
    def grown(cls, known: TokenIds, count: int) -> TokenIds:
        """The first `count` ids of a known prompt, to be extended, and the keys made of them. One copy."""
        ids = cls("I")
        ids.frombytes(memoryview(known)[:count].cast("B"))
        made = known._keys.copy() or known._taken_over.copy()  # another thread may be making some
        ids._taken_over = {key: keys[: count // key[1]] for key, keys in made.items()}
        ids._json = known._json[: count // _PIECE]
        return ids

    def keys(self, namespace: str, block_size: int, salt: str | None) -> array[int]:
        """The chained keys of its full blocks. O(tokens that are not a known prompt's) once, then O(1)."""
        known = self._keys.get((namespace, block_size, salt))
        if known is None:
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            known = self._keys[namespace, block_size, salt] = self._made(namespace, block_size, salt)
        return known

    def _made(self, namespace: str, block_size: int, salt: str | None) -> array[int]:
        made = self._taken_over.pop((namespace, block_size, salt), None)
        if made:
            made.extend(block_keys(self[len(made) * block_size :], block_size, made[-1]))
            return made
        extras = media_extras(self.media, block_size, salt) if self.media or salt else None
        return array("Q", block_keys(self, block_size, root_key(namespace, block_size), extras))

    def write_json(self) -> list[bytes]:
        """Write the ids as JSON, in pieces that are kept. O(ids that are no known prompt's) once; from any thread."""
        pieces = self._json
        whole = len(self) // _PIECE
        if len(pieces) < whole:
            starts = range(len(pieces) * _PIECE, whole * _PIECE, _PIECE)
            pieces = self._json = [*pieces, *(_written(self[start : start + _PIECE]) for start in starts)]
        return pieces

    def as_json(self) -> bytes:
        """The ids as a JSON list. One copy of what is written."""
        pieces = self.write_json()
        rest = self[len(pieces) * _PIECE :]
        return b"[%b]" % b",".join([*pieces, _written(rest)] if rest else pieces)


def _written(ids: array[int]) -> bytes:
    return msgspec.json.encode(ids.tolist())[1:-1]


TokensFrom = Literal["given", "local", "pod", "none"]


class Prompt(Struct, frozen=True):
    """Token ids per sequence of the request, and where they came from. `reason` says why there are none, or not all.

    `whole` false: these are the first of more, which depend on what is no text. `base`: the model whose files they were
    made with. `reused` of them came out of memory. `of_chat`: an engine would make them of messages.
    """

    sequences: tuple[TokenIds, ...]
    tokens_from: TokensFrom
    reason: Reason | Literal[""] = ""
    whole: bool = True
    base: str = ""
    reused: int = 0
    of_chat: bool = False

    @property
    def tokens(self) -> int | None:
        """Prompt tokens over all sequences, as far as they are known; None: not at all."""
        sequences = self.sequences
        if len(sequences) == 1:  # nearly always, and asked for several times a request
            return len(sequences[0])
        return None if self.tokens_from == "none" else sum(map(len, sequences))


def unknown(reason: Reason) -> Prompt:
    """A prompt that is placed without the prefix term."""
    return Prompt((), "none", reason)


def given_prompts(ask: Peek) -> list[TokenIds | str] | None:
    """The prompts of a text completion, each as ids or as text; None when they are neither (the engine will say so)."""
    try:
        prompt = msgspec.json.decode(ask.prompt) if ask.prompt else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        return None
    prompts = [prompt] if isinstance(prompt[0], int) else prompt
    return _usable(prompts)


def _usable(prompts: list[object]) -> list[TokenIds | str] | None:
    usable: list[TokenIds | str] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            usable.append(prompt)
            continue
        if not isinstance(prompt, list):
            return None
        try:
            usable.append(TokenIds("I", prompt))  # its errors are the check
        except (TypeError, OverflowError):
            return None
    return usable
