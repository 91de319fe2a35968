"""What is asked about a prompt: the parts of a body that it depends on, as a memo's key and as pods take them.

A chat's fields go to the pod as the client wrote them. Responses and messages are conversations in another form
(`conversions`); a pod is asked for the chat that its own server would make of them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from operator import attrgetter

import msgspec
import xxhash
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.openai import Peek
from gateway.tokens.chat import ChatFields

_CHAT_FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "documents",
    "reasoning_effort",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "media_io_kwargs",
    "mm_processor_kwargs",
)
_MARKS = tuple(b"\0%d\0" % number for number in range(len(_CHAT_FIELDS)))
_chat_fields = attrgetter(*_CHAT_FIELDS)
_NO_MORE = (UNSET,) * (len(_CHAT_FIELDS) - 1)
_BACKENDS = 256  # whose digests are kept begun
_NONE = b"null"
_MEDIA = re.compile(rb'"(?:input_)?(?:image|audio|video|file|prompt_embeds)(?:_url|_pil|_embeds)?"')


class _ChatQuestion(Struct, omit_defaults=True):
    model: str
    messages: Raw
    tools: Raw | UnsetType = UNSET
    chat_template: Raw | UnsetType = UNSET
    chat_template_kwargs: Raw | dict[str, Raw] | UnsetType = UNSET
    add_generation_prompt: Raw | UnsetType = UNSET
    continue_final_message: Raw | UnsetType = UNSET
    add_special_tokens: Raw | UnsetType = UNSET
    media_io_kwargs: Raw | UnsetType = UNSET
    mm_processor_kwargs: Raw | UnsetType = UNSET


class _TextQuestion(Struct, omit_defaults=True):
    model: str
    prompt: str
    add_special_tokens: Raw | UnsetType = UNSET


def given(field: Raw | UnsetType) -> bool:
    """Whether the body has the field. To the engine absent and null are alike."""
    return field is not UNSET and (len(field) != len(_NONE) or bytes(field) != _NONE)


def holds_media(question: bytes) -> bool:
    """Whether a conversation may hold more than text: true also of text that only looks so. O(question), in C."""
    return _MEDIA.search(question) is not None


def chat_key(ask: Peek, by: str) -> bytes:
    """What a chat is remembered under, of tokens made `by` a backend for a model. O(fields), in C."""
    fields = _chat_fields(ask)
    messages = fields[0]
    if fields[1:] == _NO_MORE and messages is not UNSET:  # most chats, which is seen at once
        digest = _of_messages(by).copy()
        digest.update(messages)
        return digest.digest()
    digest = xxhash.xxh3_128(by.encode())
    for mark, field in zip(_MARKS, fields, strict=True):
        if field is not UNSET:
            digest.update(mark)
            digest.update(field)
    return digest.digest()


@lru_cache(_BACKENDS)
def _of_messages(by: str) -> xxhash.xxh3_128:
    """A digest of what is in front of the messages; to be copied."""
    return xxhash.xxh3_128(by.encode() + _MARKS[0])


def text_key(prompt: str, ask: Peek, by: str) -> bytes:
    """What a text is remembered under. O(text), in C."""
    digest = xxhash.xxh3_128(by.encode())
    special = ask.add_special_tokens
    digest.update(b"\0%b\0" % (b"" if special is UNSET else bytes(special)))
    digest.update(prompt.encode(errors="surrogatepass"))
    return digest.digest()


def body_key(body: bytes, by: str) -> bytes:
    """What a body is remembered under as a whole. O(body), in C."""
    digest = xxhash.xxh3_128(by.encode())
    digest.update(body)
    return digest.digest()


def text_question(prompt: str, ask: Peek, model: str) -> bytes:
    """A text completion's prompt, as `/tokenize` takes it."""
    return msgspec.json.encode(_TextQuestion(model, prompt, ask.add_special_tokens))


def chat_question(ask: Peek, model: str) -> bytes:
    """The parameters of a chat completion that change the prompt, as `/tokenize` takes them.

    `documents` and `reasoning_effort` are fields of a chat completion that vLLM hands to the template as keyword
    arguments; `/tokenize` knows only `chat_template_kwargs`.
    """
    return msgspec.json.encode(
        _ChatQuestion(
            model,
            Raw(ask.messages or b""),
            tools=ask.tools,
            chat_template=ask.chat_template,
            chat_template_kwargs=_template_kwargs(ask),
            add_generation_prompt=ask.add_generation_prompt,
            continue_final_message=ask.continue_final_message,
            add_special_tokens=ask.add_special_tokens,
            media_io_kwargs=ask.media_io_kwargs,
            mm_processor_kwargs=ask.mm_processor_kwargs,
        )
    )


def converted_question(fields: ChatFields, model: str) -> bytes:
    """A conversation that came in another form, or from nobody, as `/tokenize` takes it."""
    return chat_question(msgspec.json.decode(msgspec.json.encode(fields), type=Peek), model)


def _template_kwargs(ask: Peek) -> Raw | dict[str, Raw] | UnsetType:
    extra: dict[str, Raw] = {}
    if isinstance(ask.documents, Raw) and given(ask.documents):
        extra["documents"] = ask.documents
    if isinstance(ask.reasoning_effort, Raw) and given(ask.reasoning_effort):
        extra["reasoning_effort"] = ask.reasoning_effort
        extra["enable_thinking"] = Raw(b"false" if bytes(ask.reasoning_effort) == b'"none"' else b"true")
    own: dict[str, Raw] = {}
    if extra and isinstance(ask.chat_template_kwargs, Raw) and given(ask.chat_template_kwargs):
        try:
            own = msgspec.json.decode(ask.chat_template_kwargs, type=dict[str, Raw])
        except msgspec.ValidationError:
            extra = {}  # the pod refuses what is not an object, here and with the request itself
    if "enable_thinking" in own:
        extra.pop("enable_thinking", None)
    return {**own, **extra} if extra else ask.chat_template_kwargs
