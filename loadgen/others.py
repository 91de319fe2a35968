"""The rest of vLLM's routes for clients, in its shapes. Answers follow from what was sent.

Of a message the prompt is computed, as that of the chat that it comes to where all of it is text; of the others
nothing is.
"""

import base64
import hashlib
import struct
import time
import uuid
from collections.abc import Iterator
from email import message_from_bytes
from typing import Any

import msgspec
from aiohttp import web

from loadgen import protocol, responses
from loadgen.completions import Completions
from loadgen.options import Received
from loadgen.protocol import ApiError, ChatRequest


class MessagesRequest(msgspec.Struct, kw_only=True):
    """POST /v1/messages and /v1/messages/count_tokens."""

    model: str
    messages: list[dict[str, Any]]
    max_tokens: int = 0
    stream: bool | None = False
    system: str | list[dict[str, Any]] | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None

    def chat(self) -> ChatRequest:
        """The chat that it comes to."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return ChatRequest(
            messages=[*system, *self.messages],
            model=self.model,
            cache_salt=self.cache_salt,
            kv_transfer_params=self.kv_transfer_params,
        )


class PoolingRequest(msgspec.Struct, kw_only=True):
    """Whatever a pooling model is asked."""

    model: str | None = None
    input: str | list[str] = ""
    encoding_format: str = "float"
    queries: str | list[str] = ""
    query: str = ""
    documents: list[str] = []


class Others:
    """The routes of one pod that serves ``names``; ``completions`` computes."""

    def __init__(self, names: list[str], completions: Completions) -> None:
        self._names = names
        self._completions = completions

    async def messages(self, request: web.Request, received: Received) -> web.StreamResponse:
        """Answer the last message with itself, in Anthropic's shape."""
        try:
            body = protocol.parse(received.body, request.content_type, MessagesRequest)
            model = protocol.check_model(body.model, self._names)
        except ApiError as error:
            told = error.body["error"]
            shown = {"type": "error", "error": {"type": told["type"], "message": told["message"]}}
            return responses.json(shown, error.status)
        said = str(body.messages[-1].get("content")) if body.messages else ""
        words = len(said.split())
        if request.path.endswith("/count_tokens"):
            return responses.json({"input_tokens": len(protocol.render(body.chat()))})
        sequence = await self._completions.prefill(request, received, body.chat())
        cached = responses.cached_tokens(sequence)
        counts = {"input_tokens": sequence.prompt_tokens - cached, "output_tokens": words}
        counts |= {"cache_read_input_tokens": cached}
        made: dict[str, Any] = {"id": f"chatcmpl-{uuid.uuid4().hex}", "type": "message", "role": "assistant"}
        made |= {"content": [{"type": "text", "text": said}], "model": model, "stop_reason": "end_turn"}
        made |= {"usage": counts}
        return await _stream(request, made) if body.stream else responses.json(made)

    async def embeddings(self, request: web.Request, received: Received) -> web.Response:
        """One vector per input, made of its digest."""
        body, model = self._pooling(request, received)
        inputs = body.input if isinstance(body.input, list) else [body.input]
        data = [
            {"index": i, "object": "embedding", "embedding": _vector(text, body.encoding_format)}
            for i, text in enumerate(inputs)
        ]
        return responses.json(_listed("embd", model, data))

    async def score(self, request: web.Request, received: Received) -> web.Response:
        """A score per document."""
        body, model = self._pooling(request, received)
        data = [{"index": i, "object": "score", "score": _share(text)} for i, text in enumerate(body.documents)]
        return responses.json(_listed("embd", model, data))

    async def rerank(self, request: web.Request, received: Received) -> web.Response:
        """The documents, best first."""
        body, model = self._pooling(request, received)
        results = [
            {"index": i, "document": {"text": text, "multi_modal": None}, "relevance_score": _share(text)}
            for i, text in enumerate(body.documents)
        ]
        results.sort(key=lambda result: -float(str(result["relevance_score"])))
        counts = {"prompt_tokens": 1, "total_tokens": 1}
        return responses.json({"id": f"rerank-{uuid.uuid4().hex}", "model": model, "usage": counts, "results": results})

    async def classify(self, request: web.Request, received: Received) -> web.Response:
        """One class."""
        _, model = self._pooling(request, received)
        data = [{"index": 0, "label": "LABEL_0", "probs": [1.0], "num_classes": 1}]
        return responses.json(_listed("classify", model, data))

    async def pooling(self, request: web.Request, received: Received) -> web.Response:
        """One vector per token, of one token."""
        body, model = self._pooling(request, received)
        data = [{"index": 0, "object": "pooling", "data": [_vector(str(body.input), "float")]}]
        return responses.json(_listed("pool", model, data))

    async def transcription(self, request: web.Request, received: Received) -> web.Response:
        """Say how many bytes the file has, and their digest."""
        kind = request.headers.get("content-type", "").encode("utf-8", "surrogateescape")
        head = b"content-type: " + kind + b"\r\n\r\n"
        form = {
            part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
            for part in message_from_bytes(head + received.body).walk()
            if not part.is_multipart()
        }
        file, model = form.get("file"), form.get("model")
        if not isinstance(file, bytes):
            raise protocol.invalid("a file is needed", "file")
        protocol.check_model(model.decode() if isinstance(model, bytes) else None, self._names)
        text = f"{len(file)} bytes, {hashlib.sha256(file).hexdigest()}"
        return responses.json({"text": text, "usage": {"type": "duration", "seconds": 1}})

    def _pooling(self, request: web.Request, received: Received) -> tuple[PoolingRequest, str]:
        body = protocol.parse(received.body, request.content_type, PoolingRequest)
        return body, protocol.check_model(body.model, self._names)


def _listed(kind: str, model: str, data: list[dict[str, Any]]) -> dict[str, Any]:
    made = {"id": f"{kind}-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": model}
    counts = {"prompt_tokens": len(data), "total_tokens": len(data)}
    counts_of_none = {"completion_tokens": 0, "prompt_tokens_details": None}
    return made | {"data": data, "usage": counts | counts_of_none}


def _share(text: str) -> float:
    return hashlib.sha256(text.encode()).digest()[0] / 255


def _vector(text: str, encoding: str) -> list[float] | str:
    numbers = [byte / 256 for byte in hashlib.sha256(text.encode()).digest()[:8]]
    return base64.b64encode(struct.pack("<8f", *numbers)).decode() if encoding == "base64" else numbers


async def _stream(request: web.Request, made: dict[str, Any]) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await answer.prepare(request)
    for event in _events(made):
        await answer.write(b"event: " + event["type"].encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n")
    return answer


def _events(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    counts = made["usage"]
    begun = made | {"content": [], "stop_reason": None, "usage": counts | {"output_tokens": 0}}
    yield {"type": "message_start", "message": begun}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for word in made["content"][0]["text"].split(" "):
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": made["stop_reason"]}, "usage": counts}
    yield {"type": "message_stop"}
