"""Models as directories: a tokenizer built here, a configuration and templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gateway.tokens.built import built
from tests.gateway.tokens.templates import TEMPLATES


def lay(directory: Path, tokenizer: str = "llama_3", template: str | None = "chatml", **config: Any) -> Path:
    """Write a model's tokenizer files; `config` goes to tokenizer_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    built(tokenizer).save(str(directory / "tokenizer.json"))
    if template is not None:
        config.setdefault("chat_template", TEMPLATES[template])
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory
