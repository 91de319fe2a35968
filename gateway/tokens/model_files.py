"""A model's tokenizer files: where they are, and what transformers reads from them.

A model is named by a directory, or by its hub name, which is looked up in a Hugging Face cache
(`models--ORG--NAME/refs/REVISION` names a folder of `snapshots/`). Nothing is fetched here (`hub`).

Which template counts (transformers 5): `chat_template.jinja` and `additional_chat_templates/*.jinja`, where there are
any, displace `chat_template` of `tokenizer_config.json`, which is a text or a list of named texts. With several, the
one called `tool_use` serves requests with tools and `default` the others. `chat_template.json` is the older place of a
multimodal processor's template, which vLLM prefers for requests without tools.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gateway.tokens.refusal import Refused

_TEMPLATE_FILE = "chat_template.jinja"
_TEMPLATE_FOLDER = "additional_chat_templates"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_NATIVE = {
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "DeepseekV4ForConditionalGeneration": "deepseek_v4",
    "DeepseekV41ForCausalLM": "deepseek_v41",
    "InklingForCausalLM": "inkling",
    "InklingForConditionalGeneration": "inkling",
    "KimiK3ForConditionalGeneration": "kimi_k3",
    "MoonshotKimiaForCausalLM": "kimi_audio",
}
"""Architectures for which vLLM 0.32 renders conversations in code, by its name for that (`config/model.py`)."""
_GENERIC_CLASSES = frozenset({None, "PreTrainedTokenizerFast", "TokenizersBackend"})


class FilesMissing(Exception):
    """The model's tokenizer files are not at hand: says which, and where they were looked for."""


class ModelFiles(Struct, frozen=True, kw_only=True):
    """What was read. `templates` are by name; a single one is called "default"."""

    directory: Path
    tokenizer: Path
    config: dict[str, Any]
    special_tokens: dict[str, str]
    templates: dict[str, str]
    processor_template: str | None
    rendered_by_engine: str
    """Why the engine does not render this model's conversations with the template; empty where it does."""
    doubt: str
    """Why the engine may not tokenize as tokenizer.json says; empty where there is no reason to think so."""

    def template(self, given: str | None, *, with_tools: bool) -> str:
        """The text of the template that serves: `given`, as text or by name, else the model's. Raises `Refused`."""
        if given is not None:
            return self.templates.get(given, given) if len(self.templates) > 1 else given
        if not with_tools and self.processor_template is not None:
            return self.processor_template
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in self.templates:
                return self.templates[name]
        raise Refused("no-template", f"{self.directory} has no chat template")


def find_model(name: str, *, cache: Path | None = None, revision: str = "main") -> ModelFiles:
    """The files of a directory or of a hub name in `cache` (default: where the Hugging Face libraries keep it).

    Raises `FilesMissing`. Reads everything but the tokenizer itself.
    """
    directory = _directory(name, cache if cache is not None else _default_cache(), revision)
    tokenizer = directory / "tokenizer.json"
    if not tokenizer.is_file():
        raise FilesMissing(f"{directory} has no tokenizer.json")
    config = _json(directory / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= _json(directory / "special_tokens_map.json")
    model = _json(directory / "config.json")
    return ModelFiles(
        directory=directory,
        tokenizer=tokenizer,
        config=config,
        special_tokens=_special_tokens(config),
        templates=_templates(directory, config),
        processor_template=_processor_template(directory),
        rendered_by_engine=_rendered_by_engine(directory, model),
        doubt=_doubt(config),
    )


def _directory(name: str, cache: Path, revision: str) -> Path:
    if (given := Path(name).expanduser()).is_dir():
        return given
    if given.is_absolute():
        raise FilesMissing(f"{name} is no directory here")
    folder = cache / f"models--{name.replace('/', '--')}"
    if not folder.is_dir():
        raise FilesMissing(f"{name} is no directory, and {cache} has no {folder.name}")
    reference = folder / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = folder / "snapshots" / commit
    if not snapshot.is_dir():
        raise FilesMissing(f"{folder} has no snapshot of the revision {revision}")
    return snapshot


def _default_cache() -> Path:
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()


def _json(path: Path) -> dict[str, Any]:
    """An object, or an empty one where there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FilesMissing(f"{path} cannot be read: {error}") from error


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    found = {name: config.get(name) for name in _SPECIAL_TOKENS}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    files = {path.stem: path for path in (directory / _TEMPLATE_FOLDER).glob("*.jinja")}
    if (default := directory / _TEMPLATE_FILE).is_file():
        files["default"] = default
    if files:
        return {name: read_text(path) for name, path in files.items()}
    given = config.get("chat_template")
    if isinstance(given, list):
        given = {entry["name"]: entry["template"] for entry in given if isinstance(entry, dict)}
    if isinstance(given, str):
        given = {"default": given}
    return given if isinstance(given, dict) else {}


def read_text(path: Path) -> str:
    """A template's text. Raises `FilesMissing`."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FilesMissing(f"{path} cannot be read: {error}") from error


def _processor_template(directory: Path) -> str | None:
    if (directory / _TEMPLATE_FILE).is_file():
        return None  # the processor's and the tokenizer's alike
    template = _json(directory / "chat_template.json").get("chat_template")
    return template if isinstance(template, str) else None


def _rendered_by_engine(directory: Path, model: dict[str, Any]) -> str:
    if model.get("model_type") == "gpt_oss":
        return "gpt-oss prompts are harmony messages"
    for architecture in model.get("architectures") or []:
        if mode := _NATIVE.get(architecture):
            return f"the tokenizer mode of this model is {mode}"
    if any(directory.glob("consolidated*.safetensors")) and (
        (directory / "tekken.json").is_file() or any(directory.glob("tokenizer.model.v*"))
    ):
        return "the tokenizer mode of this model is mistral"
    return ""


def _doubt(config: dict[str, Any]) -> str:
    name = config.get("tokenizer_class")
    if name in _GENERIC_CLASSES:
        return ""
    return f"transformers 5 may build the tokenizer class {name} anew instead of reading tokenizer.json"
