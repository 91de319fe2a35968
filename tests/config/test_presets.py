"""Placements by name."""

from typing import Any, get_args

import msgspec
import pytest

from config.load import ConfigError, decode
from config.presets import DEFAULT, PRESETS, PresetName
from config.schema import Placement
from scorers import (
    ExpectedTtft,
    KvUtilization,
    MaxScore,
    Prefix,
    Queue,
    RandomPick,
    RoleFilter,
    Softmax,
    TokenLoad,
    WeightedRandom,
)


def placement(**fields: Any) -> Placement:
    return decode({"pods": [{"url": "http://a:1"}], "placement": fields}, source="f.yaml").placement


def test_every_name_has_a_placement() -> None:
    assert set(PRESETS) == set(get_args(PresetName))


def test_the_presets_are_the_published_arms() -> None:
    loads = (Queue(weight=3), KvUtilization(weight=2))
    assert PRESETS["affinity"] == ((Prefix(weight=3), Queue(weight=2), KvUtilization(weight=2)), MaxScore())
    assert PRESETS["load"] == (loads, WeightedRandom())
    assert PRESETS["token-load"] == ((TokenLoad(),), MaxScore())


def test_the_default_is_the_expected_first_token() -> None:
    assert PRESETS["expected-ttft"] is DEFAULT
    assert ((ExpectedTtft(),), Softmax()) == DEFAULT
    assert (placement().scorers, placement().picker) == DEFAULT


@pytest.mark.parametrize("name", PRESETS)
def test_a_name_stands_for_scorers_and_a_picker(name: PresetName) -> None:
    named = placement(preset=name)
    assert (named.scorers, named.picker) == PRESETS[name]
    assert named == Placement(preset=name)


def test_filters_go_with_a_preset() -> None:
    assert placement(preset="load", filters=[{"type": "role"}]).filters == (RoleFilter(),)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"scorers": []}, "scorers"),
        ({"scorers": [{"type": "expected-ttft"}]}, "scorers"),
        ({"picker": {"type": "softmax"}}, "picker"),
        ({"picker": {"type": "random"}}, "picker"),
    ],
)
def test_a_preset_excludes_what_it_stands_for_even_where_that_is_the_default(fields: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        placement(preset="load", **fields)
    assert str(caught.value) == f"f.yaml: $.placement: preset and {part} exclude each other"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_being_written_and_read(name: PresetName) -> None:
    config = decode({"pods": [{"url": "http://a:1"}], "placement": {"preset": name}}, source="")
    assert decode(msgspec.to_builtins(config), source="") == config


def test_without_the_preset_another_picker_can_take_its_place() -> None:
    changed = msgspec.structs.replace(Placement(preset="load"), preset=None, picker=RandomPick())
    assert changed == Placement(scorers=PRESETS["load"].scorers, picker=RandomPick())


def test_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\$\.placement\.preset: Invalid enum value 'fastest'"):
        placement(preset="fastest")
