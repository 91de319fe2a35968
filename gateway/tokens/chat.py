"""From the fields of a chat completion to the text that the engine tokenizes."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from gateway.tokens import conversation as shapes
from gateway.tokens.content_format import ContentFormat
from gateway.tokens.model_files import ModelFiles
from gateway.tokens.refusal import Refused
from gateway.tokens.template import ChatTemplate, compiled

_MARK = "\ue000\ue001\ue000"  # of the private use area; in a client's own text it shortens what is known of its prompt
_EFFORTS = frozenset({None, "none", "minimal", "low", "medium", "high", "xhigh", "max"})
_NOT_VARIABLES = frozenset(
    (
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "truncation",
    )
)
"""Parameters of `apply_chat_template` itself: accepted among the template's arguments, and never seen by it."""


class ChatFields(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What of a chat completion's body its prompt depends on; null means the default.

    The defaults are the engine's. Meant to be decoded from the body itself.
    """

    ordered: ClassVar[bool] = False
    """Whether the messages did not pass through the engine's request model, which orders the keys of calls."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    documents: list[dict[str, str]] | None = None
    reasoning_effort: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False


class EngineChat(Struct, frozen=True, kw_only=True):
    """What an engine was started with that changes its prompts; the defaults are vLLM's.

    `chat_template` is the text of `--chat-template`, `content_format` `--chat-template-content-format`,
    `template_kwargs` `--default-chat-template-kwargs`.
    """

    chat_template: str | None = None
    content_format: str = "auto"
    template_kwargs: dict[str, Any] = {}
    trust_request_chat_template: bool = False
    exclude_tools_when_tool_choice_none: bool = False


class ChatRenderer:
    """Renders conversations with a model's templates. Safe to use from several threads."""

    def __init__(self, files: ModelFiles, engine: EngineChat) -> None:
        self._files = files
        self._engine = engine

    def render(self, ask: ChatFields) -> str:
        """The prompt's text. Raises `Refused`. Linear in the conversation (`ChatTemplate.render`)."""
        if self._files.rendered_by_engine:
            raise Refused("engine-renders", self._files.rendered_by_engine)
        if ask.reasoning_effort not in _EFFORTS:
            raise Refused("invalid", "an unknown reasoning_effort")
        variables = self._variables(ask)
        template = self._template(ask, variables)
        messages = shapes.conversation(
            ask.messages, self._form(template), developer=template.knows_developer, ordered=ask.ordered
        )
        open_end = variables.pop("continue_final_message", False)
        seen = {
            name: value
            for name, value in variables.items()
            if name in template.variables or name in ("tools", "documents", "add_generation_prompt")
        }
        return template.render(
            messages,
            continue_final_message=open_end,
            **(self._files.special_tokens | {"tools": None, "documents": None, "add_generation_prompt": False} | seen),
        )

    def render_before_media(self, ask: ChatFields) -> str:
        """The text before the first image or sound of a conversation that has one. Raises `Refused`.

        As far as the template does not say something else up front for conversations with images.
        """
        template = self._template(ask, self._variables(ask))
        messages = shapes.marked(ask.messages, self._form(template), _MARK)
        before, mark, _ = self.render(msgspec.structs.replace(ask, messages=messages)).partition(_MARK)
        if not mark:
            raise Refused("media", "the chat template drops what is not text")
        return before

    def _form(self, template: ChatTemplate) -> ContentFormat:
        form = self._engine.content_format
        return template.content_format if form == "auto" else "openai" if form == "openai" else "string"

    def _variables(self, ask: ChatFields) -> dict[str, Any]:
        own = ask.chat_template_kwargs or {}
        asked: dict[str, Any] = {
            "add_generation_prompt": ask.add_generation_prompt,
            "continue_final_message": ask.continue_final_message,
            "documents": ask.documents,
            "reasoning_effort": ask.reasoning_effort,
        }
        if ask.reasoning_effort is not None and "enable_thinking" not in own:
            asked["enable_thinking"] = ask.reasoning_effort != "none"
        defaults = shapes.merged(self._engine.template_kwargs, {"tools": self._tools(ask)})
        variables = shapes.merged(defaults, shapes.merged(own, asked))
        if variables.get("tokenize") or variables.get("return_assistant_tokens_mask"):
            raise Refused("invalid", "chat_template_kwargs that change what a rendering is")
        if not variables.keys().isdisjoint({"conversation", "messages", "self"}):
            raise Refused("invalid", "chat_template_kwargs that name the messages")
        return {name: value for name, value in variables.items() if name not in _NOT_VARIABLES}

    def _tools(self, ask: ChatFields) -> list[shapes.Message] | None:
        left_out = ask.tool_choice == "none" and self._engine.exclude_tools_when_tool_choice_none
        return None if ask.tools is None or left_out else shapes.tools(ask.tools)

    def _template(self, ask: ChatFields, variables: dict[str, Any]) -> ChatTemplate:
        """The request's own template, else the server's, else the model's for this kind of request."""
        if variables.pop("chat_template", None) is not None:
            raise Refused("untrusted-template", "chat_template_kwargs bring a chat template")
        own = ask.chat_template or None
        if own is not None and not self._engine.trust_request_chat_template:
            raise Refused("untrusted-template", "the request brings its own chat template")
        given = own or self._engine.chat_template
        source = self._files.template(given, with_tools=variables.get("tools") is not None)
        return compiled(source, trusted=own is None or source != own)
