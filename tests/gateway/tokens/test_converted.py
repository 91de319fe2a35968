"""Responses and messages to prompts: against what vLLM makes of them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.tokens import anthropic, responses
from gateway.tokens.anthropic import Habits, MessagesFields, habits
from gateway.tokens.chat import ChatRenderer, EngineChat
from gateway.tokens.conversation import Message
from gateway.tokens.model_files import ModelFiles
from gateway.tokens.refusal import Refused
from gateway.tokens.responses import ResponsesFields, conversation_after
from tests.gateway.tokens.converted import EVERYTHING, HABITS_OF, MESSAGES, RESPONSES, SHOWN_WITH, STORED
from tests.gateway.tokens.test_chat import files

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "golden" / "converted_prompts.json").read_text())


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
