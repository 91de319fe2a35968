"""What is asked about a prompt: keys that differ where ids may, and the chat that a pod is asked for."""

import json
from itertools import combinations
from typing import Any

import msgspec
import pytest

from gateway.openai import peek
from gateway.tokens.chat import ChatFields
from gateway.tokens.questions import body_key, chat_key, converted_question, holds_media, text_key

CHATS: list[dict[str, Any]] = [
    {"messages": []},
    {"messages": [], "tools": []},
    {"messages": [], "documents": []},
    {"messages": [], "tool_choice": "none"},
    {"messages": [], "add_generation_prompt": False},
    {"messages": [], "continue_final_message": False},
    {"messages": [], "chat_template_kwargs": {"a": 1}},
    {"messages": [1]},
    {"messages": [], "reasoning_effort": "low"},
    {"messages": [], "chat_template": "low"},
]


def key(body: dict[str, Any], by: str = "pod") -> bytes:
    return chat_key(peek(json.dumps(body).encode()), by)


def test_chats_that_may_have_other_ids_have_other_keys() -> None:
    assert all(key(one) != key(other) for one, other in combinations(CHATS, 2))
    assert key(CHATS[0]) != key(CHATS[0], "local")
    assert key(CHATS[0]) == key({**CHATS[0], "user": "x", "temperature": 1})


def test_texts_that_may_have_other_ids_have_other_keys() -> None:
    plain, special = peek(b"{}"), peek(b'{"add_special_tokens":false}')
    keys = [text_key("a", plain, "pod"), text_key("b", plain, "pod"), text_key("a", special, "pod")]
    keys += [text_key("a", plain, "local"), text_key("\ud800", plain, "pod")]
    assert len(set(keys)) == 5
    assert body_key(b"a", "pod") != body_key(b"a", "local")


def test_a_conversation_that_was_converted_is_asked_for_as_a_chat() -> None:
    fields = ChatFields(
        messages=[{"role": "user", "content": "x"}],
        tools=[{"type": "function", "function": {"name": "f"}}],
        reasoning_effort="none",
        add_special_tokens=True,
    )
    assert msgspec.json.decode(converted_question(fields, "m")) == {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "chat_template_kwargs": {"reasoning_effort": "none", "enable_thinking": False},
        "add_special_tokens": True,
    }


@pytest.mark.parametrize(
    ("body", "may"),
    [
        (b'{"content":[{"type":"image_url","image_url":{"url":"x"}}]}', True),
        (b'{"content":[{"type":"input_audio","input_audio":{}}]}', True),
        (b'{"content":[{"type": "image", "source": {}}]}', True),
        (b'{"content":[{"type":"input_file"}]}', True),
        (b'{"content":"an image_url and a file"}', False),
        (b'{"content":"say \\"image\\""}', False),
    ],
)
def test_bodies_that_may_hold_media_are_looked_at(body: bytes, may: bool) -> None:
    assert holds_media(body) == may
