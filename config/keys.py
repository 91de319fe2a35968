"""A file of API keys → `ApiKey`s.

Of a key only its SHA-256 is kept, and the file need not hold more either. What is wrong with a file is told by place
and rule, never by content: what stands in a wrong place may be a secret.
"""

from __future__ import annotations

import re
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta, Struct

from config.load import ConfigError, path_and_reason, yaml_data
from config.section import Positive

_VISIBLE = re.compile(r"[!-~]+")  # what a header carries as it is
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


class ApiKey(Struct, frozen=True):
    """Who a request comes from, and what they may. `models`, `max_concurrent` None: no restriction.

    `priority` is the highest that their requests have where requests wait, `share` the weight of what goes to them.
    """

    id: str
    digest: bytes
    models: frozenset[str] | None = None
    max_concurrent: int | None = None
    admin: bool = False
    priority: int = 0
    share: float = 1.0

    def __repr__(self) -> str:
        return f"ApiKey({self.id!r})"

    def allows(self, model: str) -> bool:
        """Whether requests for `model` are served."""
        return self.models is None or model in self.models


class _Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(pattern=r"^[\w.@:+-]{1,64}$")]
    key: str | None = None
    sha256: str | None = None
    models: tuple[str, ...] | None = None
    max_concurrent: Positive | None = None
    admin: bool = False
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    share: Annotated[float, Meta(ge=0.001, le=1000)] = 1.0

    def __post_init__(self) -> None:
        if (self.key is None) == (self.sha256 is None):
            raise ValueError("either key or sha256 is needed")
        if self.key is not None and _VISIBLE.fullmatch(self.key) is None:
            raise ValueError("key is not visible ASCII characters without spaces")
        if self.sha256 is not None and _DIGEST.fullmatch(self.sha256) is None:
            raise ValueError("sha256 is not 64 hexadecimal digits")


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[_Entry, ...]

    def __post_init__(self) -> None:
        twice = [name for name, n in Counter(entry.id for entry in self.keys).items() if n > 1]
        if twice:
            raise ValueError(f"id {twice[0]} is listed twice")
        names: dict[bytes, str] = {}
        for entry in self.keys:
            if (other := names.setdefault(_digest(entry), entry.id)) != entry.id:
                raise ValueError(f"{other} and {entry.id} have the same key")


def load_keys(path: str) -> tuple[ApiKey, ...]:
    """Read and validate a YAML (or JSON) file, `{keys: [{id, key | sha256, …}]}`. Raises ConfigError."""
    data = yaml_data(Path(path), _place)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: $: expected a mapping with `keys`")
    try:
        entries = msgspec.convert(data, _File).keys
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_without_names(path_and_reason(error))}") from None
    return tuple(
        ApiKey(
            entry.id,
            _digest(entry),
            None if entry.models is None else frozenset(entry.models),
            entry.max_concurrent,
            entry.admin,
            entry.priority,
            entry.share,
        )
        for entry in entries
    )


def _digest(entry: _Entry) -> bytes:
    return bytes.fromhex(entry.sha256) if entry.sha256 is not None else sha256((entry.key or "").encode()).digest()


def secret(path: str) -> str:
    """A file's one line. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or 'not ASCII'}") from None
    return require_secret(text, path)


def require_secret(text: str, where: str) -> str:
    """`text`, if a header can carry it as a key. Raises ConfigError, naming only where it came from."""
    if _VISIBLE.fullmatch(text) is None:
        raise ConfigError(f"{where}: not one line of visible ASCII characters without spaces")
    return text


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return "not usable YAML" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: not usable YAML"


def _without_names(reason: str) -> str:
    """Leave out the name of an unknown field, which in a file of another form is a key."""
    return re.sub(r"unknown field `.*`", "a field other than `keys` with id, key, sha256, models, …", reason)
