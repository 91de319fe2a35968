"""The schema says what the structs take, and what the loader takes besides."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from config.json_schema import json_schema
from config.presets import PRESETS
from config.schema import Config
from scorers import AnyFilter, AnyPicker, AnyScorer

DEFS: dict[str, Any] = json_schema()["$defs"]


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"]
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def test_it_can_be_written_and_every_reference_leads_somewhere() -> None:
    schema = msgspec.json.decode(msgspec.json.encode(json_schema()))
    assert set(references(schema)) == {f"#/$defs/{name}" for name in DEFS}
    assert set(DEFS["Config"]["properties"]) == set(Config.__struct_fields__)


def test_it_has_every_scorer_picker_filter_and_preset() -> None:
    for kind in (*get_args(AnyScorer), *get_args(AnyPicker), *get_args(AnyFilter)):
        assert DEFS[kind.__name__]["properties"]["type"] == {"enum": [kind.__struct_config__.tag]}
    assert set(DEFS["Placement"]["properties"]["preset"]["anyOf"][0]["enum"]) == set(PRESETS)


def test_a_scorer_may_be_of_any_type_that_is_module_and_class() -> None:
    assert set(DEFS["OutOfTree"]["properties"]) == {"type", "weight", "params"}
    pattern = re.compile(DEFS["OutOfTree"]["properties"]["type"]["pattern"])
    assert pattern.search("my_company.scoring:Weather")
    assert not any(pattern.search(text) for text in ("queue", "a:b:c", "a.b", "x y:Z"))
    assert "discriminator" not in DEFS["Placement"]["properties"]["scorers"]["items"]
