"""Tokenizing only what is new.

Two memories, both bounded and shared over conversations, of which neither can change a result:

*Segments* by content. A text is cut before special tokens (`cuts`), and each segment's ids are kept under its text. A
system prompt or an earlier answer is tokenized once, wherever it comes again.

*Prompts* by prefix. Putting a conversation together from its segments still costs every turn its whole length in
steps, so the last prompts are kept whole: the text, its ids, and the cuts as pairs of a character and a token position.
A new text is led to the kept one that it shares most with by a chain of hashes over chunks of characters, and the
shared length is then found by comparing the texts themselves, so a hash that collides costs time and no more. The ids
up to the last cut that lies `Cuts.reach` before the end of what is shared are taken as one copy. The reach is what
makes it exact: up to there the search for added tokens saw the same characters in both texts. Block keys that were made
of those ids are taken over too.

A prompt that goes on from a kept one takes over its chunks, so a conversation holds one entry, its last; an entry that
no chunk leads to any more is forgotten at once.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple

from gateway.tokens.cuts import Cuts
from gateway.tokens.prompt import TokenIds

Encode = Callable[[list[str]], Sequence[Sequence[int]]]
"""Texts to ids, without surrounding special tokens. Called outside of locks, from any thread."""

_CHUNK = 4096  # characters: the beginning of a prompt that must be equal to find it; short prompts need no finding
_ENTRY_BYTES = 400  # an entry's own objects
_KEY_BYTES = 120  # one chunk's place in the table
_ID_BYTES = 4


class Encoded(NamedTuple):
    """A text's ids; the first `reused` of them were known, and `segments_reused` more came from the segment memory."""

    ids: TokenIds
    reused: int
    segments_reused: int


class _Known(NamedTuple):
    """A kept prompt; `cut_chars[i]` and `cut_tokens[i]` are one place."""

    text: str
    ids: TokenIds
    cut_chars: array[int]
    cut_tokens: array[int]
    chunks: list[int]

    @property
    def bytes(self) -> int:
        places = 2 * self.cut_chars.itemsize * len(self.cut_chars)
        ids = len(self.ids) * _ID_BYTES * 9 // 8  # block keys of 8 bytes for 16 tokens or more: an eighth
        return _ENTRY_BYTES + sys.getsizeof(self.text) + ids + places + _KEY_BYTES * len(self.chunks)


class Segmenter:
    """Texts to ids, by cuts and memories. Safe to use from several threads.

    `lead` are ids that stand before every text (a BOS). Each of the two memories holds `max_bytes` at most. Prompts are
    found again by the multiples of `chunk` characters that they begin with alike.
    """

    def __init__(
        self, encode: Encode, cuts: Cuts, max_bytes: int, lead: Sequence[int] = (), chunk: int = _CHUNK
    ) -> None:
        self._chunk = chunk
        self._encode = encode
        self._cuts = cuts
        self._lead = array("I", lead)
        self._segments = _Segments(max_bytes)
        self._prompts = _Prompts(max_bytes)
        self._lock = Lock()

    def encode(self, text: str) -> Encoded:
        """The ids of `text`. Work by length: the new part, plus some 0.5 µs per 1,000 known characters."""
        chunks = _chain(text, self._chunk)
        with self._lock:
            known, run = self._prompts.nearest(chunks)
        if known is not None and known.text == text:
            with self._lock:
                self._prompts.use(known)
            return Encoded(known.ids, len(known.ids), 0)
        shared = self._last_shared_cut(known, text, run) if known is not None else -1
        at, reused = (known.cut_chars[shared], known.cut_tokens[shared]) if known and shared >= 0 else (0, 0)
        starts = [at, *(self._cuts.find(text, at) if self._cuts.at else ())]
        pieces = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)] if text else []
        found, hits = self._pieces(pieces)
        ids = TokenIds.grown(known.ids, reused) if known and reused else TokenIds("I", self._lead)
        cut_chars = known.cut_chars[: shared + 1] if known and reused else array("I", [0])
        cut_tokens = known.cut_tokens[: shared + 1] if known and reused else array("I", [len(self._lead)])
        for start, piece in zip(starts[1:], found, strict=False):
            ids.extend(piece)
            cut_chars.append(start)
            cut_tokens.append(len(ids))
        if found:
            ids.extend(found[-1])
        if chunks:
            with self._lock:
                self._prompts.put(_Known(text, ids, cut_chars, cut_tokens, chunks))
        return Encoded(ids, reused, hits)

    def _last_shared_cut(self, known: _Known, text: str, run: int) -> int:
        """The last cut of `known` up to which nothing in `text` can differ; -1: there is none."""
        shared = _shared_length(known.text, text, run * self._chunk, self._chunk)
        return bisect_right(known.cut_chars, shared - self._cuts.reach) - 1

    def _pieces(self, pieces: list[str]) -> tuple[list[array[int]], int]:
        """Each piece's ids, and how many of all were known."""
        with self._lock:
            found = [self._segments.get(piece) for piece in pieces]
        hits = sum(len(ids) for ids in found if ids is not None)
        missing = list(dict.fromkeys(piece for piece, ids in zip(pieces, found, strict=True) if ids is None))
        if missing:
            made = {piece: array("I", ids) for piece, ids in zip(missing, self._encode(missing), strict=True)}
            with self._lock:
                for piece, ids in made.items():
                    self._segments.put(piece, ids)
            return [made[piece] if ids is None else ids for piece, ids in zip(pieces, found, strict=True)], hits
        return [ids for ids in found if ids is not None], hits


class _Segments:
    """Ids by segment; the coldest go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self.held = 0
        self._ids: OrderedDict[str, array[int]] = OrderedDict()

    def get(self, piece: str) -> array[int] | None:
        ids = self._ids.get(piece)
        if ids is not None:
            self._ids.move_to_end(piece)
        return ids

    def put(self, piece: str, ids: array[int]) -> None:
        if piece in self._ids:
            return  # by another thread
        self._ids[piece] = ids
        self.held += _segment_bytes(piece, ids)
        while self.held > self._max:
            self.held -= _segment_bytes(*self._ids.popitem(last=False))


class _Prompts:
    """Whole prompts by their chunks; a chunk leads to the last prompt that was put with it."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self.held = 0
        self._by_chunk: dict[int, _Known] = {}
        self._led: OrderedDict[int, tuple[_Known, int]] = OrderedDict()  # by identity, with the chunks that lead there

    def nearest(self, chunks: list[int]) -> tuple[_Known | None, int]:
        """The prompt that the longest run of known chunks leads to, and that run's length. O(chunks)."""
        nearest = None
        for run, chunk in enumerate(chunks):
            if (known := self._by_chunk.get(chunk)) is None:
                return nearest, run
            nearest = known
        return nearest, len(chunks)

    def use(self, known: _Known) -> None:
        if id(known) in self._led:
            self._led.move_to_end(id(known))

    def put(self, known: _Known) -> None:
        for chunk in known.chunks:
            if (before := self._by_chunk.get(chunk)) is not None:
                self._lead_away(before)
            self._by_chunk[chunk] = known
        self._led[id(known)] = (known, len(known.chunks))
        self.held += known.bytes
        while self.held > self._max:
            _, (coldest, _) = self._led.popitem(last=False)
            self.held -= coldest.bytes
            for chunk in coldest.chunks:
                if self._by_chunk.get(chunk) is coldest:
                    del self._by_chunk[chunk]

    def _lead_away(self, known: _Known) -> None:
        _, left = self._led[id(known)]
        if left > 1:
            self._led[id(known)] = (known, left - 1)
        else:
            del self._led[id(known)]
            self.held -= known.bytes


def _chain(text: str, chunk: int) -> list[int]:
    """A hash per full chunk, each of the text up to its end."""
    chain, last = [], 0
    for end in range(chunk, len(text) + 1, chunk):
        last = hash((last, text[end - chunk : end]))
        chain.append(last)
    return chain


def _shared_length(one: str, other: str, guess: int, step: int) -> int:
    """How many characters the two begin with alike: probably `guess`, and less than `step` more.

    A few comparisons and a copy of memory, no steps by character.
    """
    low, high = 0, min(len(one), len(other))
    if other.startswith(one[:guess]):
        low = guess
        if one[low : low + step] != other[low : low + step]:
            high = min(high, low + step)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _segment_bytes(piece: str, ids: array[int]) -> int:
    return _ENTRY_BYTES + sys.getsizeof(piece) + len(ids) * _ID_BYTES
