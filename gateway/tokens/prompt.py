"""What a request asks to be computed, as token ids."""

from __future__ import annotations

from array import array
from typing import Literal, NamedTuple

import msgspec

from gateway.openai import Peek

TokenIds = array  # of uint32, type code "I"
TokensFrom = Literal["given", "pod", "none"]


class Prompt(NamedTuple):
    """Token ids per sequence of the request, and where they came from. `reason` says why there are none."""

    sequences: tuple[TokenIds[int], ...]
    tokens_from: TokensFrom
    reason: str = ""

    @property
    def tokens(self) -> int | None:
        """Prompt tokens over all sequences; None: not known."""
        return sum(map(len, self.sequences)) if self.tokens_from != "none" else None


def unknown(reason: str) -> Prompt:
    """A prompt that is placed without the prefix term."""
    return Prompt((), "none", reason)


def given_prompts(ask: Peek) -> list[TokenIds[int] | str] | None:
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


def _usable(prompts: list[object]) -> list[TokenIds[int] | str] | None:
    usable: list[TokenIds[int] | str] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            usable.append(prompt)
            continue
        if not isinstance(prompt, list):
            return None
        try:
            usable.append(array("I", prompt))  # its errors are the check
        except (TypeError, OverflowError):
            return None
    return usable
