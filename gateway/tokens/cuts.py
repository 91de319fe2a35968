"""Where a text may be cut so that its parts can be tokenized apart.

Claim: let `s` be an added token at which a cut is made, and `T = A + s…`. Then `ids(T) = ids(A) + ids(s…)`, each part
encoded by itself without the special tokens that surround a prompt. A text is therefore cut *before* such tokens, and
every part but the first begins with one.

The pipeline of the `tokenizers` library (`added_vocabulary.rs`, `tokenizer/mod.rs`): the text is split at the added
tokens that are not subject to normalization, found leftmost-longest; each remaining piece is normalized by itself and
split at the other added tokens likewise; each piece that is then left is pre-tokenized by itself, and each word goes to
the model by itself. So the claim is one about finding the added tokens, and about what looks beyond its piece:

1. The search meets `s` at the same place in `T` and in `s…`, and finds the same before it in `T` and in `A`. Leftmost-
   longest search starts afresh behind each match, no match reaches over one that is found, and what it takes at a place
   depends on the text from there on, at most the longest added token. Needs `s` found by the same rule here.
2. No token looks at its neighbours: none is `single_word`. `lstrip` makes a token take the spaces before it, so `s`
   must not have it; that of others reaches back to the last match at most. `rstrip` takes the spaces behind, which may
   not be the beginning of `s`: `s` must begin with something else.
3. `s` is found in the raw text, not after normalization, which could join it with what stands beside it: it is not
   `normalized`, or there is no normalizer. In the latter case the tokens that are not `normalized` are found first, so
   they may not have taken spaces either.
4. The special tokens are searched for at all (`encode_special_tokens` is off).
5. A pre-tokenizer that looks at a piece's place in the text only asks whether it is at the very beginning (Metaspace,
   prepend_scheme "first"). A piece of a part is at its beginning exactly if it is at the text's: parts but the first
   begin with `s`, which is a piece of its own. Other pre-tokenizers, and all normalizers, see one piece at a time. Only
   kinds that are known to are let through.
6. The model has no memory and no chance: no BPE dropout.

Where one of these is not given the text is tokenized whole, and `Cuts.reason` says which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

_NORMALIZERS = frozenset(
    (
        "BertNormalizer",
        "ByteLevel",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Nmt",
        "Precompiled",
        "Prepend",
        "Replace",
        "Strip",
        "StripAccents",
    )
)
_PRE_TOKENIZERS = frozenset(
    (
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Digits",
        "FixedLength",
        "Metaspace",
        "Punctuation",
        "Split",
        "UnicodeScripts",
        "Whitespace",
        "WhitespaceSplit",
    )
)
_MODELS = frozenset(("BPE", "Unigram", "WordLevel", "WordPiece"))


class _Added(Struct):
    content: str
    special: bool = False
    normalized: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class _Model(Struct):
    type: str = ""
    dropout: float | None = None


class _Described(Struct):
    """tokenizer.json, less the vocabulary."""

    model: _Model
    added_tokens: list[_Added] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


class Cuts:
    """Finds the places at which texts for one tokenizer may be cut. Immutable."""

    def __init__(self, at: frozenset[str], raw: list[str], normalized: list[str], reason: str = "") -> None:
        """`at`: tokens to cut before. `raw`, `normalized`: the added tokens of the first and the second search."""
        self.at = at
        self.reason = reason
        self.reach = max(map(len, [*raw, *normalized]), default=0)
        """How many characters from a place on decide what is found there and before."""
        self._raw = _search_for(raw)
        self._normalized = _search_for(normalized)

    def find(self, text: str, start: int = 0) -> Iterator[int]:
        """The places behind `start`, ascending. `start` is 0 or such a place. Linear in the text from there on."""
        return (place for place in self._all(text, start) if place > start)

    def last(self, text: str) -> int:
        """The last place that stays one whatever comes after `text`; 0: there is none. Linear in the text."""
        return max((place for place in self.find(text) if place + self.reach <= len(text)), default=0)

    def _all(self, text: str, start: int) -> Iterator[int]:
        gap = start
        for match in self._raw.finditer(text, start) if self._raw else ():
            yield from self._between(text, gap, match.start())
            gap = match.end()
            if match.group() in self.at:
                yield match.start()
        yield from self._between(text, gap, len(text))

    def _between(self, text: str, start: int, end: int) -> Iterator[int]:
        for match in self._normalized.finditer(text, start, end) if self._normalized else ():
            if match.group() in self.at:
                yield match.start()


def find_cuts(tokenizer_json: str | bytes, *, encode_special_tokens: bool = False) -> Cuts:
    """The proof for the tokenizer that is serialized so. Linear in its size."""
    described = msgspec.json.decode(tokenizer_json, type=_Described)
    added = [token for token in described.added_tokens if token.content]
    raw = [token for token in added if not token.normalized]
    normalized = [token for token in added if token.normalized]
    reason = _beyond_a_piece(described, added, encode_special_tokens=encode_special_tokens)
    if reason:
        return Cuts(frozenset(), [], [], reason)
    identity = not _kinds(described.normalizer, "normalizers")
    second = identity and not any(token.lstrip or token.rstrip for token in raw)
    found = raw + normalized if second else raw
    at = frozenset(token.content for token in found if token.special and _separates(token))
    if not at:
        return Cuts(frozenset(), [], [], "no special token separates what stands on its two sides")
    return Cuts(at, [token.content for token in raw], [token.content for token in normalized] if second else [])


def _separates(token: _Added) -> bool:
    return not token.lstrip and not token.content[0].isspace()


def _beyond_a_piece(described: _Described, added: list[_Added], *, encode_special_tokens: bool) -> str:
    """Why pieces are not independent; empty where they are."""
    if encode_special_tokens:
        return "special tokens in a text are tokenized as text"
    if described.model.type not in _MODELS:
        return f"the model {described.model.type!r} is not known"
    if described.model.dropout:
        return "the model drops merges at random"
    unknown = _kinds(described.normalizer, "normalizers") - _NORMALIZERS
    unknown |= _kinds(described.pre_tokenizer, "pretokenizers") - _PRE_TOKENIZERS
    if unknown:
        return f"the steps {', '.join(sorted(unknown))} are not known"
    words = [token.content for token in added if token.single_word]
    return f"the added token {words[0]!r} looks at the characters beside it" if words else ""


def _kinds(step: dict[str, Any] | None, inner: str) -> set[str]:
    """The kinds of a step and of the steps in it; an empty sequence has none."""
    if step is None:
        return set()
    if step.get("type") == "Sequence":
        return set().union(*(_kinds(each, inner) for each in step.get(inner, [])))
    return {str(step.get("type"))}


def _search_for(tokens: list[str]) -> re.Pattern[str] | None:
    """Leftmost-longest search for literals; as a tree, since models have thousands of them with equal beginnings."""
    return re.compile(_tree(sorted(set(tokens)), 0)) if tokens else None


def _tree(tokens: list[str], depth: int) -> str:
    """A pattern for the rests from `depth` on of sorted tokens that are equal up to there, the longest first."""
    end = len(_common(tokens[0], tokens[-1]))
    head = re.escape(tokens[0][depth:end])
    ends_here = len(tokens[0]) == end
    longer = tokens[1:] if ends_here else tokens
    if not longer:
        return head
    branches: dict[str, list[str]] = {}
    for token in longer:
        branches.setdefault(token[end], []).append(token)
    rest = "|".join(_tree(branch, end) for branch in branches.values())
    return f"{head}(?:{rest}){'?' if ends_here else ''}"


def _common(first: str, last: str) -> str:
    """What two strings begin with alike; of a sorted list's ends, what all of it begins with."""
    at = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:at]
