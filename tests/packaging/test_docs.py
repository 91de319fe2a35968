"""The documents speak of what exists, and of all of it."""

import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast, get_args

import msgspec
import msgspec.inspect as inspected
import pytest
import yaml

from config.load import Config, decode
from config.presets import PRESETS
from gateway import cli
from gateway.decision import Decision
from gateway.explained import explanation
from gateway.pod import Pod
from gateway.tokens import Prompt
from scorers import AnyFilter, AnyPicker, AnyScorer, Candidate, ExpectedTtft, MaxScore, PlacementRequest, place
from tests.observe.files import labels_by_name

CHECKOUT = Path(__file__).parents[2]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
FOLDERS = ("gateway", "index", "scorers", "config", "loadgen", "engine_patch", "tests", "docs", ".ci")
DOCUMENTS = sorted(
    [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"), *(CHECKOUT / "engine_patch").glob("*.md")]
)

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)


def sections(text: str) -> list[str]:
    """The contents of a document's fenced blocks."""
    return re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def rows(text: str) -> dict[str, list[str]]:
    """Table rows by the code in their first cell; the other cells as written."""
    found = re.findall(r"^\| `([^`|]+)` \|(.*)\|$", text, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split(" | ")] for name, cells in found}


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# Metrics


@each_document
def test_no_document_names_a_metric_that_does_not_exist(path: Path) -> None:
    names = labels_by_name().keys()
    exist = {*names, *(re.sub(r"_(bucket|sum|count|total)$", "", name) for name in names)}
    named = set(re.findall(r"\bp2p_gateway_\w+", path.read_text(encoding="utf-8")))
    assert named <= exist


# Configuration


def settings(type_: inspected.Type, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, default) of every setting as the README writes them; NODEFAULT where there is none."""
    if isinstance(type_, inspected.StructType):
        for field in type_.fields:
            here = f"{path}.{field.encode_name}" if path else field.encode_name
            default = field.default
            if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
                default = cast("Callable[[], object]", field.default_factory)()
            below = list(settings(field.type, here))
            if not below or isinstance(field.type, inspected.VarTupleType | inspected.UnionType):
                yield here, default
            yield from below
    elif isinstance(type_, inspected.UnionType):
        for kind in type_.types:
            if isinstance(kind, inspected.StructType):
                yield from settings(kind, f"{path}[{kind.tag}]")
    elif isinstance(type_, inspected.VarTupleType):
        one = type_.item_type
        yield from settings(one, path if isinstance(one, inspected.UnionType) else f"{path}[]")


SETTINGS = {path: default for path, default in settings(inspected.type_info(Config)) if path != "pods"}


def test_the_settings_are_found() -> None:
    assert {"listen.port", "pods[].url", "placement.scorers", "placement.scorers[prefix].weight"} <= SETTINGS.keys()


@pytest.mark.parametrize("path", SETTINGS)
def test_every_setting_is_in_the_readme_with_its_default(path: str) -> None:
    shown = rows(README)[path][0]
    default = SETTINGS[path]
    if default is msgspec.NODEFAULT:
        assert shown == "required"
    elif default is None or (path.startswith("placement.") and not isinstance(default, float | int)):
        assert shown  # what it amounts to, in words
    else:
        assert code(shown)
        value = yaml.safe_load(code(shown)[0])
        if isinstance(default, msgspec.Struct):
            value = msgspec.convert(value, type(default))
        assert value == (list(default) if isinstance(default, tuple) else default)


def test_the_readme_shows_no_setting_that_does_not_exist() -> None:
    tops = {field.encode_name for field in msgspec.structs.fields(Config)}
    shown = {name for name in rows(README) if re.split(r"[.\[]", name)[0] in tops and re.search(r"[.\[]", name)}
    assert shown == SETTINGS.keys()


def test_every_scorer_picker_filter_and_preset_is_described_in_the_readme() -> None:
    unions = get_args(AnyScorer) + get_args(AnyPicker) + get_args(AnyFilter)
    names = {kind.__struct_config__.tag for kind in unions} | set(PRESETS)
    assert names - rows(README).keys() == set()


def test_the_configuration_in_the_readme_is_valid() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(decode(yaml.safe_load(text), source="README").pods) == 2


# Commands and answers


def test_every_target_of_the_makefile_is_in_the_readme() -> None:
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE)
    assert {"demo", "test", "engine", "check"} <= set(targets)
    assert [target for target in targets if f"`make {target}`" not in README] == []


@each_document
def test_no_document_names_a_target_that_does_not_exist(path: Path) -> None:
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"`(?:\w+=\S+ )*make ([a-z-]+)", text)
    named += [
        name for block in sections(text) for name in re.findall(r"^(?:\w+=\S+ )*make ([a-z-]+)", block, re.MULTILINE)
    ]
    assert set(named) <= targets


def test_every_sub_command_is_in_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = capsys.readouterr().out.split("commands:")[1]
    commands = re.findall(r"^    ([a-z-]+)", listed, re.MULTILINE)
    assert "pod-args" in commands
    for command in set(commands) - {"demo"}:  # the newcomer's is `make demo`
        assert f"p2p-gateway {command}" in README


def test_the_pods_command_in_the_readme_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = (block for block in sections(README) if block.startswith("$ p2p-gateway pod-args"))
    asked, printed = shown.split("\n", 1)
    assert cli.main(asked.split()[2:]) == 0
    assert capsys.readouterr().out == printed


def test_the_refusal_in_the_readme_is_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown,) = (block for block in sections(README) if block.startswith("p2p-gateway: "))
    bad = {"pods": [{"url": "http://10.0.0.1:8000"}], "p2p": {"min_cached_tokens": 1}}
    (tmp_path / "gateway.yaml").write_text(json.dumps(bad), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--config", "gateway.yaml"]) == cli.CANNOT_START
    assert capsys.readouterr().err == shown


def test_the_explanation_in_the_readme_has_the_fields_of_a_real_one() -> None:
    (shown,) = re.findall(r"^```json\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    example = json.loads(shown)
    candidates = [Candidate(pod="http://10.0.0.1:8000", any_tokens=2048), Candidate(pod="http://10.0.0.2:8000")]
    request = PlacementRequest(request_id="r", prompt_tokens=2053, block_size=16, model="m")
    scorers = decode({"pods": [{"url": "http://10.0.0.1:8000"}]}, source="").placement.scorers
    decision = Decision(
        request=request,
        pod=cast("Pod", None),
        candidates=candidates,
        placed=place(request, candidates, scorers, MaxScore(), coordinate=0.0),
        source=candidates[0],
        source_pod=None,
        source_reason="named",
        source_tokens=2048,
        prompt=Prompt((), "given"),
        block_size=16,
        predicted_cached=2048,
    )
    real = explanation(decision)
    assert shape(example) == shape(real)
    assert ExpectedTtft.name in real["candidates"][0]["scores"]


def test_the_scorer_in_the_readme_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = (block for block in sections(README) if "class Weather" in block)
    (text,) = (block for block in sections(README) if "my_company.scoring:Weather" in block)
    package, module = ModuleType("my_company"), ModuleType("my_company.scoring")
    for each in (package, module):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    exec(source, vars(module))  # noqa: S102 - it is ours
    config = decode({"pods": [{"url": "http://10.0.0.1:8000"}], **yaml.safe_load(text)}, source="README")
    scorer = config.placement.scorers[1]
    request = PlacementRequest(request_id="r", prompt_tokens=None, block_size=16, model="m")
    skies = [Candidate(pod="a", labels={"sky": "grey"}), Candidate(pod="b")]
    assert (scorer.weight, scorer.score(request, skies)) == (2, [0.3, 1.0])


def shape(value: Any) -> Any:
    """Keys, in order, all the way down; a list's items have one shape."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    return [shape(value[0])] if isinstance(value, list) and value else None


# Links, paths, versions


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_document
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]
    for link in links:
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        assert target.is_relative_to(CHECKOUT), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


def texts() -> Iterator[tuple[Path, str]]:
    """Every text file of the project."""
    files = [path for path in CHECKOUT.iterdir() if path.is_file() and path.name != ".coverage"]
    files += [path for folder in FOLDERS for path in (CHECKOUT / folder).rglob("*") if path.is_file()]
    for path in files:
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    machine = re.compile("(?<![A-Za-z0-9_.~])/" + "(work|root|home|Users)" + "/")
    seen = {path for path, _ in texts()}
    assert {CHECKOUT / "Makefile", CHECKOUT / "gateway" / "app.py", Path(__file__).resolve()} <= seen
    assert [str(path.relative_to(CHECKOUT)) for path, text in texts() if machine.search(text)] == []


def test_the_changelog_has_the_version() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] in (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")
