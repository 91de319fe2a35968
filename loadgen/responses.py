"""vLLM's response bodies, null fields where it sends them.

Whole answers carry every field; chunks of a stream carry those that vLLM sets; the last chunk of a stream, with the
usage, carries no nulls at all.
"""

import time
import uuid
from collections.abc import Sequence as Run
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from loadgen.sequence import Sequence

FINGERPRINT = "vllm-0.32.0-51aded00"


class Reply(NamedTuple):
    """What all parts of one answer share."""

    id: str
    model: str
    chat: bool
    token_ids: bool  # the client wants them
    created: int

    @classmethod
    def new(cls, request_id: str | None, model: str, *, chat: bool, token_ids: bool) -> "Reply":
        """Begin an answer; ``request_id`` is the client's own, if it sent one."""
        name = request_id or uuid.uuid4().hex[:16]
        return cls(f"{'chatcmpl' if chat else 'cmpl'}-{name}", model, chat, token_ids, int(time.time()))


def usage(sequences: Run[Sequence], cached: int | None) -> dict[str, Any]:
    """Return the usage of whole answers, without the fields that are null."""
    prompt = sum(sequence.prompt_tokens for sequence in sequences)
    completion = sum(sequence.emitted for sequence in sequences)
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return counts


def cached_tokens(sequence: Sequence) -> int:
    """Return the prompt tokens that were not computed."""
    return sum(sequence.cached) if sequence.cached else 0


def whole(reply: Reply, sequences: Run[Sequence], *, details: bool) -> dict[str, Any]:
    """Return the body of an answer that is not streamed; ``details`` as with --enable-prompt-tokens-details.

    As in vLLM a batch's cached tokens are those of its last prompt.
    """
    counts = usage(sequences, None)
    counts |= {"prompt_tokens_details": None, "completion_tokens_details": None}
    if details:
        cached = cached_tokens(sequences[-1])
        counts["prompt_tokens_details"] = {
            "cached_tokens": cached,
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        }
    choice = _chat_choice if reply.chat else _text_choice
    body: dict[str, Any] = {
        "id": reply.id,
        "object": "chat.completion" if reply.chat else "text_completion",
        "created": reply.created,
        "model": reply.model,
        "choices": [choice(reply, i, sequence) for i, sequence in enumerate(sequences)],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": counts,
    }
    if reply.chat:
        prompt_ids = sequences[0].tokens[: sequences[0].prompt_tokens] if reply.token_ids else None
        body |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "prompt_text": None}
    return body | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def _chat_choice(reply: Reply, index: int, sequence: Sequence) -> dict[str, Any]:
    message = dict.fromkeys(("role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"))
    return {
        "index": index,
        "message": message | {"role": "assistant", "content": "".join(sequence.answer.texts)},
        "logprobs": None,
        "finish_reason": sequence.answer.finish_reason,
        "stop_reason": sequence.answer.stop_reason,
        "token_ids": sequence.answer.token_ids if reply.token_ids else None,
        "routed_experts": None,
    }


def _text_choice(reply: Reply, index: int, sequence: Sequence) -> dict[str, Any]:
    return {
        "index": index,
        "text": "".join(sequence.answer.texts),
        "logprobs": None,
        "finish_reason": sequence.answer.finish_reason,
        "stop_reason": sequence.answer.stop_reason,
        "token_ids": sequence.answer.token_ids if reply.token_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": sequence.tokens[: sequence.prompt_tokens] if reply.token_ids else None,
        "routed_experts": None,
    }


def _chunk(reply: Reply, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": reply.id,
        "object": "chat.completion.chunk" if reply.chat else "text_completion",
        "created": reply.created,
        "model": reply.model,
        "choices": choices,
    }


def first_chunk(reply: Reply, sequence: Sequence) -> dict[str, Any]:
    """Return the chunk with which a streamed chat begins: the role."""
    delta = {"role": "assistant", "content": ""}
    chunk = _chunk(reply, [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])
    prompt_ids = sequence.tokens[: sequence.prompt_tokens] if reply.token_ids else None
    return chunk | {"prompt_token_ids": prompt_ids, "prompt_text": None}


def chunk(reply: Reply, index: int, sequence: Sequence, tokens: range, *, fingerprint: bool) -> dict[str, Any]:
    """Return the chunk with these tokens of an answer; the last one carries the fingerprint when no usage follows."""
    answer = sequence.answer
    last = tokens.stop == len(answer.token_ids)
    finish_reason = answer.finish_reason if last else None
    text = "".join(answer.texts[tokens.start : tokens.stop])
    ids = answer.token_ids[tokens.start : tokens.stop] if reply.token_ids else None
    choice: dict[str, Any]
    if reply.chat:
        choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": finish_reason}
        choice |= {"stop_reason": answer.stop_reason} if last else {}
    else:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
        prompt_ids = sequence.tokens[: sequence.prompt_tokens] if reply.token_ids and tokens.start == 0 else None
        choice |= {"stop_reason": answer.stop_reason if last else None, "prompt_token_ids": prompt_ids}
    body = _chunk(reply, [choice | {"token_ids": ids}])
    return body | {"system_fingerprint": FINGERPRINT} if last and fingerprint else body


def running_usage(sequence: Sequence, emitted: int) -> dict[str, Any]:
    """Return the usage that a chunk carries with ``continuous_usage_stats``."""
    prompt = sequence.prompt_tokens
    return {"prompt_tokens": prompt, "total_tokens": prompt + emitted, "completion_tokens": emitted}


def usage_chunk(reply: Reply, sequences: Run[Sequence], *, details: bool) -> dict[str, Any]:
    """Return the chunk that ends a stream with ``include_usage``. As in vLLM cached tokens are the first prompt's."""
    cached = cached_tokens(sequences[0]) if details else None
    return _chunk(reply, []) | {"usage": usage(sequences, cached), "system_fingerprint": FINGERPRINT}


def json(body: object, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    """Return a JSON response."""
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def sse(body: object) -> bytes:
    """Return one server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
