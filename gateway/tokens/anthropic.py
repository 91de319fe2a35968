"""The body of a message (`POST /v1/messages`) as the chat that its prompt is rendered from.

Source: vLLM 0.32, `entrypoints/anthropic/serving.py`, which makes a chat completion of it. What is particular about it:

- Results of tools become messages in front of the user's text that they came with, wherever they stood in it.
- Several texts of a message stay parts; those of the system prompt are joined without anything between them. Blocks of
  the system prompt that begin with the attribution line of a coding client are left out whole.
- System messages inside the conversation stay where they are, or are joined to the system prompt where the model's
  template takes them nowhere else. Which it is, the engine tries out when it starts (`habits`).
- Thinking that is switched off is a reasoning effort: "none", or "low" for templates that know no "none" (likewise).
- `tool_addition` and `tool_removal` change the tools of the whole conversation.

What the engine would answer with an error is refused here, without looking for every such case.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct, ValidationError, convert
from msgspec.structs import replace

from gateway.tokens.chat import ChatFields, ChatRenderer, EngineChat
from gateway.tokens.conversation import BILLING_HEADER, Json, Message, objects, text_of
from gateway.tokens.model_files import ModelFiles
from gateway.tokens.refusal import Refused

Block = dict[str, Any]

_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_HI: Message = {"role": "user", "content": "Hi"}
_BLOCKS = ("image", "redacted_thinking", "text", "thinking", "tool_reference", "tool_result", "tool_use")
_TEMPLATES = 32  # a model has one to three


_IMAGE: Message = {"type": "image_url", "image_url": {"url": ""}}
"""Where an image stands. Which one it is does not matter here: no text depends on it."""


class Turn(Struct, frozen=True):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(Struct, frozen=True):
    """A tool that the client runs; one without a schema is not known to the engine."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Kind(Struct, frozen=True):
    """What of `tool_choice` and `thinking` the prompt depends on."""

    type: str


class OutputConfig(Struct, frozen=True):
    """What of `output_config` the prompt depends on."""

    effort: str | None = None


class MessagesFields(Struct, frozen=True, kw_only=True):
    """What of the body the prompt depends on. Meant to be decoded from the body itself."""

    messages: list[Turn]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: Kind | None = None
    thinking: Kind | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Habits(NamedTuple):
    """What the engine does for a model's template: join system messages, and say so that it shall not think."""

    joins_system: bool
    disabled_effort: str


def habits(files: ModelFiles, engine: EngineChat, *, disabled_effort: str = "auto") -> Habits:
    """Found out as the engine does it; some renderings of a conversation of one word.

    `disabled_effort` is `--anthropic-disabled-thinking-effort`.
    """
    joins = any(_joins_system(files, engine, with_tools=with_tools) for with_tools in (False, True))
    if disabled_effort == "auto":
        disabled_effort = "none" if _knows_none(ChatRenderer(files, engine)) else "low"
    return Habits(joins, disabled_effort)


def chat_fields(ask: MessagesFields, *, does: Habits) -> ChatFields:
    """The chat of a message, for a model whose engine `does` so. Raises `Refused`. Linear in the conversation."""
    messages = _system(ask, joined=does.joins_system)
    for turn in ask.messages:
        if turn.role != "system":
            _add_turn(messages, turn)
        elif not does.joins_system and (text := _system_text(turn.content)):
            messages.append({"role": "system", "content": text})
    effort = ask.output_config.effort if ask.output_config else None
    off = ask.thinking is not None and ask.thinking.type == "disabled"
    tools = _tools(ask)
    return ChatFields(
        messages=messages,
        tools=None if tools is None else [_function(tool) for tool in tools],
        tool_choice="none" if ask.tool_choice is not None and ask.tool_choice.type == "none" else None,
        reasoning_effort=does.disabled_effort if off else effort,
        chat_template_kwargs=ask.chat_template_kwargs,
    )


def _system(ask: MessagesFields, *, joined: bool) -> list[Message]:
    """The system prompt; `joined`: with the conversation's system messages."""
    own = [ask.system] if isinstance(ask.system, str) else [_system_text(ask.system or [])]
    inner = [_system_text(turn.content) for turn in ask.messages if joined and turn.role == "system"]
    text = "".join([*own, *inner])
    return [{"role": "system", "content": text}] if text else []


def _system_text(content: str | list[Block]) -> str:
    texts = [content] if isinstance(content, str) else [_block_text(block) for block in content]
    return "".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _add_turn(messages: list[Message], turn: Turn) -> None:
    """The turn as a message, unless it is a user's without text; results of tools become messages before it."""
    message: Message = {"role": turn.role}
    if isinstance(turn.content, str):
        message["content"] = turn.content
    else:
        if turn.role == "user":
            messages += [
                part for block in turn.content if block.get("type") == "tool_result" for part in _result(block)
            ]
        message |= _fields(turn.role, turn.content)
    if turn.role == "assistant" or "content" in message:
        messages.append(message)


def _fields(role: str, blocks: list[Block]) -> Message:
    """What blocks come to as a message's reasoning, calls and content."""
    thoughts = [text_of(block["thinking"]) for block in blocks if _thinks(block)]
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    parts = [part for block in blocks if (part := _said(role, block)) is not None]
    fields: Message = {}
    if thoughts:
        fields["reasoning"] = "".join(thoughts)
    if calls:
        fields["tool_calls"] = calls
    if parts:
        fields["content"] = parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts
    return fields


def _thinks(block: Block) -> bool:
    return block.get("type") == "thinking" and block.get("thinking") is not None


def _said(role: str, block: Block) -> Message | None:
    """A block as a part of a message's content; None: it is none."""
    kind = block.get("type")
    if kind == "image" and block.get("source"):
        return _IMAGE
    if kind == "tool_result" and role == "assistant":
        text = f"Tool result: {block.get('content') or ''}"
    elif kind in _BLOCKS:
        text = _block_text(block)
    else:
        raise Refused("invalid", f"a block of the type {kind!r}")
    return {"type": "text", "text": text} if text else None


def _call(block: Block) -> Message:
    if not block.get("id"):
        raise Refused("invalid", "a call without an id, which the engine makes up of the time")
    function = {"arguments": json.dumps(block.get("input") or {}), "name": block.get("name") or ""}
    return {"id": text_of(block["id"]), "function": function, "type": "function"}


def _result(block: Block) -> list[Message]:
    """A tool's result as messages: its text, and the tools that it names."""
    content = block.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    texts: list[str] = []
    named: list[Message] = []
    images: list[Message] = []
    for part in objects([] if content is None else content):
        kind = part.get("type")
        if kind == "text":
            texts.append(text_of(part.get("text", "")))
        elif kind == "image" and _has_image(part.get("source", {})):
            images.append(_IMAGE)
        elif kind == "tool_reference" and (name := part.get("tool_name") or part.get("name")):
            named.append({"type": "tool_reference", "name": name})
    answer: Message = {"role": "tool", "tool_call_id": block.get("tool_use_id") or ""}
    said = [answer | {"content": "\n".join(texts)}]
    if images:
        said.append({"role": "user", "content": images})
    if named:
        said.append(answer | {"content": named})
    return said


def _has_image(source: Json) -> bool:
    return not isinstance(source, dict) or source.get("type") != "url" or bool(source.get("url"))


def _tools(ask: MessagesFields) -> list[Tool] | None:
    """The tools at the end of the conversation."""
    blocks = [block for turn in ask.messages if isinstance(turn.content, list) for block in turn.content]
    changes = [block for block in blocks if block.get("type") in ("tool_addition", "tool_removal")]
    if not changes:
        return ask.tools
    tools = {tool.name: tool for tool in ask.tools or ()}
    removed: set[str] = set()
    for change in changes:
        name = _changed(tools, change)
        if change["type"] == "tool_removal":
            removed.add(name)
        else:
            removed.discard(name)
    return [tool for name, tool in tools.items() if name not in removed]


def _changed(tools: dict[str, Tool], change: Block) -> str:
    """The name of the tool that is added or removed; an added one is put among the tools."""
    given: Json = change.get("tool")
    adds = change["type"] == "tool_addition"
    try:
        if adds and given["type"] == "tool_definition":
            tool = convert(given["definition"], Tool)
        elif given["type"] == "tool_reference":
            tool = replace(tools[given["name"]], defer_loading=None) if adds else tools[given["name"]]
        else:
            raise Refused("invalid", "a tool is changed in an unknown way")
    except (KeyError, TypeError, ValidationError) as error:
        raise Refused("invalid", f"a tool is changed that is not there: {error}") from error
    tools[tool.name] = tool
    return tool.name


def _function(tool: Tool) -> Message:
    schema = tool.input_schema
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": schema if "type" in schema else schema | {"type": "object"},
        "strict": tool.strict,
        "defer_loading": tool.defer_loading,
    }
    return {"type": "function", "function": function}


def _knows_none(renderer: ChatRenderer) -> bool:
    """Whether the effort "none" is another prompt than every effort that thinks."""

    def rendered(effort: str) -> str | None:
        try:
            return renderer.render(ChatFields(messages=[_HI], reasoning_effort=effort))
        except Refused:
            return None

    none = rendered("none")
    return none is not None and all(rendered(effort) != none for effort in _EFFORTS)


def _joins_system(files: ModelFiles, engine: EngineChat, *, with_tools: bool) -> bool:
    try:
        return not _takes_late_system(files.template(engine.chat_template, with_tools=with_tools))
    except Refused:
        return True


@lru_cache(maxsize=_TEMPLATES)
def _takes_late_system(source: str) -> bool:
    """The engine's test: in a plain environment, so a template that uses anything of its dialect fails it."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    system, user = {"role": "system", "content": "t"}, {"role": "user", "content": "t"}
    try:
        environment.from_string(source).render(messages=[system, user, system, user], add_generation_prompt=False)
    except Exception:  # noqa: BLE001  # a template can fail in any way
        return False
    return True


def _block_text(block: Block) -> str:
    text = block.get("text") if block.get("type") == "text" else None
    return "" if text is None else text_of(text)
