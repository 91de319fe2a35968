"""The body of an embedding (`POST /v1/embeddings`) as the prompts that it asks for.

Source: vLLM 0.32, `entrypoints/pooling` (the request models of `base/protocol.py` and `embed/protocol.py`). Models with
causal attention that pool the last token find prefixes in the cache (`is_prefix_caching_supported` in
`config/model.py`); for the others the engine switches caching off.

Texts are completed with special tokens unless the request says otherwise, conversations are not. A conversation ends
without a generation prompt, and neither tools nor the server's default template arguments reach its template: render it
for an `EngineChat` without `template_kwargs`.

What is left to the caller: models whose sentence_bert_config.json says `do_lower_case`, and the pieces of
`enable_chunked_processing`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct

from gateway.tokens.chat import ChatFields
from gateway.tokens.conversation import Json, Message
from gateway.tokens.prompt import TokenIds
from gateway.tokens.refusal import Refused


class EmbeddingFields(Struct, frozen=True, kw_only=True):
    """What of the body the prompts depend on. Meant to be decoded from the body itself."""

    input: Any = None
    messages: Any = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    padding: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = False
    continue_final_message: bool = False


class EmbeddingPrompts(NamedTuple):
    """Prompts in the request's order, all of one kind; `add_special_tokens` is for texts."""

    prompts: list[str] | list[TokenIds] | list[ChatFields]
    add_special_tokens: bool = True


def prompts(ask: EmbeddingFields) -> EmbeddingPrompts:
    """What is to be embedded. Raises `Refused`. Linear in the input."""
    if ask.truncate_prompt_tokens is not None:
        raise Refused("truncated", "the request asks for it")
    if ask.padding == "max_length":
        raise Refused("invalid", "prompts are filled up to the model's length")
    given = ask.input if ask.messages is None else ask.messages
    if ask.input is not None and ask.messages is not None:
        raise Refused("invalid", "both an input and messages")
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not given:
        raise Refused("invalid", "nothing to embed")
    if isinstance(given[0], dict | int):
        given = [given]
    if all(_is_conversation(each) for each in given):
        return EmbeddingPrompts([_chat(ask, messages) for messages in given])
    if ask.messages is not None:
        raise Refused("invalid", "messages that are no conversation")
    special = ask.add_special_tokens is not False
    if all(isinstance(text, str) for text in given):
        return EmbeddingPrompts(given, special)
    return EmbeddingPrompts([_ids(ids) for ids in given], special)


def conversation(ask: EmbeddingFields) -> ChatFields:
    """What is to be embedded, where it is one conversation. Raises `Refused`."""
    asked = prompts(ask).prompts
    if len(asked) == 1 and isinstance(asked[0], ChatFields):
        return asked[0]
    raise Refused("batch-too-large", "several conversations")


def _is_conversation(given: Json) -> bool:
    return isinstance(given, list) and bool(given) and all(isinstance(message, dict) for message in given)


def _chat(ask: EmbeddingFields, messages: list[Message]) -> ChatFields:
    return ChatFields(
        messages=messages,
        chat_template=ask.chat_template,
        chat_template_kwargs=ask.chat_template_kwargs,
        add_generation_prompt=ask.add_generation_prompt,
        continue_final_message=ask.continue_final_message,
        add_special_tokens=ask.add_special_tokens is True,
    )


def _ids(given: Json) -> TokenIds:
    if not isinstance(given, list):
        raise Refused("invalid", "an input that is neither text, nor ids, nor a conversation")
    try:
        return TokenIds("I", given)
    except (TypeError, OverflowError) as error:
        raise Refused("invalid", f"ids that are none: {error}") from error
