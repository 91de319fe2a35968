"""Record tests/data/golden/converted_prompts.json: the prompts that vLLM makes of other bodies than chats.

Run with the engine environment's Python from the checkout: `python -m tests.engine.record_conversions`. No pod and no
model are needed: vLLM's request models, its conversion and its renderer are called directly, with a tokenizer that
spells prompts out in bytes.
"""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.embed.io_processor import EmbedIOProcessor
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMValidationError
from vllm.inputs import tokens_input
from vllm.renderers.hf import HfRenderer
from vllm.renderers.online_renderer import OnlineRenderer

from tests.engine.record_prompts import MODEL, tokenizer_with
from tests.gateway.tokens.converted import (
    EMBEDDINGS,
    HABITS_OF,
    MESSAGES,
    RESPONSES,
    SHOWN_WITH,
    STORED,
)

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "converted_prompts.json"
_MODEL = SimpleNamespace(
    **vars(MODEL), max_model_len=1 << 20, is_encoder_decoder=False, encoder_config=None, pooler_config=None
)


class _Renderer(HfRenderer):
    """vLLM's own, less what needs a whole configuration; remembers whether special tokens were asked for."""

    def __init__(self, template: str) -> None:
        self.model_config = _MODEL
        self.tokenizer = tokenizer_with(template)
        self.use_unified_vision_chunk = False
        self.add_special_tokens: bool | None = None

    async def render_chat_async(self, conversations: Any, chat_params: Any, tok_params: Any, **_: Any) -> Any:
        self.add_special_tokens = tok_params.add_special_tokens
        conversation, prompt = self.render_messages(conversations[0], chat_params)
        return [conversation], [tokens_input(list(prompt["prompt"].encode()), prompt=prompt["prompt"])]

    def shutdown(self) -> None:
        """There is nothing to end."""


class Engine:
    """A server's conversion for one template."""

    def __init__(self, template: str) -> None:
        self._renderer = _Renderer(template)
        self._online = OnlineRenderer(
            _MODEL,
            self._renderer,
            request_logger=None,
            chat_template=None,
            chat_template_content_format="auto",
            enable_auto_tools=True,
            tool_parser="hermes",
        )
        serving = AnthropicServingMessages.__new__(AnthropicServingMessages)
        serving.online_renderer = self._online
        serving.model_config = _MODEL
        self.joins_system = serving._should_merge_inline_system(self._online)
        self.disabled_effort = asyncio.run(serving._probe_disabled_thinking_effort())

    def response(self, body: dict[str, Any], earlier: Any = None, output: Any = None) -> tuple[str, bool, Any] | None:
        """The prompt, whether it gets special tokens, and the messages; None: the request is refused."""
        try:
            request = ResponsesRequest.model_validate(copy.deepcopy(body))
            made = asyncio.run(
                self._online.render_responses(request, previous_messages=earlier, previous_response_outputs=output)
            )
        except _REFUSALS:
            return None
        if isinstance(made, ErrorResponse):
            return None
        return made.engine_input["prompt"], self._renderer.add_special_tokens is True, made.messages

    def message(self, body: dict[str, Any]) -> tuple[str, bool] | None:
        """Likewise, without the messages."""
        given = {"model": "m", "max_tokens": 16} | copy.deepcopy(body)
        try:
            chat = AnthropicServingMessages.to_chat_completion_request(
                AnthropicMessagesRequest.model_validate(given),
                merge_inline_system=self.joins_system,
                disabled_thinking_effort=self.disabled_effort,
            )
            made = asyncio.run(self._online.render_chat(chat))
        except _REFUSALS:
            return None
        if isinstance(made, ErrorResponse):
            return None
        return made[1][0]["prompt"], self._renderer.add_special_tokens is True

    def embedding(self, body: dict[str, Any]) -> list[tuple[str | list[int], bool]] | None:
        """The prompts, each with whether it gets special tokens."""
        pooling = EmbedIOProcessor.__new__(EmbedIOProcessor)
        pooling.model_config, pooling.renderer = _MODEL, self._renderer
        pooling.chat_template, pooling.chat_template_content_format = None, "auto"
        pooling.trust_request_chat_template = False
        pooling.template_kwargs = pooling.tool_dicts = None
        try:
            request = TypeAdapter(EmbeddingRequest).validate_python(copy.deepcopy(body))
            context = {"request": request, "pooling_params": None, "lora_request": None, "priorities": None}
            asked = pooling.get_request_factory_online(SimpleNamespace(**context, prompt_extras=None))
            return [(self._embedded(one), one["tok_params"].add_special_tokens) for one in asked]
        except _REFUSALS:
            return None

    def _embedded(self, asked: Any) -> str | list[int]:
        if "conversations" in asked:
            return str(self._renderer.render_messages(asked["conversations"], asked["chat_params"])[1]["prompt"])
        given = asked["prompts"]
        return list(given["prompt_token_ids"]) if "prompt_token_ids" in given else str(given["prompt"])


# What the server answers with an error, meant or not: a list that is empty where the conversion takes its first part.
_REFUSALS = (ValidationError, VLLMValidationError, ValueError, TypeError, AttributeError, IndexError, AssertionError)


def main() -> None:
    """Write the file."""
    engines = {name: Engine(template) for name, template in SHOWN_WITH.items()}
    found: dict[str, Any] = {"responses": {}, "messages": {}, "special": {"responses": [], "messages": []}}
    for name, engine in engines.items():
        responses = {kind: engine.response(body) for kind, body in RESPONSES.items()}
        messages = {kind: engine.message(body) for kind, body in MESSAGES.items()}
        for endpoint, made in (("responses", responses), ("messages", messages)):
            found[endpoint][name] = {kind: None if one is None else one[0] for kind, one in made.items()}
            special = {one[1] for one in made.values() if one is not None}
            found["special"][endpoint] = sorted(special | set(found["special"][endpoint]))
    found["stored"] = _stored(engines["everything"])
    found["embeddings"] = {kind: engines["qwen-3"].embedding(body) for kind, body in EMBEDDINGS.items()}
    probed = {name: Engine(template) for name, template in HABITS_OF.items()}
    found["habits"] = {name: [engine.joins_system, engine.disabled_effort] for name, engine in probed.items()}
    GOLDEN.write_text(json.dumps(found, indent=0) + "\n")


def _stored(engine: Engine) -> list[str]:
    """The prompts of one response after the other, each going on from the one before it."""
    from openai.types.responses import ResponseOutputItem  # noqa: PLC0415

    prompts, earlier, output = [], None, None
    for body, answered in STORED:
        made = engine.response(body, earlier, output)
        assert made is not None
        prompts.append(made[0])
        earlier, output = made[2], TypeAdapter(list[ResponseOutputItem]).validate_python(answered)
    return prompts


if __name__ == "__main__":
    main()
