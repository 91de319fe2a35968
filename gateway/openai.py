"""OpenAI wire types: what is read of a request, what is read of an answer, and the error body.

A body is peeked at, never rebuilt: only the fields that decide something are decoded, the rest stays `msgspec.Raw`, a
view into the bytes as they came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.errors import GatewayError, RequestError

T = TypeVar("T")
PromptKind = Literal["chat/completions", "completions", "responses", "messages", "embeddings"]
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # no JSON, but engines read past it


class Peek(Struct):
    """The fields of a completion body that the gateway looks at. Absent and null are alike to the engine."""

    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    cache_salt: str | None = None
    prompt: Raw | UnsetType = UNSET
    messages: Raw | UnsetType = UNSET
    tools: Raw | UnsetType = UNSET
    tool_choice: Raw | UnsetType = UNSET
    documents: Raw | UnsetType = UNSET
    reasoning_effort: Raw | UnsetType = UNSET
    chat_template: Raw | UnsetType = UNSET
    chat_template_kwargs: Raw | UnsetType = UNSET
    add_generation_prompt: Raw | UnsetType = UNSET
    continue_final_message: Raw | UnsetType = UNSET
    add_special_tokens: Raw | UnsetType = UNSET
    media_io_kwargs: Raw | UnsetType = UNSET
    mm_processor_kwargs: Raw | UnsetType = UNSET
    truncate_prompt_tokens: Raw | UnsetType = UNSET
    prompt_embeds: Raw | UnsetType = UNSET
    echo: Raw | UnsetType = UNSET
    prompt_cache_key: Raw | UnsetType = UNSET
    metadata: Raw | UnsetType = UNSET
    user: Raw | UnsetType = UNSET

    @property
    def sequences(self) -> int:
        """How many sequences the engine makes of each prompt."""
        if self.n is None and self.best_of is None and not self.use_beam_search:
            return 1
        return max(self.n or 1, self.best_of or 1, 2 if self.use_beam_search else 1)


class Named(Struct):
    """What any JSON body may name: a model, and the response that it goes on from."""

    model: str | None = None
    previous_response_id: str | None = None


_PEEK = msgspec.json.Decoder(Peek)
_NAMED = msgspec.json.Decoder(Named)


def peek(body: bytes) -> Peek:
    """O(len(body)), one pass. Raises RequestError for anything but a JSON object with usable fields."""
    return _decoded(_PEEK, body)


def named(body: bytes) -> Named:
    """Likewise, of a body whose prompt is not looked at."""
    return _decoded(_NAMED, body)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body.removeprefix(BYTE_ORDER_MARK))
    except msgspec.ValidationError as error:
        reason, at, place = str(error).rpartition(" - at `$.")
        if not at:
            raise RequestError("The body must be a JSON object.", code="invalid_body") from error
        field = place.rstrip("`")
        raise RequestError(f"{field}: {reason}", code="invalid_value", param=field) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The body is not valid JSON: {error}", code="invalid_json") from error


class Usage(Struct, frozen=True):
    """Token counts as a pod reported them; None where it said nothing."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None


_NO_USAGE = Usage()
_LONGEST_NAME = len('"cache_creation_input')
# An unescaped quote in front tells a field from the same text inside a generated string; the pattern begins with it, so
# that it is looked for in C. Responses and messages count input and output, completions prompt and completion. Of a
# message's prompt, what was cached counts apart.
_COUNTS = re.compile(
    rb'"(?<!\\")((?:prompt|completion|output|cached|(?:cache_(?:read|creation)_)?input)_tokens)":\s?(\d{1,12})(?![\d.])'
)

_BEFORE_TOKENS = len('"prompt')
# As engines write those of completions, where it is all that an answer says of tokens.
_USUAL = re.compile(
    rb'"prompt_tokens":(\d{1,12}),(?:"total_tokens":\d{1,12},"completion_tokens":(\d{1,12})'
    rb'|"completion_tokens":(\d{1,12}),"total_tokens":\d{1,12})'
    rb'(?:,"prompt_tokens_details":(?:null|\{"cached_tokens":(\d{1,12})\}))?\}'
)


def usage(tail: Iterable[bytes]) -> Usage:
    """Read the counts from the end of an answer, JSON or SSE: the last mention of each field wins. O(len(tail))."""
    data = b"".join(tail)
    first = data.find(b'_tokens":')  # in C; the pattern would look at every quote before it
    if first < 0:
        return _NO_USAGE
    usual = _USUAL.match(data, max(0, first - _BEFORE_TOKENS))
    if usual is not None and data.find(b'_tokens":', usual.end()) < 0:
        prompt, completion, the_same, cached = usual.groups()
        return Usage(int(prompt), int(completion or the_same), None if cached is None else int(cached))
    return _by_name(data, first)


def _by_name(data: bytes, first: int) -> Usage:
    """The last mention of each field, in whatever order and shape they come."""
    found = {name: int(count) for name, count in _COUNTS.findall(data, max(0, first - _LONGEST_NAME))}
    prompt, completion = found.get(b"prompt_tokens"), found.get(b"completion_tokens")
    cached = found.get(b"cached_tokens")
    if len(found) == (prompt is not None) + (completion is not None) + (cached is not None):
        return Usage(prompt, completion, cached)  # there is none of another kind of answer
    prompt = found.get(b"input_tokens") if prompt is None else prompt
    completion = found.get(b"output_tokens") if completion is None else completion
    read, created = found.get(b"cache_read_input_tokens"), found.get(b"cache_creation_input_tokens")
    if prompt is not None and (read is not None or created is not None):
        prompt, cached = prompt + (read or 0) + (created or 0), read
    return Usage(prompt, completion, cached)


def error_body(error: GatewayError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`, as OpenAI clients parse it."""
    detail: dict[str, Any] = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return msgspec.json.encode({"error": detail})
