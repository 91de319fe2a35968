"""The simulated pods' tokenizer and chat template as files, as a model's directory holds them.

Byte-level BPE without merges gives a text's bytes; the template writes what `tokens.render_chat` does. What it cannot
say is left out: the spellings of tokens that stand for nothing (`<|261|>` and on) and `chat_template_kwargs`.
"""

import json
from pathlib import Path
from typing import Any, Final

from loadgen.tokens import BOS, END, SETTINGS, TOOLS, TURN, spell

_SPECIAL: Final = (BOS, TURN, END, TOOLS, SETTINGS)
_PRINTABLE: Final = (*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1))
# `messages` as they are given; content is text, or parts that are text.
_TEMPLATE: Final = """\
<|bos|>
{%- if tools %}<|tools|>{{ tools | tojson(sort_keys=true, separators=(",", ":")) }}<|end|>{% endif -%}
{%- for message in messages -%}
<|turn|>{{ message.role + "\\n" + (message.content or "") }}
{%- if message.tool_calls %}{{ message.tool_calls | tojson(sort_keys=true, separators=(",", ":")) }}{% endif -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt %}<|turn|>{{ "assistant\\n" }}{% endif -%}
"""


def write(directory: Path) -> Path:
    """Write tokenizer.json, tokenizer_config.json, config.json and the template; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": spell(BOS)},
        "config.json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    (directory / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
    return directory


def _tokenizer() -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bos = {"id": spell(BOS), "type_id": 0}
    return {
        "version": "1.0",
        "added_tokens": [_added(token) for token in _SPECIAL],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": bos}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": bos}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {spell(BOS): {"id": spell(BOS), "ids": [BOS], "tokens": [spell(BOS)]}},
        },
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": _alphabet(), "merges": []},
    }


def _added(token: int) -> dict[str, Any]:
    no = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": spell(token), "special": True, **no}


def _alphabet() -> dict[str, int]:
    """Each byte's character in byte-level vocabularies: itself where it can be printed, else one from U+0100 on."""
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    return {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(others)}
