"""Scenarios and arms by name, or in YAML files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

_Kind = TypeVar("_Kind")


def named(
    what: str,
    name: str,
    known: Mapping[str, _Kind],
    kind: type[_Kind],
    spelt_out: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> _Kind:
    """One of those that are `known`, or what a YAML file says. Raises ValueError with the reason.

    `spelt_out` makes of a file's mapping one that decodes.
    """
    if name in known:
        return known[name]
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"no {what} {name!r}; there are {', '.join(known)}, and files that end in .yaml")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        return msgspec.convert(spelt_out(data) if isinstance(data, dict) else data, kind)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise ValueError(f"{name}: {error}") from error
