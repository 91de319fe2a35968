"""Tokenizations by content: the same conversation prefix is asked for once."""

from __future__ import annotations

from collections import OrderedDict

from gateway.tokens.prompt import TokenIds

_ENTRY_TOKENS = 128  # an entry's own memory (key, array, dict, slots: some 500 bytes), in tokens of 4 bytes
_TOKENS_PER_KEY = 8  # block keys are 8 bytes for a block, which is 16 tokens or more: an eighth of the ids' own memory


class TokenMemo:
    """Least recently used, bounded by the tokens it holds, each entry's overhead counted as some more.

    Keys are digests of all that the ids depend on (`questions`).
    """

    def __init__(self, max_tokens: int) -> None:
        self._max = max_tokens
        self._held = 0
        self._entries: OrderedDict[bytes, TokenIds] = OrderedDict()

    def reconfigure(self, max_tokens: int) -> None:
        """From now on this bound. O(entries over it)."""
        self._max = max_tokens
        self._keep_bound()

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
        self._held = 0

    def get(self, key: bytes) -> TokenIds | None:
        """The ids, or None. O(1)."""
        ids = self._entries.get(key)
        if ids is not None:
            self._entries.move_to_end(key)
        return ids

    def put(self, key: bytes, ids: TokenIds) -> None:
        """Remember; forget the coldest while over the bound."""
        self._drop(self._entries.pop(key, None))
        self._entries[key] = ids
        self._held += _weight(ids)
        self._keep_bound()

    def _keep_bound(self) -> None:
        while self._held > self._max:
            self._drop(self._entries.popitem(last=False)[1])

    def _drop(self, ids: TokenIds | None) -> None:
        if ids is not None:
            self._held -= _weight(ids)


def _weight(ids: TokenIds) -> int:
    return len(ids) + len(ids) // _TOKENS_PER_KEY + _ENTRY_TOKENS
