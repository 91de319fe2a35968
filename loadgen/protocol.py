"""What clients may send to a simulated pod, and how vLLM words what it refuses.

Unknown fields are ignored, as vLLM ignores them. A refusal is vLLM's error body: message, type, param, code.
"""

from http import HTTPStatus
from typing import Any, TypeGuard, TypeVar

import msgspec

from loadgen.tokens import VOCABULARY_SIZE, render_chat


class ApiError(Exception):
    """An answer in vLLM's error shape."""

    def __init__(self, status: HTTPStatus, message: str, *, kind: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "error": {"message": message, "type": kind or status.phrase, "param": param, "code": status.value},
        }


def invalid(message: str, param: str | None = None) -> ApiError:
    """Return the error of a request that is well formed and cannot be served."""
    return ApiError(HTTPStatus.BAD_REQUEST, message, kind="BadRequestError", param=param)


class StreamOptions(msgspec.Struct):
    """Whether and how often usage is streamed."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Generate(msgspec.Struct, kw_only=True):
    """Fields that both kinds of completion have."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    return_token_ids: bool | None = None
    truncate_prompt_tokens: int | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    request_id: str | None = None

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class ChatRequest(Generate, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: int | None = None
    echo: bool = False


class CompletionRequest(Generate, kw_only=True):
    """POST /v1/completions; ``prompt`` is a text, token ids, or a batch of either."""

    prompt: Any
    add_special_tokens: bool = True


class TokenizeChat(ChatRequest, kw_only=True):
    """POST /tokenize with messages; fields that say nothing about the prompt are ignored."""

    return_token_strs: bool | None = False


class TokenizeText(msgspec.Struct, kw_only=True):
    """POST /tokenize with a prompt."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class Detokenize(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


Body = TypeVar("Body")


def parse(body: bytes, content_type: str, kind: type[Body]) -> Body:
    """Return the body as ``kind``; ApiError 400 in the shape of vLLM's validation errors when it is none."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise _unreadable("Unsupported Media Type: Only 'application/json' is allowed", None)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        path = str(error).partition(" - at `$")[2].rstrip("`")
        raise _unreadable(str(error), f"body{path}") from error
    except msgspec.DecodeError as error:
        raise _unreadable(f"JSON decode error: {error}", "body") from error


def _unreadable(message: str, param: str | None) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, f"1 validation error:\n  {message}", param=param)


def split_prompts(prompt: object) -> list[str | list[int]]:
    """Return a completion's prompts one by one; ApiError when it is none of the four forms."""
    if isinstance(prompt, str) or (prompt and are_ids(prompt)):
        return [prompt]
    if (
        isinstance(prompt, list)
        and prompt
        and all(isinstance(item, str) or (item and are_ids(item)) for item in prompt)
    ):
        return prompt
    raise _unreadable("prompt must be a text, a list of token ids, or a list of either", "body.prompt")


def are_ids(value: object) -> TypeGuard[list[int]]:
    """Say whether this is a list of integers."""
    return isinstance(value, list) and all(type(token) is int for token in value)


def check_ids(ids: list[int], param: str) -> list[int]:
    """Return the ids; ApiError when one of them is not in the vocabulary."""
    for token in (min(ids), max(ids)):
        if not 0 <= token < VOCABULARY_SIZE:
            raise invalid(f"Token id {token} is out of vocabulary", param)
    return ids


def check_model(model: str | None, served: list[str]) -> str:
    """Return the name of the model to use; ApiError 404 when it is not served."""
    if not model:
        return served[0]
    if model not in served:
        message = f"The model `{model}` does not exist."
        raise ApiError(HTTPStatus.NOT_FOUND, message, kind="NotFoundError", param="model")
    return model


def room_for_answer(prompt_tokens: int, requested: int | None, longest: int, param: str) -> int:
    """Return how many tokens an answer may have; ApiError when prompt or request exceed the model's length."""
    if requested is not None and requested > longest:
        raise invalid(
            f"{param}={requested} cannot be greater than max_model_len={longest}. Please request fewer output tokens.",
            param,
        )
    if requested is not None and requested < 1:
        raise invalid(f"{param} must be at least 1, got {requested}.", param)
    if prompt_tokens > longest:
        raise invalid(
            f"This model's maximum context length is {longest} tokens. However, your prompt contains {prompt_tokens} "
            "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
            "input prompt.",
            "input_tokens",
        )
    if prompt_tokens == longest:
        raise invalid(
            f"The decoder prompt (length {prompt_tokens}) plus the number of requested output tokens (at least 1) is "
            f"longer than the maximum model length of {longest}. Make sure that `max_model_len` is no smaller than the "
            "number of text tokens (prompt + requested output tokens)."
        )
    room = longest - prompt_tokens
    return room if requested is None else min(requested, room)


def render(body: ChatRequest) -> list[int]:
    """Return the ids of a chat; ApiError when it cannot be written as tokens."""
    if body.chat_template is not None:
        raise invalid(
            "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with "
            "untrusted chat template."
        )
    if body.continue_final_message and body.add_generation_prompt:
        raise invalid("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    try:
        return render_chat(
            body.messages,
            tools=body.tools,
            settings=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=body.add_special_tokens,
        )
    except ValueError as error:
        raise invalid(str(error), "messages") from error
