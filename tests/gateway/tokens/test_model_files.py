# ruff: noqa: S106  # special tokens are no passwords
import json
from pathlib import Path

import pytest

from gateway.tokens.model_files import FilesMissing, find_model
from gateway.tokens.refusal import Refused
from tests.gateway.tokens.models import lay


def test_a_directory_is_read(tmp_path: Path) -> None:
    lay(tmp_path, chat_template="T", bos_token={"content": "<s>", "lstrip": False}, eos_token="</s>", pad_token=None)
    files = find_model(str(tmp_path))
    assert files.tokenizer == tmp_path / "tokenizer.json"
    assert files.templates == {"default": "T"}
    assert files.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert not files.rendered_by_engine
    assert not files.doubt


def test_a_hub_name_is_found_in_the_cache(tmp_path: Path) -> None:
    cached = tmp_path / "models--org--name"
    lay(cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc\n")
    assert find_model("org/name", cache=tmp_path).directory == cached / "snapshots" / "abc"
    assert find_model("org/name", cache=tmp_path, revision="abc").directory == cached / "snapshots" / "abc"


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path / "hub" / "models--org--name" / "snapshots" / "main")
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert find_model("org/name").tokenizer.is_file()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    with pytest.raises(FilesMissing, match="elsewhere has no models--org--name"):
        find_model("org/name")


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(FilesMissing, match=r"has no tokenizer\.json"):
        find_model(str(tmp_path))
    (tmp_path / "models--org--name").mkdir()
    with pytest.raises(FilesMissing, match="no snapshot of the revision v2"):
        find_model("org/name", cache=tmp_path, revision="v2")
    lay(tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text("{")
    with pytest.raises(FilesMissing, match=r"tokenizer_config\.json cannot be read"):
        find_model(str(tmp_path / "model"))


def test_template_files_displace_the_configuration_and_requests_with_tools_have_their_own(tmp_path: Path) -> None:
    lay(tmp_path, chat_template="old")
    (tmp_path / "chat_template.jinja").write_text("plain")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    files = find_model(str(tmp_path))
    assert files.template(None, with_tools=False) == "plain"
    assert files.template(None, with_tools=True) == "tools"
    assert files.template("tool_use", with_tools=False) == "tools"
    assert files.template("{{ own }}", with_tools=True) == "{{ own }}"


def test_named_templates_of_the_configuration(tmp_path: Path) -> None:
    lay(tmp_path, chat_template=[{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}])
    files = find_model(str(tmp_path))
    assert (files.template(None, with_tools=False), files.template(None, with_tools=True)) == ("a", "b")


def test_a_processor_s_template_serves_requests_without_tools(tmp_path: Path) -> None:
    lay(tmp_path, chat_template="text")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "media"}))
    files = find_model(str(tmp_path))
    assert (files.template(None, with_tools=False), files.template(None, with_tools=True)) == ("media", "text")


def test_a_model_without_a_template_is_refused_where_one_is_needed(tmp_path: Path) -> None:
    files = find_model(str(lay(tmp_path, template=None)))
    with pytest.raises(Refused, match="no-template"):
        files.template(None, with_tools=False)


def test_special_tokens_are_read_from_the_older_file_too(tmp_path: Path) -> None:
    lay(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<b>"}}))
    assert find_model(str(tmp_path)).special_tokens == {"bos_token": "<b>"}
    lay(tmp_path, added_tokens_decoder={})
    assert find_model(str(tmp_path)).special_tokens == {}


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("config.json", {"model_type": "gpt_oss"}, "harmony"),
        ("config.json", {"architectures": ["DeepseekV32ForCausalLM"]}, "deepseek_v32"),
        ("consolidated.safetensors", {}, "mistral"),
    ],
)
def test_models_that_the_engine_renders_in_code_are_known(
    tmp_path: Path, file: str, content: dict[str, object], why: str
) -> None:
    lay(tmp_path)
    (tmp_path / "tekken.json").touch()
    (tmp_path / file).write_text(json.dumps(content))
    assert why in find_model(str(tmp_path)).rendered_by_engine


def test_a_tokenizer_class_that_the_engine_may_build_anew_is_named(tmp_path: Path) -> None:
    assert "LlamaTokenizer" in find_model(str(lay(tmp_path, tokenizer_class="LlamaTokenizer"))).doubt
    assert not find_model(str(lay(tmp_path, tokenizer_class="PreTrainedTokenizerFast"))).doubt
