from pathlib import Path

import pytest

from config.load import Config, ConfigError, PodConfig, from_urls, load

POD = "pods: [{url: http://10.0.0.1:8000}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


def refusal(file: Path, text: str) -> str:
    """What is said of a file with this text, after the file's name."""
    file.write_text(text, encoding="utf-8")
    return refusal_of(file)


def refusal_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


# --- what loads


def test_a_file_becomes_the_configuration_it_says(file: Path) -> None:
    file.write_text(POD + "listen: {port: 9000}\n", encoding="utf-8")
    config = load(file)
    assert config.pods == (PodConfig(url="http://10.0.0.1:8000"),)
    assert config.listen.port == 9000


def test_json_is_read_as_well(file: Path) -> None:
    file.write_text('{"pods": [{"url": "http://10.0.0.1:8000"}], "p2p": {"enabled": false}}', encoding="utf-8")
    assert load(file).p2p.enabled is False


def test_urls_alone_give_the_defaults() -> None:
    assert from_urls(["http://a:1", "http://b:2"]) == Config(
        pods=(PodConfig(url="http://a:1"), PodConfig(url="http://b:2"))
    )


def test_anchors_and_merges_work_and_an_override_is_no_duplicate(file: Path) -> None:
    file.write_text(
        "pods:\n  - &first {url: 'http://a:1', data_parallel_size: 2}\n  - {<<: *first, url: 'http://b:1'}\n",
        encoding="utf-8",
    )
    assert [(pod.url, pod.data_parallel_size) for pod in load(file).pods] == [("http://a:1", 2), ("http://b:1", 2)]


# --- what does not


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "- a\n- list\n", "text\n", "null\n"])
def test_what_is_no_mapping_is_refused(file: Path, text: str) -> None:
    assert refusal(file, text) == "$: expected a mapping such as `pods: [{url: http://10.0.0.1:8000}]`"


@pytest.mark.parametrize("text", ["listen: {port: 1}\n", "pods:\n", "pods: []\n"])
def test_a_file_without_pods_is_refused(file: Path, text: str) -> None:
    assert refusal(file, text) == "$.pods: no pods; list at least one, such as {url: http://10.0.0.1:8000}"


def test_pods_of_another_type_are_refused(file: Path) -> None:
    assert refusal(file, "pods: http://10.0.0.1:8000\n") == "$.pods: Expected `array`, got `str`"
    assert refusal(file, "pods: [http://10.0.0.1:8000]\n") == "$.pods[0]: Expected `object`, got `str`"


def test_no_urls_are_refused_under_the_name_of_their_flag() -> None:
    with pytest.raises(ConfigError, match=r"^--pod: \$\.pods: no pods"):
        from_urls([])


def test_an_unknown_key_is_refused(file: Path) -> None:
    assert refusal(file, POD + "p2p: {prot: 1}\n") == "$.p2p: Object contains unknown field `prot`"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("pods: [\n", 2),
        (POD + "listen:\n\tport: 1\n", 3),
        (POD + 'log: "open\n', 3),
        (POD + "p2p: *missing\n", 2),
        (POD + "---\n" + POD, 2),
        ("pods: !!python/object:os.system {}\n", 1),
        ("{[a]: b}\n", 1),
    ],
)
def test_bad_yaml_is_refused_with_its_line(file: Path, text: str, line: int) -> None:
    assert refusal(file, text).startswith(f"line {line}, column ")


def test_a_refusal_says_what_yaml_was_reading_and_what_it_found(file: Path) -> None:
    assert refusal(file, "pods: [\n") == (
        "line 2, column 1: while parsing a flow node, expected the node content, but found '<stream end>'"
    )


def test_a_key_given_twice_is_refused_where_yaml_would_keep_the_last(file: Path) -> None:
    assert refusal(file, POD + "p2p: {enabled: false}\np2p: {port: 1}\n") == "line 3, column 1: 'p2p' is given twice"
    assert refusal(file, POD + "p2p:\n  port: 1\n  port: 1\n") == "line 4, column 3: 'port' is given twice"


def test_a_control_character_is_refused(file: Path) -> None:
    assert refusal(file, POD + "\0").startswith("unacceptable character #x0000")


def test_a_date_that_does_not_exist_is_refused(file: Path) -> None:
    assert refusal(file, POD + "log: 2026-99-99\n") == "not usable YAML: month must be in 1..12"


def test_endless_nesting_is_refused(file: Path) -> None:
    assert refusal(file, "pods: " + "[" * 20_000).startswith("not usable YAML: ")


def test_a_file_that_is_not_there_is_refused(file: Path) -> None:
    assert refusal_of(file) == "No such file or directory"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert refusal_of(tmp_path) == "Is a directory"


def test_bytes_that_are_no_text_are_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    assert refusal_of(file) == "not UTF-8"
