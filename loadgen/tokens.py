"""A tokenizer and chat template small enough to be obvious, and close enough to real ones to be mistaken for them.

Text is one token per UTF-8 byte. Special tokens separate the turns of a chat, so that a conversation's next prompt
repeats the ids of the last one; their literal spelling in a text is read as the token, as Hugging Face tokenizers do.
Every other id of the vocabulary has a spelling too: whatever a client sends as ids can be written as text and read
back.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

VOCABULARY_SIZE: Final = 131_072
BOS, TURN, END, TOOLS, SETTINGS = range(256, 261)
_SPELLED: Final = {BOS: "<|bos|>", TURN: "<|turn|>", END: "<|end|>", TOOLS: "<|tools|>", SETTINGS: "<|settings|>"}
_IDS: Final = {spelling: token for token, spelling in _SPELLED.items()}
_SPECIAL: Final = re.compile(r"(<\|(?:bos|turn|end|tools|settings|[1-9]\d{2,5})\|>)")


def encode(text: str) -> list[int]:
    """Return the token ids of ``text``. O(n)."""
    ids: list[int] = []
    for i, piece in enumerate(_SPECIAL.split(text)):
        token = _special_id(piece) if i % 2 else None
        if token is None:
            ids.extend(piece.encode(errors="replace"))
        else:
            ids.append(token)
    return ids


def _special_id(spelling: str) -> int | None:
    if spelling in _IDS:
        return _IDS[spelling]
    token = int(spelling[2:-2])
    return token if len(_SPELLED) + 256 <= token < VOCABULARY_SIZE else None


def decode(ids: Iterable[int], *, skip_special: bool = False) -> str:
    """Return the text of ``ids``; ``encode`` reads it back wherever the bytes are valid UTF-8. O(n)."""
    text: list[str] = []
    plain = bytearray()
    for token in ids:
        if token < 256:
            plain.append(token)
        elif not (skip_special and token in _SPELLED):
            text.append(plain.decode(errors="replace"))
            plain.clear()
            text.append(spell(token))
    text.append(plain.decode(errors="replace"))
    return "".join(text)


def spell(token: int) -> str:
    """Return one token's own spelling; a byte that is no character alone is written as the replacement character."""
    if token < 256:
        return bytes([token]).decode(errors="replace")
    return _SPELLED.get(token, f"<|{token}|>")


def render_prompt(text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Return a completion prompt's ids; ``add_special_tokens`` puts the beginning-of-sequence token in front."""
    return [BOS, *encode(text)] if add_special_tokens else encode(text)


def render_chat(  # one argument per field of the request
    messages: Sequence[dict[str, Any]],
    *,
    tools: Sequence[dict[str, Any]] | None = None,
    settings: dict[str, Any] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    add_special_tokens: bool = False,
) -> list[int]:
    """Return a chat's ids: tools, template settings, then the turns; ``settings`` are the ``chat_template_kwargs``.

    Raises ValueError for a message whose content is neither text nor text parts.
    """
    ids = [BOS, BOS] if add_special_tokens else [BOS]
    for marker, value in ((TOOLS, tools), (SETTINGS, settings)):
        if value:
            ids += [marker, *encode(_json(value)), END]
    for message in messages:
        ids += [TURN, *encode(f"{message.get('role', '')}\n{_content(message)}"), END]
    if continue_final_message and messages:
        ids.pop()
    elif add_generation_prompt:
        ids += [TURN, *encode("assistant\n")]
    return ids


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "\n".join(_part(part) for part in content)
    if not isinstance(content, str):
        raise ValueError("a message's content must be text or a list of parts")  # noqa: TRY004 (answered as a 400)
    calls = message.get("tool_calls")
    return content + _json([_call(call) for call in calls]) if calls else content


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """A tool call as templates get it: its arguments, which come as JSON text, as an object."""
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    try:
        arguments = msgspec.json.decode(function.get("arguments") or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, TypeError):
        arguments = {}
    return call | {"function": function | {"arguments": arguments}}


def _part(part: Any) -> str:  # noqa: ANN401 (client JSON)
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in ("text", "input_text") and isinstance(part.get("text"), str):
        return str(part["text"])
    raise ValueError("this model is not a multimodal model: only text parts are allowed")


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
