"""Prompts as a model tokenizes them, for the backend: what the gateway knows of them, the pod knows as well."""

from array import array
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from gateway.tokens.chat import ChatFields
from gateway.tokens.local import Local, LocalTokenizer
from gateway.tokens.model_files import find_model
from index import block_keys, root_key
from tests.bench.backend import completed, rendered, tokenized
from tests.bench.chats import CONVERSATIONS, MODEL, turns
from tests.bench.workload import BLOCK_TOKENS

_ROOT: Final = root_key(MODEL, BLOCK_TOKENS)


class _Asked(msgspec.Struct):
    """Of POST /tokenize."""

    prompt: str | None = None
    add_special_tokens: bool = True


class ByModel:
    """What is cached are the beginnings of the long chats."""

    def __init__(self, files: Path) -> None:
        self._tokenizer = LocalTokenizer(find_model(str(files)))
        self.cached = [self._chat(body) for body in islice(turns(0), CONVERSATIONS)]
        self._keys = {key for ids in self.cached for key in block_keys(ids, BLOCK_TOKENS, _ROOT)}

    def tokenized(self, body: bytes) -> bytes:
        asked = msgspec.json.decode(body, type=_Asked)
        if asked.prompt is None:
            return tokenized(self._chat(body).tolist())
        made = self._tokenizer.encode_text(asked.prompt, add_special_tokens=asked.add_special_tokens)
        return tokenized(_ids(made).tolist())

    def rendered(self, body: bytes) -> bytes:
        return rendered(self._chat(body).tolist())

    def completed(self, body: bytes) -> bytes:
        ids = self._chat(body)
        keys = block_keys(ids, BLOCK_TOKENS, _ROOT)
        cached = next((block for block, key in enumerate(keys) if key not in self._keys), len(keys))
        return completed(len(ids), cached * BLOCK_TOKENS)

    def _chat(self, body: bytes) -> "array[int]":
        return _ids(self._tokenizer.encode_chat(msgspec.json.decode(body, type=ChatFields)))


def _ids(made: Local) -> "array[int]":
    if made.ids is None:
        raise ValueError(f"{made.reason}: {made.detail}")
    return made.ids
