"""The body of a response (`POST /v1/responses`) as the chat that its prompt is rendered from.

Source: vLLM 0.32, `entrypoints/openai/responses` (`utils.py` puts the messages together, the request model in
`protocol.py` decides what an item is taken for) and `renderers/online_renderer.py`, for models whose prompts are not
harmony messages. What is particular about it:

- Items are read into a union of types. A message keeps keys that its type does not know, an answer with text does not;
  what has an id and no type passes for a reference to an item, whose further keys nobody looks at.
- Consecutive reasoning, text and calls of the assistant make one message, as far as each finds its place free.
- Of an assistant's message and of a reasoning item only the first part counts.
- Tools that are not functions are shown as functions where there is a way, and left out otherwise.
- The messages do not pass through the request model of a chat completion, which brings the keys of calls into its own
  order. Templates that print a call as JSON show the difference.
- The prompt is tokenized with the special tokens that surround it, even where the template brings them along.
- Of an earlier response, calls and reasoning are not repeated.

What the engine would answer with an error is refused here, without looking for every such case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from msgspec import Struct

from gateway.tokens.chat import ChatFields
from gateway.tokens.conversation import Json, Message, objects, text_of
from gateway.tokens.refusal import Refused

_ROLES = ("assistant", "developer", "system", "user")
_MEDIA = ("input_file", "input_image")
_OPEN = ("in_progress", "incomplete")
_CUSTOM_INPUT: Message = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""What the engine shows as the parameters of a tool that takes free text; it is part of the prompt."""


class Reasoning(Struct, frozen=True):
    """What of `reasoning` the prompt depends on."""

    effort: str | None = None


class ResponsesFields(Struct, frozen=True, kw_only=True):
    """What of the body the prompt depends on. Meant to be decoded from the body itself."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: Any = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    previous_response_id: str | None = None
    prompt: Any = None
    truncation: str | None = "disabled"


class ResponseChat(ChatFields, frozen=True, kw_only=True):
    """A chat whose messages and template arguments reach the template as they are here."""

    ordered: ClassVar[bool] = True


def chat_fields(ask: ResponsesFields, *, earlier: Sequence[Message] | None = None) -> ChatFields:
    """The chat of a response. Raises `Refused`. Linear in the input.

    `earlier` is the conversation that `previous_response_id` stands for (`conversation_after`).
    """
    if ask.previous_response_id is not None and earlier is None:
        raise Refused("stored-response", "the pod that keeps the earlier response knows what was said")
    if ask.prompt is not None:
        raise Refused("invalid", "a stored prompt template")
    if ask.truncation != "disabled":
        raise Refused("truncated", "the engine cuts the prompt off where it is too long")
    messages: list[Message] = [{"role": "system", "content": ask.instructions}] if ask.instructions else []
    messages += [message for message in earlier or () if message["role"] != "system"]
    messages += [_said("user", ask.input)] if isinstance(ask.input, str) else _messages(ask.input)
    open_end = not isinstance(ask.input, str) and bool(ask.input) and _is_open(ask.input[-1])
    return ResponseChat(
        messages=messages,
        tools=_tools(ask.tools) if ask.tools else None,
        tool_choice=ask.tool_choice,
        reasoning_effort=ask.reasoning.effort if ask.reasoning else None,
        chat_template_kwargs=ask.chat_template_kwargs,
        add_generation_prompt=not open_end,
        continue_final_message=open_end,
        add_special_tokens=True,
    )


def conversation_after(messages: Iterable[Message], output: Iterable[Message]) -> list[Message]:
    """What the next response goes on from: the messages of one (`chat_fields`), and the items that it answered with.

    Raises `Refused`.
    """
    said = [part for item in output if item.get("type") == "message" for part in objects(item.get("content"))]
    return [*messages, *(_said("assistant", text_of(part.get("text"))) for part in said)]


def _messages(items: Iterable[Message]) -> list[Message]:
    messages: list[Message] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            _add_message(messages, item)
        elif kind == "reasoning":
            _add_to_answer(messages, "reasoning", _reasoning(item))
        elif kind == "function_call":
            _add_call(messages, item, _function_name(item), text_of(item.get("arguments")))
        elif kind == "custom_tool_call":
            given = json.dumps({"input": text_of(item.get("input"))}, ensure_ascii=False)
            _add_call(messages, item, text_of(item.get("name")), given)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            messages.append(_result(item))
        else:
            raise Refused("invalid", f"an item of the type {kind!r}")
    return messages


def _add_message(messages: list[Message], item: Message) -> None:
    role, unchecked = item.get("role"), "type" not in item and isinstance(item.get("id"), str)
    if not isinstance(role, str) or (not unchecked and role not in _ROLES):
        raise Refused("invalid", "a message of an unknown role")
    text = _answer(item, unchecked=unchecked) if role == "assistant" else None
    if text is not None:
        _add_to_answer(messages, "content", text)
        return
    if not unchecked and not isinstance(item.get("content"), str):
        _check_parts(item.get("content"))
    messages.append(dict(item))


def _answer(item: Message, *, unchecked: bool) -> str | None:
    """The text of an assistant's message; None: it has none, and is handed on as it is."""
    content, typed = item.get("content"), "type" in item
    if isinstance(content, str):
        if typed and "id" in item and "status" in item:
            raise Refused("invalid", "an answer's content that is not a list")
        return content
    if unchecked and not isinstance(content, list):
        return None
    parts = objects(content)
    if any(part.get("type") in _MEDIA for part in parts):
        return None  # what comes of it is not known, and what stands before it is
    if not parts:
        if typed:
            raise Refused("invalid", "an answer without content")
        return None
    if parts[0].get("type") != "output_text" and not unchecked:
        _check_parts(parts)
    elif not typed and not unchecked:
        raise Refused("invalid", "an answer in parts without a type")
    text = parts[0].get("text")
    return None if text is None and unchecked else text_of(text)


def _add_to_answer(messages: list[Message], field: str, text: str) -> None:
    """Completes the assistant's message at the end, where it has no such field yet; else begins one."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or last.get(field) is not None:
        messages.append({"role": "assistant", field: text})
    else:
        last[field] = text


def _add_call(messages: list[Message], item: Message, name: str, arguments: str) -> None:
    call = {
        "id": text_of(item.get("call_id")),
        "function": {"name": name, "arguments": arguments},
        "type": "function",
    }
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    known = messages[-1].get("tool_calls")
    messages[-1]["tool_calls"] = [*([] if known is None else objects(known)), call]


def _result(item: Message) -> Message:
    output = item.get("output")
    if not isinstance(output, str):
        _check_parts(output)
        if "created_by" in item and item["type"] == "function_call_output":
            raise Refused("invalid", "a result in parts that the engine takes for its own")
    return {"role": "tool", "content": output, "tool_call_id": item.get("call_id")}


def _reasoning(item: Message) -> str:
    if item.get("encrypted_content"):
        raise Refused("invalid", "encrypted reasoning")
    summary = objects(item.get("summary"))
    parts = objects(item["content"]) if item.get("content") else summary
    return text_of(parts[0].get("text")) if parts else ""


def _check_parts(content: Json) -> None:
    """Refuses a message's or result's content unless it is a list of texts, files and images."""
    for part in objects(content):
        if part.get("type") not in ("input_text", *_MEDIA):
            raise Refused("invalid", "a content part of an unknown type")


def _is_open(item: Message) -> bool:
    """Whether the answer goes on from an item that was broken off."""
    return item.get("type", "message") in ("message", "reasoning") and item.get("status") in _OPEN


def _tools(offered: Iterable[Message]) -> list[Message]:
    """The tools as those of a chat completion; those that the model is not shown are left out."""
    shown: list[Message] = []
    for tool in offered:
        kind = tool.get("type")
        if kind == "function":
            shown.append({"type": "function", "function": tool})
        elif kind == "custom":
            shown.append({"type": "function", "function": _custom(tool)})
        elif kind == "namespace":
            shown += [
                {"type": "function", "function": inner | {"name": _flat(tool.get("name"), inner.get("name"))}}
                for inner in objects(tool.get("tools"))
                if inner.get("type") == "function"
            ]
    return shown


def _custom(tool: Message) -> Message:
    form = tool.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        raise Refused("invalid", "a tool whose input follows a grammar")
    return {"name": tool.get("name"), "description": tool.get("description"), "parameters": _CUSTOM_INPUT}


def _function_name(item: Message) -> str:
    name = text_of(item.get("name"))
    return _flat(item["namespace"], name) if item.get("namespace") else name


def _flat(namespace: Json, name: Json) -> str:
    return f"{text_of(namespace)}__{text_of(name)}"


def _said(role: str, content: str | list[Message]) -> Message:
    return {"role": role, "content": content}
