import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.keys import load_keys, secret
from config.load import ConfigError

SECRET = "sk-very-secret"  # noqa: S105


def written(tmp_path: Path, content: Any) -> str:
    file = tmp_path / "keys.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(file)


def test_a_key_is_given_itself_or_by_its_sha256(tmp_path: Path) -> None:
    digest = sha256(SECRET.encode())
    entries = [
        {"id": "a", "key": SECRET, "models": ["m"], "max_concurrent": 2},
        {"id": "b", "sha256": sha256(b"other").hexdigest().upper(), "admin": True},
    ]
    a, b = load_keys(written(tmp_path, {"keys": entries}))
    assert (a.id, a.digest, a.models, a.max_concurrent, a.admin) == ("a", digest.digest(), frozenset({"m"}), 2, False)
    assert (b.id, b.digest, b.models, b.max_concurrent, b.admin) == ("b", sha256(b"other").digest(), None, None, True)
    assert a.allows("m")
    assert not a.allows("n")
    assert b.allows("anything")


def test_a_key_has_a_priority_and_a_share(tmp_path: Path) -> None:
    entries = [{"id": "a", "key": "k"}, {"id": "b", "key": "l", "priority": -100, "share": 2}]
    a, b = load_keys(written(tmp_path, {"keys": entries}))
    assert (a.priority, a.share) == (0, 1.0)
    assert (b.priority, b.share) == (-100, 2.0)


def test_json_is_read_too_and_no_keys_are_a_file_of_keys(tmp_path: Path) -> None:
    assert load_keys(written(tmp_path, json.dumps({"keys": [{"id": "a", "key": "k"}]})))[0].id == "a"
    assert load_keys(written(tmp_path, {"keys": []})) == ()


def test_a_key_shows_its_id_only(tmp_path: Path) -> None:
    (key,) = load_keys(written(tmp_path, {"keys": [{"id": "a", "key": SECRET}]}))
    assert repr(key) == str(key) == "ApiKey('a')"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "$: expected a mapping"),
        ([{"id": "a", "key": SECRET}], "$: expected a mapping"),
        ({"keys": {SECRET: "a"}}, "$.keys: Expected `array`"),
        ({SECRET: "a"}, "a field other than `keys`"),
        ({"keys": [{SECRET: "a"}]}, "$.keys[0]: Object contains a field other than"),
        ({"keys": [SECRET]}, "$.keys[0]: Expected `object`"),
        ({"keys": [{"id": "a", "key": SECRET}, {"id": "b"}]}, "$.keys[1]: either key or sha256"),
        ({"keys": [{"id": "a", "key": SECRET, "sha256": "0" * 64}]}, "either key or sha256"),
        ({"keys": [{"id": "a", "sha256": SECRET}]}, "64 hexadecimal digits"),
        ({"keys": [{"id": "a", "key": f"{SECRET} {SECRET}"}]}, "visible ASCII"),
        ({"keys": [{"id": "a", "key": ""}]}, "visible ASCII"),
        ({"keys": [{"id": f"{SECRET} ", "key": "k"}]}, "$.keys[0].id"),
        ({"keys": [{"id": "a", "key": SECRET, "max_concurrent": 0}]}, "$.keys[0].max_concurrent"),
        ({"keys": [{"id": "a", "key": SECRET, "priority": 101}]}, "$.keys[0].priority"),
        ({"keys": [{"id": "a", "key": SECRET, "priority": 0.5}]}, "$.keys[0].priority"),
        ({"keys": [{"id": "a", "key": SECRET, "share": 0}]}, "$.keys[0].share"),
        ({"keys": [{"id": "a", "key": SECRET, "share": float("inf")}]}, "$.keys[0].share"),
        ({"keys": [{"id": "a", "key": SECRET, "share": float("nan")}]}, "$.keys[0].share"),
        ({"keys": [{"id": "a", "key": SECRET}, {"id": "a", "key": "k"}]}, "id a is listed twice"),
        ({"keys": [{"id": "a", "key": SECRET}, {"id": "b", "key": SECRET}]}, "a and b have the same key"),
        (f"keys: [{{id: a, key: *{SECRET}}}]", "line 1, column 21: not usable YAML"),
        (f"{SECRET}: 1\n{SECRET}: 2", "line 2, column 1: not usable YAML"),
        ("keys: [{id: a, key: 2026-99-99}]", "not usable YAML"),
        ("keys: [{id: a, key: 12345}]", "$.keys[0].key: Expected `str"),
        ("a: !!binary [", "not usable YAML"),
    ],
)
def test_a_bad_file_is_refused_by_place_and_without_its_content(content: Any, says: str, tmp_path: Path) -> None:
    file = written(tmp_path, content)
    with pytest.raises(ConfigError) as refusal:
        load_keys(file)
    told = str(refusal.value)
    assert told.startswith(f"{file}: ")
    assert says in told
    assert SECRET not in told
    assert "\n" not in told


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        load_keys(str(tmp_path / "none.yaml"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="binary: not UTF-8"):
        load_keys(str(tmp_path / "binary"))


def test_a_secret_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{SECRET}\n")
    assert secret(str(file)) == SECRET
    for content in (f"{SECRET}\n{SECRET}", "", f"{SECRET} x", "é"):
        file.write_text(content)
        with pytest.raises(ConfigError, match="key: not ") as refusal:
            secret(str(file))
        assert SECRET not in str(refusal.value)
    with pytest.raises(ConfigError, match="No such file"):
        secret(str(tmp_path / "none"))
