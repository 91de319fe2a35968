# ruff: noqa: S106  # special tokens are no passwords
"""Record tests/data/golden/chat_prompts.json: what vLLM renders of every body with every template of the token tests.

Run with the engine environment's Python from the checkout: `python -m tests.engine.record_prompts`. No pod and no model
are needed: the request models, the message parser and the template code of vLLM are called directly.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.gateway.tokens.conversations import BODIES
from tests.gateway.tokens.templates import TEMPLATES

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "chat_prompts.json"
MODEL: Any = SimpleNamespace(
    allowed_local_media_path="",
    allowed_media_domains=None,
    code_revision=None,
    enable_prompt_embeds=False,
    hf_config=SimpleNamespace(model_type="llama"),
    model="model",
    multimodal_config=None,
    revision=None,
    tokenizer="model",
    tokenizer_revision=None,
    trust_remote_code=False,
)


def tokenizer_with(template: str) -> Any:
    """A tokenizer of one word that renders with this template."""
    from tokenizers import Tokenizer, models  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415
    from vllm.renderers import hf  # noqa: PLC0415

    hf._try_get_processor_chat_template = lambda *_, **__: None  # there is no processor to look for
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=template
    )
    tokenizer.name_or_path = template
    return tokenizer


def rendered(template: str, body: dict[str, Any]) -> str | None:
    """The prompt's text; None: the engine refuses the request."""
    from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: PLC0415  # the engine's environment only
        ChatCompletionRequest,
    )
    from vllm.exceptions import VLLMValidationError  # noqa: PLC0415
    from vllm.renderers import hf, merge_kwargs  # noqa: PLC0415
    from vllm.renderers.chat_utils import parse_chat_messages  # noqa: PLC0415

    tokenizer = tokenizer_with(template)
    try:
        request = ChatCompletionRequest.model_validate(copy.deepcopy(body))
        tools = [tool.model_dump() for tool in request.tools] if request.tools else None
        defaults = merge_kwargs({}, {"tools": tools, "tokenize": False})
        params = request.build_chat_params(None, "auto").with_defaults(defaults)
        form = hf.resolve_chat_template_content_format(None, tools, "auto", tokenizer, model_config=MODEL)
        messages, _, _ = parse_chat_messages(request.messages, MODEL, form)
        text: str = hf.safe_apply_chat_template(MODEL, tokenizer, messages, **params.get_apply_chat_template_kwargs())
    except (ValueError, VLLMValidationError):
        return None
    return text


def main() -> None:
    """Write the file."""
    found = {
        name: {kind: rendered(template, body) for kind, body in BODIES.items()} for name, template in TEMPLATES.items()
    }
    GOLDEN.write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    main()
