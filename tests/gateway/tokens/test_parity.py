# ruff: noqa: S106  # special tokens are no passwords
"""The same directory in transformers and here: text and ids must be equal. Needs the `parity` extra."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.tokens.chat import ChatFields
from gateway.tokens.conversation import conversation, tools
from gateway.tokens.local import LocalTokenizer
from gateway.tokens.model_files import find_model
from gateway.tokens.template import compiled
from tests.gateway.tokens.built import SAFE
from tests.gateway.tokens.conversations import BODIES
from tests.gateway.tokens.models import lay
from tests.gateway.tokens.templates import TEMPLATES

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")


def theirs(tokenizer: Any, source: str, ask: ChatFields) -> list[int] | None:
    """What transformers makes of the engine's form of the conversation; None: an error."""
    template = compiled(source)
    try:
        messages = conversation(ask.messages, template.content_format, developer=template.knows_developer)
        own = {"documents": ask.documents, "reasoning_effort": ask.reasoning_effort}
        if ask.reasoning_effort is not None:
            own["enable_thinking"] = ask.reasoning_effort != "none"
        own |= ask.chat_template_kwargs or {}
        own.pop("padding", None)  # the engine has text made, where this does nothing
        ids: list[int] = tokenizer.apply_chat_template(
            messages,
            tools=None if ask.tools is None else tools(ask.tools),
            add_generation_prompt=ask.add_generation_prompt,
            continue_final_message=ask.continue_final_message,
            return_dict=False,
            **{name: value for name, value in own.items() if value is not None},
        )
    except Exception:  # noqa: BLE001  # transformers raises what the template raised
        return None
    return ids


@pytest.mark.parametrize("build", SAFE)
@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_have_the_ids_of_transformers(tmp_path: Path, name: str, build: str) -> None:
    lay(tmp_path, build, name, tokenizer_class="TokenizersBackend", bos_token="<s>", eos_token="</s>")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    local = LocalTokenizer(find_model(str(tmp_path)))
    for kind, body in BODIES.items():
        ask = msgspec.convert(body, ChatFields)
        expected = theirs(tokenizer, TEMPLATES[name], ask)
        told = local.encode_chat(ask)
        assert (None if told.ids is None else told.ids.tolist()) == expected, kind


@pytest.mark.parametrize("build", SAFE)
def test_texts_have_the_ids_of_transformers(tmp_path: Path, build: str) -> None:
    added = {"9999": {"content": "<new>", "special": True, "normalized": False}}
    lay(
        tmp_path,
        build,
        tokenizer_class="TokenizersBackend",
        eos_token="</s>",
        added_tokens_decoder=added,
        pad_token="<p>",
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    local = LocalTokenizer(find_model(str(tmp_path)))
    for text in ("", " Hello  <new>\n", "a<|im_end|> b<p></s>", "\u4f60\u597d \U0001f469\u200d\U0001f4bb"):
        for surrounded in (True, False):
            told = local.encode_text(text, add_special_tokens=surrounded)
            assert told.ids is not None
            assert told.ids.tolist() == tokenizer(text, add_special_tokens=surrounded)["input_ids"]
