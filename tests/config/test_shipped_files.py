import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import msgspec.inspect as inspected
import pytest
import yaml

import config
from config.load import Config, PodConfig, load
from scorers import AnyFilter, AnyPicker, AnyScorer

FOLDER = Path(config.__file__).parent
GATEWAY = FOLDER / "gateway.yaml"
EXAMPLES = sorted((FOLDER / "examples").glob("*.yaml"))
_OFF_BY_DEFAULT = re.compile(r"^( *)#(?=\w+: )", re.MULTILINE)


def switched_on() -> str:
    """gateway.yaml with the settings that it only shows."""
    return _OFF_BY_DEFAULT.sub(r"\1", GATEWAY.read_text(encoding="utf-8"))


def missing(type_: inspected.Type, data: Any, path: str) -> Iterator[str]:
    """Paths of the fields of `type_` that `data` does not mention."""
    if isinstance(type_, inspected.UnionType):
        structs = {kind.tag: kind for kind in type_.types if isinstance(kind, inspected.StructType)}
        if isinstance(data, dict):
            yield from missing(structs[data["type"]], data, path)
    elif isinstance(type_, inspected.StructType):
        for field in type_.fields:
            here = f"{path}.{field.encode_name}"
            if field.encode_name in data:
                yield from missing(field.type, data[field.encode_name], here)
            else:
                yield here
    elif isinstance(type_, inspected.VarTupleType):
        for i, item in enumerate(data):
            yield from missing(type_.item_type, item, f"{path}[{i}]")


def struct_types(type_: inspected.Type) -> Iterator[type]:
    """Every struct that a configuration can be made of."""
    if isinstance(type_, inspected.StructType):
        yield type_.cls
        for field in type_.fields:
            yield from struct_types(field.type)
    elif isinstance(type_, inspected.UnionType):
        for kind in type_.types:
            yield from struct_types(kind)
    elif isinstance(type_, inspected.VarTupleType):
        yield from struct_types(type_.item_type)


def test_the_shipped_configuration_is_the_default_in_front_of_two_pods() -> None:
    loaded = load(GATEWAY)
    assert loaded == Config(pods=(PodConfig(url="http://10.0.0.1:8000"), PodConfig(url="http://10.0.0.2:8000")))


def test_it_writes_every_default_out() -> None:
    data = yaml.safe_load(GATEWAY.read_text(encoding="utf-8"))
    data["pods"] = yaml.safe_load(switched_on())["pods"][:1]
    assert list(missing(inspected.type_info(Config), data, "$")) == []


def test_it_mentions_every_field_of_every_struct() -> None:
    text = GATEWAY.read_text(encoding="utf-8")
    structs = set(struct_types(inspected.type_info(Config)))
    assert PodConfig in structs
    for struct in structs:
        for field in msgspec.structs.fields(struct):
            found = re.search(rf"(^ *(- |#)?|[{{ ]){field.encode_name}:", text, re.MULTILINE)
            assert found, f"{struct}: {field.encode_name}"


def test_it_names_every_scorer_picker_and_filter_there_is() -> None:
    text = GATEWAY.read_text(encoding="utf-8")
    for kind in (*get_args(AnyScorer), *get_args(AnyPicker), *get_args(AnyFilter)):
        assert re.search(rf"\b{kind.__struct_config__.tag}\b", text), kind


def test_what_it_only_shows_is_valid_too(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(switched_on(), encoding="utf-8")
    first, second = load(file).pods
    assert first.kv_events == "tcp://10.0.0.1:5557"
    assert first.kv_replay == "tcp://10.0.0.1:5558"
    assert first.p2p == "10.0.0.1:5710"
    assert second == PodConfig(url="http://10.0.0.2:8000")


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"two-pods", "data-parallel", "load-first"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads(path: Path) -> None:
    assert load(path).pods


def test_the_load_first_example_does_not_look_at_the_cache() -> None:
    loaded = load(FOLDER / "examples" / "load-first.yaml")
    assert {type(scorer).__struct_config__.tag for scorer in loaded.placement.scorers} == {"queue", "kv-utilization"}
    assert loaded.p2p.enabled


def test_the_data_parallel_example_gives_every_rank_ports_of_its_own() -> None:
    assert {pod.data_parallel_size for pod in load(FOLDER / "examples" / "data-parallel.yaml").pods} == {4}


def test_prometheus_scrapes_the_gateway_where_it_listens_by_default() -> None:
    settings = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = settings["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{Config(pods=load(GATEWAY).pods).listen.port}"]}]


def test_no_shipped_line_is_too_long_to_read() -> None:
    for path in (GATEWAY, *EXAMPLES, FOLDER / "prometheus" / "prometheus.yml"):
        text = path.read_text(encoding="utf-8")
        assert text.endswith("\n")
        assert max(map(len, text.splitlines())) <= 120, path
