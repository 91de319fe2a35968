"""Which rank a session was last placed on: a hint for scorers, bounded, and lost with this process.

A session is what a client says belongs together, in a header or in the body. It is looked for only while a configured
scorer reads it, and whatever cannot be read is no session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TypeVar

import msgspec
import xxhash
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.openai import Peek
from index import Publisher

T = TypeVar("T")
_MOST = 100_000  # some 20 MB
_HEADERS = ("x-session-id", "x-correlation-id")


class _Metadata(Struct):
    session_id: str | None = None


_TEXT = msgspec.json.Decoder(str)
_METADATA = msgspec.json.Decoder(_Metadata)


def session_of(headers: Mapping[str, str], peek: Peek) -> str | None:
    """What a request calls its session; None where it names none.

    The first that is there of the headers `x-session-id` and `x-correlation-id` and of the body's `prompt_cache_key`,
    `metadata.session_id` and `user`.
    """
    for name in _HEADERS:
        if session := headers.get(name):
            return session
    metadata = _read(_METADATA, peek.metadata)
    return (
        _read(_TEXT, peek.prompt_cache_key)
        or (None if metadata is None else metadata.session_id)
        or _read(_TEXT, peek.user)
        or None
    )


class Sessions:
    """At most `most` sessions; those that were placed longest ago are forgotten.

    Of a session only a hash is kept, of its model and its name: a collision costs a misjudged placement. `wanted`:
    whether anybody reads them.
    """

    def __init__(self, most: int = _MOST) -> None:
        self.wanted = False
        self._most = most
        self._places: OrderedDict[int, Publisher] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def place(self, model: str, session: str) -> Publisher | None:
        """The rank that a model's session was last placed on; None: not known. O(1)."""
        return self._places.get(_key(model, session))

    def placed(self, model: str, session: str, rank: Publisher) -> None:
        """It has been placed there. O(1)."""
        key = _key(model, session)
        self._places[key] = rank
        self._places.move_to_end(key)
        if len(self._places) > self._most:
            self._places.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._places.clear()


def _key(model: str, session: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{model}\n{session}".encode(errors="surrogatepass"))


def _read(decoder: msgspec.json.Decoder[T], raw: Raw | UnsetType) -> T | None:
    if raw is UNSET:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
