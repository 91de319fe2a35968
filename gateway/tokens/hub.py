"""A model's tokenizer files from a Hugging Face hub, into the cache that all its libraries share. No weights."""

from __future__ import annotations

import os
import re

import structlog

from gateway.tokens.model_files import FilesMissing

_log = structlog.get_logger("gateway.tokens")
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "config.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "tekken.json",
)
_HEAD_S = 10.0


def fetch(name: str, revision: str) -> None:
    """Bring the files of `ORG/NAME` into the cache. Raises FilesMissing: there is no such name, or no hub in reach.

    The libraries' own variables hold: `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`, `HF_HOME`.
    """
    if not _NAME.fullmatch(name):
        raise FilesMissing(f"{name} is no name on a hub")
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - half a second, and seldom needed
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    disable_progress_bars()
    _log.info("fetching a model's tokenizer files", model=name, revision=revision)
    try:
        snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(_FILES),
            etag_timeout=_HEAD_S,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    except Exception as error:  # the library's, its HTTP client's and the file system's
        raise FilesMissing(f"{name} cannot be fetched: {error}") from error
