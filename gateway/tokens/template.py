"""Chat templates, rendered as `transformers`' `apply_chat_template` renders them.

The dialect (transformers 5, `utils/chat_template_utils.py`): an immutable sandbox with trimmed and stripped blocks,
the `break`/`continue` tags, a `generation` tag that only marks its body, the functions `raise_exception` and
`strftime_now`, and a `tojson` that does not escape HTML. The special tokens that the tokenizer's configuration names
are variables.

A model's own template is the operator's choice and is trusted with time. A request's own template is not: it runs in
an environment in which every loop pass and every call looks at the clock, and its output is cut off at a bound. What
one single operation may allocate is bounded only for multiplication and powers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from threading import local
from typing import Any, NoReturn

import msgspec
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.tokens.content_format import ContentFormat, content_format
from gateway.tokens.refusal import Refused

_OWN_CHARS = 1 << 17  # a request's template; the longest published ones are some 20,000 characters
_OWN_OUTPUT_CHARS = 1 << 24  # more than any context length takes
_OWN_RENDER_S = 2.0
_OWN_PRODUCT = 1 << 20  # a repeated sequence's length, a power's bits
_COMPILED_TEMPLATES = 32  # a model has one to three; requests may bring their own
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "  # the trailing space tells whether the template trims

Value = Any
"""What templates compute with."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: its body, in a scope of its own."""

    tags = {"generation"}  # noqa: RUF012  # read by jinja2, never written

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @staticmethod
    def _body(caller: Macro) -> str:
        return caller()


class _Guarded(ImmutableSandboxedEnvironment):
    """The same dialect for a template that is not trusted: loops and calls end at the deadline."""

    intercepted_binops = frozenset({"*", "**"})  # neither are these computed while compiling

    def __init__(self, *args: Value, **kwargs: Value) -> None:
        super().__init__(*args, **kwargs)
        self._render = local()

    def start(self) -> None:
        """A render in this thread begins."""
        self._render.until = time.monotonic() + _OWN_RENDER_S

    def call(self, context: Context, function: Value, /, *args: Value, **kwargs: Value) -> Value:
        self.tick()
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:
        if operator == "**":
            size = _bits(left) * abs(right) if isinstance(right, int) else 0
        else:
            size = max(_length(left) * _count(right), _length(right) * _count(left))
        if size > _OWN_PRODUCT:
            raise TemplateError("a product that is too large")
        return super().call_binop(context, operator, left, right)

    def tick(self) -> str:
        if time.monotonic() > self._render.until:
            raise TemplateError("rendering takes too long")
        return ""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            tick = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None)
            loop.body.insert(0, nodes.ExprStmt(tick).set_lineno(loop.lineno))
        return tree


class ChatTemplate:
    """A compiled template. Safe to use from several threads.

    `variables` are the names that it reads and does not set.
    """

    def __init__(self, source: str, *, trusted: bool = True) -> None:
        """Compiles. Raises `Refused`: a syntax error, or an untrusted source that is too long."""
        if not trusted and len(source) > _OWN_CHARS:
            raise Refused("template", "the request's chat template is too long")
        self.source = source
        self._environment = _environment(_Guarded if not trusted else ImmutableSandboxedEnvironment)
        try:
            tree = self._environment.parse(source)
            self.variables = frozenset(find_undeclared_variables(tree))
            self._template = self._environment.from_string(source)
        except Exception as error:  # a template can make the parser fail in any way
            raise Refused("template", f"the chat template does not compile: {error}") from error
        self.content_format: ContentFormat = content_format(tree)
        self.knows_developer = '"developer"' in source or "'developer'" in source
        """vLLM's test of whether messages of the role "developer" go through as they are."""

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        continue_final_message: bool | str = False,
        **variables: Value,
    ) -> str:
        """The text. `continue_final_message` leaves the last message open (True: its content, or the field named).

        Raises `Refused` whatever goes wrong. Linear in the conversation for usual templates: each of its messages costs
        some microseconds, whatever was rendered before.
        """
        if not messages:
            raise Refused("invalid", "a conversation without messages")
        if not continue_final_message:
            return self._rendered(messages, variables)
        if variables.get("add_generation_prompt"):
            raise Refused("invalid", "continue_final_message excludes add_generation_prompt")
        field = continue_final_message if isinstance(continue_final_message, str) else "content"
        if field not in self.source:
            raise Refused("invalid", f"the chat template has no field {field!r} to continue")
        last, text = _tagged(messages[-1], field)
        return _cut_at_tag(self._rendered([*messages[:-1], last], variables), text)

    def _rendered(self, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        try:
            if not isinstance(self._environment, _Guarded):
                return self._template.render(messages=messages, **variables)
            self._environment.start()
            return _bounded(self._template.generate(messages=messages, **variables))
        except Exception as error:  # a template can fail in any way, on any input
            raise Refused("template", f"{type(error).__name__}: {error}") from error


@lru_cache(maxsize=_COMPILED_TEMPLATES)
def compiled(source: str, *, trusted: bool = True) -> ChatTemplate:
    """The template of this source, compiled once while it is in use. Raises `Refused`."""
    return ChatTemplate(source, trusted=trusted)


def _tagged(message: dict[str, Any], field: str) -> tuple[dict[str, Any], str]:
    """A copy of the message with the tag behind the text that is to be continued, and that text."""
    content = message.get(field)
    if isinstance(content, str):
        return {**message, field: content + _TAG}, content
    if isinstance(content, list):
        for at in range(len(content) - 1, -1, -1):
            if "text" in content[at]:
                text = content[at]["text"]
                tagged = {**content[at], "text": text + _TAG}
                return {**message, field: [*content[:at], tagged, *content[at + 1 :]]}, text
    raise Refused("invalid", f"the last message has no text in {field!r} to continue")


def _cut_at_tag(rendered: str, text: str) -> str:
    tag = _TAG.strip()
    if text.strip() not in rendered or tag not in rendered:
        raise Refused("invalid", "the chat template drops the message that is to be continued")
    at = rendered.rindex(tag)
    kept = rendered[:at]
    return kept if rendered.startswith(_TAG, at) else kept.rstrip()


def _bounded(pieces: Iterable[str]) -> str:
    kept, length = [], 0
    for piece in pieces:
        length += len(piece)
        if length > _OWN_OUTPUT_CHARS:
            raise TemplateError("the rendered prompt is too long")
        kept.append(piece)
    return "".join(kept)


@lru_cache(maxsize=2)
def _environment(kind: type[ImmutableSandboxedEnvironment]) -> ImmutableSandboxedEnvironment:
    environment = kind(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Value,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  # templates may pass it by position
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    if isinstance(indent, int) and indent > 0 and separators is None:
        # With an indent the standard library writes in Python, at a third of the speed.
        with suppress(msgspec.DecodeError, UnicodeEncodeError):
            written = json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
            return msgspec.json.format(written, indent=indent)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # the engine asks its own wall clock too  # noqa: DTZ005


def _length(value: Value) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _count(value: Value) -> int:
    return value if isinstance(value, int) else 0


def _bits(value: Value) -> int:
    return value.bit_length() if isinstance(value, int) else 0
