"""Errors that engines put into answers with status 200, seen before anything of such an answer has been passed on.

An engine has said 200 before it computes. What fails then comes as an event `data: {"error": …}` (vLLM's streams; with
Anthropic's shape, `event: error`), as an object `{"object": "error", …}` or `{"error": …}`, as a choice that finished
with `error` or `abort` and without content (a request that was cut off, by a shutdown for example), or as nothing at
all. The event with which vLLM opens a chat, a delta of nothing but a role, is no content yet.

Most answers are dismissed by three searches in their first piece. What looks like an error, or like an opening in other
words, is decoded. In generated text the quotes around these words are escaped, so text does not look like an error.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from msgspec import Struct

Reason = Literal["error", "finish_error", "finish_abort", "empty"]
Finding = Reason | Literal["more"] | None

HELD_BYTES = 64 * 1024  # of an answer, while it has no content; beyond, it passes
_LOOKED_AT_BYTES = 4096
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_DONE = b"[DONE]"
_OPENING = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'  # as vLLM spells it
_CLIENTS_FAULT = range(400, 500)


class _Choice(Struct):
    text: str | None = None
    delta: dict[str, Any] = {}
    message: dict[str, Any] = {}
    finish_reason: str | None = None

    @property
    def has_content(self) -> bool:
        said = (*self.delta.items(), *self.message.items())
        return bool(self.text) or any(value for name, value in said if name != "role")


class _Answer(Struct):
    """An answer, or an event of one; what is not of these types is no completion."""

    object: str | None = None
    error: Any = None
    code: Any = None
    choices: list[_Choice] | None = None

    @property
    def is_error(self) -> bool:
        return self.error is not None or self.object == "error"


_DECODER = msgspec.json.Decoder(_Answer)


def suspicious(piece: bytes) -> bool:
    """Whether an answer that begins so has to be judged. O(1)."""
    if piece.startswith(b"{"):
        return _names_failure(piece)
    return (
        piece.find(b'"role"', 0, _LOOKED_AT_BYTES) >= 0
        or _names_failure(piece)
        or not piece
        or piece.startswith(b"data: [")
    )


def judge(beginning: bytes, *, whole: bool) -> Finding:
    """What an answer that begins so is: None: one to be passed on; "more": not to be told yet; else what is wrong.

    `whole`: there is no more of it. O(len(beginning)), of which there should be no more than `HELD_BYTES`.
    """
    if beginning.startswith((b"data:", b"event:")):
        finding = _judge_events(beginning, whole=whole)
    elif beginning.startswith(b"{") and _names_failure(beginning):
        finding = _judge_object(beginning) if whole else "more"
        if whole and finding == "more":
            finding = None  # neither content nor a word of failure: the model's answer
    else:
        finding = None if beginning else "empty"
    return None if finding == "more" and len(beginning) >= HELD_BYTES else finding


def at_end(tail: bytes) -> Reason | None:
    """How an answer of which `tail` is the end failed after its content, if it did. O(len(tail))."""
    if b'"error"' not in tail and b'"abort"' not in tail:
        return None
    for line in tail.splitlines():
        try:
            answer = _DECODER.decode(line.removeprefix(b"data:"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # cut off at its beginning, or no JSON
        if (reason := _failure(answer)) is not None:
            return reason
    return None


def _names_failure(piece: bytes) -> bool:
    return piece.find(b'"error"', 0, _LOOKED_AT_BYTES) >= 0 or piece.find(b'"abort"', 0, _LOOKED_AT_BYTES) >= 0


def _judge_events(beginning: bytes, *, whole: bool) -> Finding:
    *events, rest = _EVENT_END.split(beginning) if b"\r" in beginning else beginning.split(b"\n\n")
    for event in events:
        if _OPENING in event:
            continue
        if not suspicious(event):
            return None
        data = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
        finding: Finding = "empty" if data == _DONE else _judge_object(data)
        if finding != "more":
            return finding
    if whole:
        return None if rest.strip() else "empty"
    return "more"


def _judge_object(data: bytes) -> Finding:
    """Of one object: "more" where it has neither content nor an end."""
    try:
        answer = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if answer.choices is not None and any(choice.has_content for choice in answer.choices):
        return None
    goes_on = answer.choices is not None and all(choice.finish_reason is None for choice in answer.choices)
    return _failure(answer) or ("more" if goes_on and not answer.is_error else None)


def _failure(answer: _Answer) -> Reason | None:
    if answer.is_error:
        code = answer.error.get("code") if isinstance(answer.error, dict) else answer.code
        return None if isinstance(code, int) and code in _CLIENTS_FAULT else "error"
    reasons = {choice.finish_reason for choice in answer.choices or ()}
    return "finish_error" if "error" in reasons else "finish_abort" if "abort" in reasons else None
