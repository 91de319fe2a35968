"""Responses, messages and embeddings to prompts: against what vLLM makes of them, and what is refused."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tokens import anthropic, embeddings, responses
from gateway.tokens.anthropic import Habits, MessagesFields, habits
from gateway.tokens.chat import ChatFields, ChatRenderer, EngineChat
from gateway.tokens.conversation import Message, before_media, conversation
from gateway.tokens.embeddings import EmbeddingFields
from gateway.tokens.refusal import Refused
from gateway.tokens.responses import ResponsesFields, conversation_after
from tests.gateway.tokens.converted import (
    ANSWER,
    ASKS,
    CALL,
    DONE,
    EMBEDDINGS,
    EVERYTHING,
    FULL_TOOL,
    HABITS_OF,
    MESSAGES,
    RESPONSES,
    RESULT,
    SHOWN_WITH,
    STORED,
    USE,
    USER,
)
from tests.gateway.tokens.test_chat import files

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "golden" / "converted_prompts.json").read_text())

STAYS = Habits(joins_system=False, disabled_effort="none")


def response(body: dict[str, Any]) -> ResponsesFields:
    return msgspec.json.decode(msgspec.json.encode(body), type=ResponsesFields)


def message(body: dict[str, Any]) -> MessagesFields:
    return msgspec.json.decode(msgspec.json.encode(body), type=MessagesFields)


def response_prompt(template: str, body: dict[str, Any]) -> str | None:
    try:
        return ChatRenderer(files(template), EngineChat()).render(responses.chat_fields(response(body)))
    except Refused:
        return None


def message_prompt(template: str, body: dict[str, Any]) -> str | None:
    model, engine = files(template), EngineChat()
    try:
        ask = anthropic.chat_fields(message(body), does=habits(model, engine))
        return ChatRenderer(model, engine).render(ask)
    except Refused:
        return None


@pytest.mark.parametrize("kind", RESPONSES)
@pytest.mark.parametrize("name", SHOWN_WITH)
def test_every_response_has_the_prompt_that_the_engine_makes(name: str, kind: str) -> None:
    assert response_prompt(SHOWN_WITH[name], RESPONSES[kind]) == GOLDEN["responses"][name][kind]


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("name", SHOWN_WITH)
def test_every_message_has_the_prompt_that_the_engine_makes(name: str, kind: str) -> None:
    assert message_prompt(SHOWN_WITH[name], MESSAGES[kind]) == GOLDEN["messages"][name][kind]


@pytest.mark.parametrize("kind", EMBEDDINGS)
def test_every_embedding_has_the_prompts_that_the_engine_makes(kind: str) -> None:
    ask = msgspec.json.decode(msgspec.json.encode(EMBEDDINGS[kind]), type=EmbeddingFields)
    renderer = ChatRenderer(files(SHOWN_WITH["qwen-3"]), EngineChat())
    try:
        made = embeddings.prompts(ask)
        shown = [
            [renderer.render(prompt), prompt.add_special_tokens]
            if isinstance(prompt, ChatFields)
            else [prompt if isinstance(prompt, str) else list(prompt), made.add_special_tokens]
            for prompt in made.prompts
        ]
    except Refused:
        shown = None
    assert shown == GOLDEN["embeddings"][kind]


def test_a_body_cannot_say_that_its_messages_are_in_order() -> None:
    ask = msgspec.json.decode(b'{"messages": [], "ordered": true}', type=ChatFields)
    assert not ask.ordered


def test_responses_get_special_tokens_and_messages_do_not() -> None:
    assert [responses.chat_fields(response({"input": "x"})).add_special_tokens] == GOLDEN["special"]["responses"]
    assert [anthropic.chat_fields(message({"messages": [ASKS]}), does=STAYS).add_special_tokens] == GOLDEN["special"][
        "messages"
    ]


@pytest.mark.parametrize("name", HABITS_OF)
def test_the_habits_are_those_that_the_engine_finds_out(name: str) -> None:
    assert list(habits(files(HABITS_OF[name]), EngineChat())) == GOLDEN["habits"][name]


def test_the_habits_follow_what_the_engine_was_started_with() -> None:
    knows = files("{{ reasoning_effort }}")
    assert habits(knows, EngineChat()) == Habits(joins_system=False, disabled_effort="none")
    assert habits(knows, EngineChat(), disabled_effort="high").disabled_effort == "high"
    assert habits(knows, EngineChat(chat_template="{{ raise_exception('x') }}")) == Habits(True, "low")
    assert habits(files(None), EngineChat()) == Habits(joins_system=True, disabled_effort="low")
    tools = files(None, templates={"default": "x", "tool_use": "{{ 1 + 'x' }}"})
    assert habits(tools, EngineChat()).joins_system


def test_a_response_goes_on_from_the_one_before_it() -> None:
    renderer = ChatRenderer(files(EVERYTHING), EngineChat())
    earlier: list[Message] | None = None
    for (body, output), expected in zip(STORED, GOLDEN["stored"], strict=True):
        ask = responses.chat_fields(response(body), earlier=earlier)
        assert renderer.render(ask) == expected
        earlier = conversation_after(ask.messages, output)


def test_putting_messages_together_leaves_the_body_alone() -> None:
    body = RESPONSES["a call after an answer that brings calls"]
    ask, again = response(body), response(body)
    first = responses.chat_fields(ask)
    assert ask == again
    assert first == responses.chat_fields(ask)


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        make()
    return caught.value.reason


def shaped(fields: ChatFields) -> list[Message]:
    return conversation(fields.messages, "string", developer=False, ordered=fields.ordered)


IMAGE = {"type": "input_image", "image_url": "http://x"}
PICTURE = {"type": "image", "source": {"type": "base64", "data": "x"}}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input": "x", "previous_response_id": "resp_1"}, "stored-response"),
        ({"input": "x", "truncation": "auto"}, "truncated"),
        ({"input": "x", "truncation": None}, "truncated"),
        ({"input": "x", "prompt": {"id": "p"}}, "invalid"),
        ({"input": [USER | {"content": [IMAGE]}]}, "media"),
        ({"input": [USER | {"content": [{"type": "input_file", "file_id": "x"}]}]}, "media"),
        ({"input": [USER, {"role": "assistant", "content": [IMAGE]}]}, "media"),
        ({"input": [CALL, RESULT | {"output": [IMAGE]}]}, "media"),
        ({"input": [{"type": ["x"]}]}, "invalid"),
        ({"input": [{"role": ["x"], "content": "x"}]}, "invalid"),
        ({"input": [USER | {"content": 5}]}, "invalid"),
        ({"input": [USER | {"content": ["x"]}]}, "invalid"),
        ({"input": [ANSWER | {"content": [{"type": "output_text"}]}]}, "invalid"),
        ({"input": [CALL | {"name": 5}]}, "invalid"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]}, "invalid"),
        ({"input": [{"type": "reasoning", "summary": [{}]}]}, "invalid"),
        ({"input": [{"type": "web_search_call"}]}, "invalid"),
        ({"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": 5}]}, "invalid"),
    ],
)
def test_responses_without_an_exact_prompt_have_a_reason(body: dict[str, Any], reason: str) -> None:
    assert refused(lambda: shaped(responses.chat_fields(response(body)))) == reason


def test_what_stands_before_an_image_is_known() -> None:
    seen = response({"instructions": "Look.", "input": [USER, USER | {"content": [IMAGE]}, USER]})
    assert before_media(responses.chat_fields(seen).messages) == 2
    shown = [{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "a"}, PICTURE]}]
    assert before_media(anthropic.chat_fields(message({"messages": shown}), does=STAYS).messages) == 1
    done = [{"role": "user", "content": [DONE | {"content": [{"type": "text", "text": "a"}, PICTURE]}]}]
    turns = anthropic.chat_fields(message({"messages": done}), does=STAYS).messages
    assert [turn["role"] for turn in turns] == ["tool", "user"]
    assert before_media(turns) == 1
    assert before_media(responses.chat_fields(response({"input": "x"})).messages) is None


def test_an_output_that_is_not_text_cannot_be_gone_on_from() -> None:
    for content in ([{"type": "refusal", "refusal": "no"}], "x"):
        assert refused(lambda: conversation_after([], [ANSWER | {"content": content}])) == "invalid"  # noqa: B023


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ([PICTURE], "media"),
        ([DONE | {"content": [PICTURE]}], "media"),
        ([DONE | {"content": [{"type": "image"}]}], "media"),
        ([DONE | {"content": 5}], "invalid"),
        ([DONE | {"content": ["x"]}], "invalid"),
        ([DONE | {"content": [{"type": "text", "text": None}]}], "invalid"),
        ([USE | {"id": ""}], "invalid"),
        ([USE | {"id": 5}], "invalid"),
        ([{"type": "text", "text": 5}], "invalid"),
        ([{"type": "thinking", "thinking": 5}], "invalid"),
        ([{"type": ["x"]}], "invalid"),
        ([{}], "invalid"),
    ],
)
def test_messages_without_an_exact_prompt_have_a_reason(blocks: list[Any], reason: str) -> None:
    body = {"messages": [{"role": "user", "content": blocks}]}
    assert refused(lambda: shaped(anthropic.chat_fields(message(body), does=STAYS))) == reason


@pytest.mark.parametrize("tool", [None, {}, {"type": "tool_reference"}, {"type": "tool_definition", "definition": {}}])
def test_a_change_of_tools_that_says_too_little_is_refused(tool: Any) -> None:
    body = {
        "messages": [ASKS, {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]}],
        "tools": [FULL_TOOL],
    }
    assert refused(lambda: anthropic.chat_fields(message(body), does=STAYS)) == "invalid"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input": "x", "truncate_prompt_tokens": 5}, "truncated"),
        ({"input": "x", "padding": "max_length"}, "invalid"),
        ({"input": "x", "messages": [ASKS]}, "invalid"),
        ({"input": []}, "invalid"),
        ({"input": [-1]}, "invalid"),
        ({"input": [[1], ["x"]]}, "invalid"),
    ],
)
def test_embeddings_without_an_exact_prompt_have_a_reason(body: dict[str, Any], reason: str) -> None:
    assert refused(lambda: embeddings.prompts(msgspec.convert(body, EmbeddingFields))) == reason


def _changed(body: Any, places: st.DrawFn) -> Any:
    """The body with one value in it exchanged or left out."""
    if isinstance(body, dict) and body and places(st.integers(0, 3)):
        key = places(st.sampled_from(sorted(body)))
        if not places(st.integers(0, 3)):
            return {name: value for name, value in body.items() if name != key}
        return {**body, key: _changed(body[key], places)}
    if isinstance(body, list) and body and places(st.integers(0, 3)):
        at = places(st.integers(0, len(body) - 1))
        return [*body[:at], _changed(body[at], places), *body[at + 1 :]]
    return places(st.sampled_from([None, 5, "x", "", [], {}, ["x"], [{}], {"type": "text"}, [[5]], True]))


@st.composite
def _bodies(draw: st.DrawFn) -> tuple[str, Any]:
    endpoint, known = draw(
        st.sampled_from([("responses", RESPONSES), ("messages", MESSAGES), ("embeddings", EMBEDDINGS)])
    )
    return endpoint, _changed(known[draw(st.sampled_from(sorted(known)))], draw)


@settings(max_examples=1000)
@given(_bodies())
def test_whatever_a_body_holds_there_is_a_chat_or_a_reason(case: tuple[str, Any]) -> None:
    endpoint, body = case
    convert: dict[str, tuple[type[Any], Callable[[Any], object]]] = {
        "responses": (ResponsesFields, responses.chat_fields),
        "messages": (MessagesFields, partial(anthropic.chat_fields, does=STAYS)),
        "embeddings": (EmbeddingFields, embeddings.prompts),
    }
    kind, make = convert[endpoint]
    try:
        make(msgspec.json.decode(msgspec.json.encode(body), type=kind))
    except (msgspec.ValidationError, Refused):
        return
