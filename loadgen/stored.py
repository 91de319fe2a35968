"""The responses routes: answers that the pod keeps in its memory, as vLLM does with VLLM_ENABLE_RESPONSES_API_STORE.

The prompt is computed, as that of the chat that it comes to where all of it is text, and the answer says again what it
was asked. One made in the background stays queued until it is cancelled, and nothing of it is computed.
"""

import time
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from loadgen import protocol, responses
from loadgen.completions import Completions
from loadgen.options import Received
from loadgen.protocol import ApiError, ChatRequest
from loadgen.sequence import Sequence

_KEPT: Final = 10_000


class ResponseRequest(msgspec.Struct, kw_only=True):
    """POST /v1/responses."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    stream: bool | None = False
    store: bool | None = True
    background: bool | None = False
    previous_response_id: str | None = None
    request_id: str | None = None
    instructions: str | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None

    def chat(self) -> ChatRequest:
        """The chat that it comes to."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        said = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        return ChatRequest(
            messages=[*system, *said],
            model=self.model,
            cache_salt=self.cache_salt,
            kv_transfer_params=self.kv_transfer_params,
            add_special_tokens=True,
        )


class Stored:
    """The responses of one pod that serves ``names``; ``completions`` computes."""

    def __init__(self, names: list[str], completions: Completions) -> None:
        self._names = names
        self._completions = completions
        self._kept: dict[str, dict[str, Any]] = {}

    async def create(self, request: web.Request, received: Received) -> web.StreamResponse:
        """Answer, in one piece or as events."""
        body = protocol.parse(received.body, request.content_type, ResponseRequest)
        model = protocol.check_model(body.model, self._names)
        if body.previous_response_id is not None:
            self._get(body.previous_response_id)
        sequence = None
        if not body.background:
            sequence = await self._completions.prefill(request, received, body.chat())
        made = _response(body, model, sequence)
        if body.store and len(self._kept) < _KEPT:
            self._kept[made["id"]] = made
        return await _stream(request, made) if body.stream else responses.json(made)

    async def retrieve(self, request: web.Request, _: Received) -> web.Response:
        """Answer what is kept."""
        return responses.json(self._get(request.match_info["id"]))

    async def cancel(self, request: web.Request, _: Received) -> web.Response:
        """Cancel what has not ended."""
        kept = self._get(request.match_info["id"])
        if kept["status"] not in ("queued", "in_progress"):
            raise _invalid(HTTPStatus.BAD_REQUEST, "Cannot cancel a synchronous response.")
        kept["status"] = "cancelled"
        return responses.json(kept)

    def _get(self, response_id: str) -> dict[str, Any]:
        if (kept := self._kept.get(response_id)) is None:
            raise _invalid(HTTPStatus.NOT_FOUND, f"Response with id '{response_id}' not found.")
        return kept


def _invalid(status: HTTPStatus, message: str) -> ApiError:
    return ApiError(status, message, kind="invalid_request_error", param="response_id")


def _response(body: ResponseRequest, model: str, computed: Sequence | None) -> dict[str, Any]:
    """The fields of vLLM's answer, in its order."""
    said = body.input if isinstance(body.input, str) else "".join(str(item.get("content")) for item in body.input[-1:])
    words = len(said.split())
    prompt, cached = (computed.prompt_tokens, responses.cached_tokens(computed)) if computed else (0, 0)
    counts = {"input_tokens": prompt, "output_tokens": words, "total_tokens": prompt + words}
    details = {"input_tokens_details": {"cached_tokens": cached}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": body.request_id or f"resp_{uuid.uuid4().hex}",
        "created_at": int(time.time()),
        "incomplete_details": None,
        "instructions": None,
        "metadata": None,
        "model": model,
        "object": "response",
        "output": [] if body.background else [_message(said)],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "background": bool(body.background),
        "max_output_tokens": 1024,
        "previous_response_id": body.previous_response_id,
        "service_tier": "auto",
        "status": "queued" if body.background else "completed",
        "text": None,
        "truncation": "disabled",
        "usage": None if body.background else counts | details,
        "user": None,
    }


def _message(text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
    message = {"id": f"msg_{uuid.uuid4().hex}", "content": [part], "role": "assistant"}
    return message | {"status": "completed", "type": "message"}


async def _stream(request: web.Request, made: dict[str, Any]) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await answer.prepare(request)
    for number, event in enumerate(_events(made)):
        data = msgspec.json.encode(event | {"sequence_number": number})
        await answer.write(b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n")
    return answer


def _events(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = made | {"output": [], "status": "in_progress", "usage": None}
    yield {"response": begun, "type": "response.created"}
    yield {"response": begun, "type": "response.in_progress"}
    for index, message in enumerate(made["output"]):
        where = {"item_id": message["id"], "output_index": index, "content_index": 0}
        started = message | {"content": [], "status": "in_progress"}
        yield {"item": started, "output_index": index, "type": "response.output_item.added"}
        text = message["content"][0]["text"]
        for word in text.split(" "):
            yield where | {"delta": word, "logprobs": [], "type": "response.output_text.delta"}
        yield where | {"text": text, "logprobs": [], "type": "response.output_text.done"}
        yield {"item": message, "output_index": index, "type": "response.output_item.done"}
    yield {"response": made, "type": "response.completed"}
