"""A chat completion's messages and tools in the form in which vLLM hands them to the template.

Source: vLLM 0.32, `renderers/chat_utils.py` (`_parse_chat_message_content`, `_postprocess_messages`), `renderers/hf.py`
(the developer role) and the request models of `entrypoints/openai/chat_completion/protocol.py`, which leave out unknown
keys of a message and bring the known keys of tools and tool calls into their own order; templates that print them as
JSON show that order. What the engine would answer with an error is refused here, without looking for every such case.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.tokens.content_format import ContentFormat
from gateway.tokens.refusal import Refused

_TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA_FIELDS = frozenset(
    (
        "audio_embeds",
        "audio_url",
        "file",
        "image_embeds",
        "image_pil",
        "image_url",
        "input_audio",
        "video_embeds",
        "video_url",
    )
)
_MEDIA = _MEDIA_FIELDS | {"input_file", "input_image", "prompt_embeds"}
_PART_FIELDS = _MEDIA_FIELDS | set(_TEXT_FIELDS.values()) | {"closed", "data", "name", "type", "uuid"}
_PART_FIELDS |= {"prompt_cache_breakpoint"}
"""Fields of content parts that vLLM knows; any other is handed to a template that takes parts."""
_CALL_FIELDS = ("id", "function", "type")
_CALLED_FIELDS = ("arguments", "name")
_DEVELOPER_TOOL_FIELDS = ("function", "type")
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
BILLING_HEADER = "x-anthropic-billing-header"

Json = Any
"""What a client sent: anything that JSON can hold."""
Message = dict[str, Json]


def conversation(
    messages: Iterable[Message], form: ContentFormat, *, developer: bool, ordered: bool = False
) -> list[Message]:
    """The messages as the template gets them. Raises `Refused`. Linear.

    `developer`: it knows that role; `ordered`: calls and tools have the order of keys that the template shall see.
    """
    shaped = [_shaped(message, form, ordered=ordered) for message in messages]
    if developer or not any(message["role"] == "developer" for message in shaped):
        return shaped
    return _one_system_message([_as_system(message) for message in shaped])


def before_media(messages: Iterable[Message]) -> int | None:
    """How many messages stand before the first that is not all text; None: all are. Linear."""
    return next((number for number, message in enumerate(messages) if _holds_media(message)), None)


def marked(messages: Iterable[Message], form: ContentFormat, mark: str) -> list[Message]:
    """The messages with `mark` where something that is not text begins, as text. Linear.

    A template that takes parts puts each in its place; for one that takes text, the engine puts what stands for images
    in front of a message's text.
    """
    return [_marked(message, form, mark) for message in messages]


def tools(offered: Iterable[Message]) -> list[Message]:
    """Tools as the template gets them: known fields only, in the engine's order. Raises `Refused`."""
    return [_tool(tool) for tool in offered]


def _marked(message: Message, form: ContentFormat, mark: str) -> Message:
    if not _holds_media(message):
        return message
    text = {"type": "text", "text": mark}
    if form == "string":
        return message | {"content": [text]}
    return message | {"content": [text if _is_media(part) else part for part in message["content"]]}


def _holds_media(message: Message) -> bool:
    parts = message.get("content")
    return isinstance(parts, list) and any(map(_is_media, parts))


def _is_media(part: Json) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    if not isinstance(kind, str | None):
        return False
    return kind in _MEDIA or (not _MEDIA.isdisjoint(part) and (kind is None or part.get("uuid") is not None))


def _shaped(message: Message, form: ContentFormat, *, ordered: bool) -> Message:
    role = message.get("role")
    if not isinstance(role, str):
        raise Refused("invalid", "a message without a role")
    parts = _parts(message.get("content"))
    if role == "system":
        parts = [kept for part in parts if (kept := _without_billing_header(part)) is not None]
    shown = [given for part in parts if (given := _part(part, wrapped=form == "openai"))]
    shaped: Message = {"role": role, "content": shown if form == "openai" else "\n".join(shown)}
    if role == "assistant":
        _add_assistant_fields(shaped, message, ordered=ordered)
    elif role == "tool":
        _add_tool_fields(shaped, message)
    for field in ("name", "task"):
        if isinstance(message.get(field), str):
            shaped[field] = message[field]
    if role == "developer":
        given = message.get("tools")
        if not isinstance(given, list | None):
            raise Refused("invalid", "tools that are not a list")
        shaped["tools"] = given if given is None or ordered else [_developer_tool(tool) for tool in given]
    return shaped


def _parts(content: Json) -> list[Json]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list):
        return content
    raise Refused("invalid", "content that is neither text nor a list")


def _part(part: Json, *, wrapped: bool) -> Json:
    """What one content part becomes; None or an empty text: nothing."""
    if isinstance(part, str):
        return {"type": "text", "text": part} if wrapped else part
    if not isinstance(part, dict):
        raise Refused("invalid", "a content part that is neither text nor an object")
    if _is_media(part):
        raise Refused("media", "content that is not text")
    kind = part.get("type")
    if not isinstance(kind, str) or part.get("uuid") is not None:
        raise Refused("invalid", "a content part without a type")
    if kind == "tool_reference":
        name = text_of(part.get("name"))
        return {"type": kind, "name": name} if wrapped else name
    field = _TEXT_FIELDS.get(kind)
    if field is None:
        raise Refused("invalid", f"a content part of the unknown type {kind!r}")
    text = part.get(field)
    if text is None and kind in ("text", "refusal"):
        return None  # the engine skips these with a warning
    text = text_of(text)
    return {"type": "text", "text": text} | _others(part, _PART_FIELDS) if wrapped else text


def _add_assistant_fields(shaped: Message, message: Message, *, ordered: bool) -> None:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise Refused("invalid", "tool_calls that are not a list")
    if calls:
        shaped["tool_calls"] = [_tool_call(call, ordered=ordered) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        shaped["reasoning"] = shaped["reasoning_content"] = text_of(reasoning)


def _add_tool_fields(shaped: Message, message: Message) -> None:
    if "tool_call_id" in message:
        shaped["tool_call_id"] = message["tool_call_id"]
    content = shaped["content"]
    if isinstance(content, list) and all(part["type"] == "text" for part in content):
        shaped["content"] = "\n".join(part["text"] for part in content)


def _tool_call(call: Json, *, ordered: bool) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type") != "function" or "arguments" not in function:
        raise Refused("invalid", "a tool call that is not a function with arguments")
    parsed = {"arguments": _arguments(function["arguments"])}
    known = () if ordered else _CALLED_FIELDS
    called = _ordered(function, known) | parsed
    return _ordered(call, () if ordered else _CALL_FIELDS) | {"function": called}


def _arguments(given: Json) -> dict[str, Json]:
    """A call's arguments, which come as JSON text; what is no JSON object becomes an empty one, as in the engine."""
    try:
        parsed = json.loads(text_of(given)) if given else {}
    except ValueError:
        return {}
    except RecursionError as error:
        raise Refused("invalid", "arguments that are nested too deeply") from error
    return parsed if isinstance(parsed, dict) else {}


def _tool(tool: Json) -> Message:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise Refused("invalid", "a tool that is not a function")
    deferred = tool.get("defer_loading")
    shown: Message = {
        "name": text_of(function.get("name")),
        "description": function.get("description"),
        "parameters": function.get("parameters"),
        "strict": function.get("strict"),
        "defer_loading": function.get("defer_loading", deferred),
    }
    for field in ("strict", "defer_loading"):
        if shown[field] is None:
            del shown[field]
    outer: Message = {"type": "function", "function": shown}
    return outer if deferred is None else outer | {"defer_loading": deferred}


def _developer_tool(tool: Json) -> Message:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        raise Refused("invalid", "a tool that is not a function")
    if not isinstance(function.get("name"), str):
        return dict(tool)  # the engine's request model does not know it, and leaves it as it is
    return _ordered(tool, _DEVELOPER_TOOL_FIELDS) | {"function": _ordered(function, _FUNCTION_FIELDS)}


def _without_billing_header(part: Json) -> Json:
    """A system part less the attribution line that some coding clients put first; it changes with every request."""
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
    if not (isinstance(text, str) and text.startswith(BILLING_HEADER)):
        return part
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return rest if isinstance(part, str) else part | {"text": rest}


def _as_system(message: Message) -> Message:
    if message["role"] != "developer":
        return message
    return {field: value for field, value in message.items() if field != "tools"} | {"role": "system"}


def _one_system_message(messages: list[Message]) -> list[Message]:
    """System messages merged into one at the front, where there are several or one stands elsewhere."""
    system = [at for at, message in enumerate(messages) if message["role"] == "system"]
    if system in ([], [0]):
        return messages
    texts = [_joined(messages[at]["content"]) for at in system]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in messages if message["role"] != "system")]


def _joined(content: str | list[Message]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)


def _ordered(given: Message, fields: tuple[str, ...]) -> Message:
    return {field: given[field] for field in fields if field in given} | _others(given, fields)


def _others(given: Message, fields: Iterable[str]) -> Message:
    return {field: value for field, value in given.items() if field not in fields}


def objects(value: Json) -> list[Message]:
    """The value, if it is a list of objects. Raises `Refused`."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise Refused("invalid", "a field that should be a list of objects is not")
    return value


def text_of(value: Json) -> str:
    """The value, if it is text. Raises `Refused`."""
    if not isinstance(value, str):
        raise Refused("invalid", "a field that should be text is not")
    return value


def merged(defaults: Mapping[str, Json], given: Mapping[str, Json]) -> dict[str, Json]:
    """The engine's merge of template arguments: what is given wins unless it is None or "auto"."""
    return dict(defaults) | {name: value for name, value in given.items() if value is not None and value != "auto"}
