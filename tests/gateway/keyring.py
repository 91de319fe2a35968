"""API keys for tests, and their file."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from tests.gateway.fleet import MODEL

ALICE, BOB, ROOT = "sk-alice-1", "sk-bob-2", "sk-root-3"
ENTRIES: list[dict[str, Any]] = [
    {"id": "alice", "key": ALICE, "models": [MODEL], "max_concurrent": 1},
    {"id": "bob", "sha256": sha256(BOB.encode()).hexdigest(), "models": ["other"]},
    {"id": "root", "key": ROOT, "admin": True},
]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def write(file: Path, entries: Any) -> None:
    file.write_text(yaml.safe_dump({"keys": entries}))
