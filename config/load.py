"""A configuration file → `Config`, or one line that says what is wrong and where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from config.out_of_tree import spelt_out
from config.schema import Config, PodConfig

_KEY_OF = "key` in `"  # msgspec's path to a mapping's key


class ConfigError(Exception):
    """One line: file, path inside it, reason."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML would silently keep the last."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node


def load(path: Path) -> Config:
    """Read and validate a YAML (or JSON) file. Raises ConfigError."""
    data = yaml_data(path, _yaml_reason)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: $: expected a mapping such as `pods: [{{url: http://10.0.0.1:8000}}]`")
    return decode(data, source=str(path))


def yaml_data(path: Path, reason: Callable[[yaml.YAMLError], str]) -> object:
    """What a YAML file holds. Raises ConfigError; `reason` words what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{path}: {why}") from None
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {reason(error)}") from None
    except (ValueError, RecursionError) as error:  # PyYAML lets these through: 2026-99-99 looks like a date
        raise ConfigError(f"{path}: {reason(yaml.YAMLError(f'not usable YAML: {error}'))}") from None


def from_urls(urls: list[str]) -> Config:
    """The defaults in front of these pods. Raises ConfigError."""
    return decode({"pods": [{"url": url} for url in urls]}, source="--pod")


def decode(data: dict[str, Any], *, source: str) -> Config:
    """A decoded mapping → `Config`. Raises ConfigError; `source` names where the mapping came from."""
    if not data.get("pods"):
        raise ConfigError(f"{source}: $.pods: no pods; list at least one, such as {{url: http://10.0.0.1:8000}}")
    try:
        return msgspec.convert(spelt_out(data), Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {path_and_reason(error)}") from error


def path_and_reason(error: msgspec.ValidationError) -> str:
    """`$.path: reason` of what msgspec refuses."""
    reason, at, place = str(error).rpartition(" - at `")
    if not at:
        return f"$: {error}"
    path = place.rstrip("`")
    if path.startswith(_KEY_OF):
        return f"{path.removeprefix(_KEY_OF)}: a key: {reason}"
    return f"{path}: {reason}"


def _yaml_reason(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    parts = (getattr(error, "context", None), getattr(error, "problem", None))
    return f"line {mark.line + 1}, column {mark.column + 1}: " + ", ".join(part for part in parts if part)


__all__ = ["Config", "ConfigError", "PodConfig", "decode", "from_urls", "load", "path_and_reason", "yaml_data"]
