# ruff: noqa: S106  # special tokens are no passwords
"""A model's directory to ids."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.tokens.chat import ChatFields
from gateway.tokens.local import LocalTokenizer
from gateway.tokens.model_files import FilesMissing, find_model
from tests.gateway.tokens.built import SAFE, built
from tests.gateway.tokens.models import lay


def local(directory: Path) -> LocalTokenizer:
    return LocalTokenizer(find_model(str(directory)))


def ask(text: str = "Hello", **body: Any) -> ChatFields:
    return msgspec.convert({"messages": [{"role": "user", "content": text}]} | body, ChatFields)


def ids(tokenizer: LocalTokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
    told = tokenizer.encode_text(text, add_special_tokens=add_special_tokens)
    assert told.ids is not None
    return told.ids.tolist()


@pytest.mark.parametrize("name", SAFE)
@pytest.mark.parametrize("surrounded", [True, False])
@pytest.mark.parametrize("text", ["", "Hello  there", "a<|im_end|>\nb <|im_start|>c"])
def test_a_text_has_the_ids_of_the_whole_tokenizer(tmp_path: Path, name: str, text: str, surrounded: bool) -> None:
    tokenizer = local(lay(tmp_path, name))
    expected = built(name).encode(text, add_special_tokens=surrounded).ids
    assert ids(tokenizer, text, add_special_tokens=surrounded) == expected
    assert ids(tokenizer, text, add_special_tokens=surrounded) == expected


def test_a_conversation_is_tokenized_without_surrounding_tokens_unless_it_asks_for_them(tmp_path: Path) -> None:
    tokenizer = local(lay(tmp_path, "llama_3"))
    text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    for surrounded in (False, True):
        told = tokenizer.encode_chat(ask(add_special_tokens=surrounded))
        assert told.ids is not None
        assert told.ids.tolist() == built("llama_3").encode(text, add_special_tokens=surrounded).ids


def test_a_conversation_that_goes_on_reuses_what_it_had(tmp_path: Path) -> None:
    tokenizer = local(lay(tmp_path, "llama_3"))
    messages = [{"role": "user", "content": f"question {n} " * 50} for n in range(20)]
    before = tokenizer.encode_chat(ask(messages=messages))
    after = tokenizer.encode_chat(ask(messages=[*messages, {"role": "user", "content": "more"}]))
    assert before.ids is not None
    assert after.reused > len(before.ids) - 10


def test_padding_and_truncation_of_the_file_are_left_off(tmp_path: Path) -> None:
    lay(tmp_path, "gpt_2")
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    described["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    described["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    assert ids(local(tmp_path), "one two three four five") == built("gpt_2").encode("one two three four five").ids


def test_tokens_that_only_the_configuration_has_are_added_in_order(tmp_path: Path) -> None:
    size = built("gpt_2").get_vocab_size()
    decoder = {str(size + 1): {"content": "<b>", "special": True}, str(size): {"content": "<a>", "special": True}}
    lay(tmp_path, "gpt_2", added_tokens_decoder=decoder, eos_token="<c>", extra_special_tokens=["<d>", "<|im_end|>"])
    assert ids(local(tmp_path), "<a><b><c><d>") == [size, size + 1, size + 2, size + 3]


def test_special_tokens_that_are_text_are_not_cut_at(tmp_path: Path) -> None:
    tokenizer = local(lay(tmp_path, "gpt_2", split_special_tokens=True))
    assert "as text" in tokenizer.whole_because
    assert len(ids(tokenizer, "<|im_end|>")) > 1


def test_what_cannot_be_rendered_or_tokenized_has_a_reason_and_raises_nothing(tmp_path: Path) -> None:
    tokenizer = local(lay(tmp_path, "gpt_2", chat_template="{{ raise_exception('no such role') }}"))
    told = tokenizer.encode_chat(ask())
    assert (told.ids, told.reason) == (None, "template")
    assert "no such role" in told.detail
    assert tokenizer.encode_text("\ud800").reason == "tokenizer"


def test_a_broken_tokenizer_is_missing(tmp_path: Path) -> None:
    lay(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FilesMissing, match="cannot be read"):
        local(tmp_path)
