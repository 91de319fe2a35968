# ruff: noqa: E501  # templates are one line
"""Conversations to text: against what vLLM rendered, and what only concerns this side."""

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.tokens.chat import ChatFields, ChatRenderer, EngineChat
from gateway.tokens.model_files import ModelFiles
from gateway.tokens.refusal import Refused
from gateway.tokens.template import ChatTemplate, compiled
from tests.gateway.tokens.conversations import ANSWER, BODIES, CALLED, USER, WEATHER
from tests.gateway.tokens.templates import CONTENT_FORMATS, TEMPLATES

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "golden" / "chat_prompts.json").read_text())


def files(template: str | None, **fields: Any) -> ModelFiles:
    given: dict[str, Any] = {
        "directory": Path(),
        "tokenizer": Path(),
        "config": {},
        "special_tokens": {"bos_token": "<s>", "eos_token": "</s>"},
        "templates": {} if template is None else {"default": template},
        "processor_template": None,
        "rendered_by_engine": "",
        "doubt": "",
    }
    return ModelFiles(**given | fields)


def fields(**body: Any) -> ChatFields:
    return msgspec.convert({"messages": [USER]} | body, ChatFields)


def rendered(template: str, *, engine: EngineChat | None = None, **body: Any) -> str:
    return ChatRenderer(files(template), engine or EngineChat()).render(fields(**body))


def refused(template: str, *, engine: EngineChat | None = None, **body: Any) -> str:
    with pytest.raises(Refused) as caught:
        rendered(template, engine=engine, **body)
    return caught.value.reason


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_conversation_is_rendered_as_the_engine_renders_it(name: str, kind: str) -> None:
    ask = msgspec.json.decode(msgspec.json.encode(BODIES[kind]), type=ChatFields)
    renderer = ChatRenderer(files(TEMPLATES[name]), EngineChat())
    if (expected := GOLDEN[name][kind]) is not None:
        assert renderer.render(ask) == expected
    else:
        with pytest.raises(Refused):
            renderer.render(ask)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_content_format_is_the_one_that_the_engine_detects(name: str) -> None:
    assert compiled(TEMPLATES[name]).content_format == CONTENT_FORMATS[name]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{% set rest = messages[1:] %}{% for m in rest|list %}{% for c in m['content'] %}{% endfor %}{% endfor %}",
            "openai",
        ),
        ("{% for m in messages %}{% for c in m.content[1:] %}{% endfor %}{% endfor %}", "openai"),
        ("{% for content in messages %}{% for c in content %}{% endfor %}{% endfor %}", "openai"),
        (
            "{% for a, b in messages %}{% endfor %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "string",
        ),
        ("{% for m in messages %}{% for a, b in m.content %}{% endfor %}{% endfor %}", "string"),
        (
            "{% set ns.all = messages %}{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "string",
        ),
        ("{% macro show(content) %}{% for c in content %}{% endfor %}{% endmacro %}{{ show([1]) }}", "string"),
        (
            "{% macro show(p) %}{% for c in p %}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(p=m.content) }}{% endfor %}",
            "openai",
        ),
        (
            "{% set a = messages %}{% set messages = a %}{% for m in a %}{% for c in m.content %}{% endfor %}{% endfor %}",
            "openai",
        ),
    ],
)
def test_the_content_format_follows_messages_through_the_template(source: str, expected: str) -> None:
    assert compiled(source).content_format == expected


def test_the_server_s_content_format_template_and_arguments_count() -> None:
    engine = EngineChat(
        content_format="openai", chat_template="{{ messages[0].content[0].text }}{{ x }}", template_kwargs={"x": 1}
    )
    assert rendered("unused", engine=engine) == f"{USER['content']}1"
    assert rendered("unused", engine=engine, chat_template_kwargs={"x": 2}) == f"{USER['content']}2"
    assert rendered("unused", engine=engine, chat_template_kwargs={"x": None}) == f"{USER['content']}1"


def test_tools_of_a_choice_of_none_are_left_out_where_the_server_says_so() -> None:
    source = "{{ tools is none }}"
    assert rendered(source, tools=[WEATHER], tool_choice="none") == "False"
    engine = EngineChat(exclude_tools_when_tool_choice_none=True)
    assert rendered(source, engine=engine, tools=[WEATHER], tool_choice="none") == "True"


def test_a_request_s_own_template_is_taken_only_where_the_server_trusts_it() -> None:
    assert refused("model's", chat_template="own") == "untrusted-template"
    assert refused("model's", chat_template_kwargs={"chat_template": "own"}) == "untrusted-template"
    trusting = EngineChat(trust_request_chat_template=True)
    assert (
        rendered("model's", engine=trusting, chat_template="own {{ 2 * 3 }} {{ 2 ** 3 }} {{ 'a' * 2 }}") == "own 6 8 aa"
    )
    assert rendered("model's", engine=trusting) == "model's"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{{ 'x' * 9999999 }}",
        "{{ [1] * 9999999 }}",
        "{{ 9 ** 9999999 }}",
        "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
        "x" * 200_000,
        "{{ ''.__class__.__mro__ }}",
        "{% for a in 'x' %}",
    ],
)
def test_an_untrusted_template_ends_in_time_with_a_reason(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tokens.template._OWN_RENDER_S", 0.1)
    began = time.monotonic()
    with pytest.raises(Refused) as caught:
        ChatTemplate(source, trusted=False).render([USER])
    assert caught.value.reason == "template"
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"messages": []}, "invalid"),
        ({"messages": [{"content": "x"}]}, "invalid"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid"),
        ({"messages": [{"role": "user", "content": [5]}]}, "invalid"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "invalid"),
        ({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}, "invalid"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "invalid"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "media"),
        ({"messages": [{"role": "user", "content": [{"image_url": "x"}]}]}, "media"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "uuid": "u"}]}]}, "invalid"),
        ({"messages": [CALLED | {"tool_calls": "x"}]}, "invalid"),
        ({"messages": [CALLED | {"tool_calls": [{"id": "x", "type": "function"}]}]}, "invalid"),
        ({"messages": [{"role": "developer", "content": "x", "tools": [5]}]}, "invalid"),
        ({"tools": [{"type": "custom"}]}, "invalid"),
        ({"reasoning_effort": "extreme"}, "invalid"),
        ({"chat_template_kwargs": {"tokenize": True}}, "invalid"),
        ({"chat_template_kwargs": {"messages": []}}, "invalid"),
        ({"messages": [ANSWER], "continue_final_message": True}, "invalid"),
    ],
)
def test_what_the_engine_would_refuse_or_depends_on_media_has_a_reason(body: dict[str, Any], reason: str) -> None:
    assert refused(TEMPLATES["chatml"], **body) == reason


def test_a_message_that_the_template_drops_cannot_be_continued() -> None:
    asked = {"add_generation_prompt": False, "continue_final_message": True}
    assert refused("{# content #}nothing", **asked) == "invalid"
    assert refused("nothing", **asked) == "invalid"


def test_models_that_the_engine_renders_in_code_and_models_without_a_template_are_refused() -> None:
    for model, reason in ((files("x", rendered_by_engine="harmony"), "engine-renders"), (files(None), "no-template")):
        with pytest.raises(Refused) as caught:
            ChatRenderer(model, EngineChat()).render(fields())
        assert caught.value.reason == reason


def test_a_tool_reference_is_handed_on() -> None:
    part = {"type": "tool_reference", "name": "f"}
    source = "{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}"
    assert rendered(source, messages=[{"role": "tool", "content": [part]}]) == str(part)
    assert rendered("{{ messages[0].content }}", messages=[{"role": "tool", "content": [part]}]) == "f"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": ["text"], "text": "x"}]},
        {"role": "user", "content": [{"type": {}, "image_url": {"url": "x"}}]},
        {"role": "developer", "content": "x", "tools": {"a": 1}},
        {"role": "developer", "content": "x", "tools": "x"},
    ],
)
def test_what_has_a_shape_that_nobody_expects_is_refused(message: dict[str, Any]) -> None:
    for template in TEMPLATES.values():
        assert refused(template, messages=[message]) == "invalid"
