"""Where texts may be cut: the search, and the proof for each build of tokenizer."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tokens.cuts import Cuts, find_cuts
from tests.gateway.tokens.built import SAFE, UNSAFE, built, gpt_2


def described(**changes: Any) -> str:
    return json.dumps(json.loads(gpt_2().to_str()) | changes)


@pytest.mark.parametrize("name", SAFE)
def test_tokenizers_that_models_come_with_may_be_cut_at_their_turns(name: str) -> None:
    cuts = find_cuts(built(name).to_str())
    assert not cuts.reason
    assert {"<|im_start|>", "<|im_end|>"} <= cuts.at


@pytest.mark.parametrize("case", UNSAFE)
def test_a_tokenizer_that_looks_over_the_cut_is_refused_and_would_give_other_ids(case: str) -> None:
    make, before, behind = UNSAFE[case]
    tokenizer = make()
    assert find_cuts(tokenizer.to_str(), encode_special_tokens=tokenizer.encode_special_tokens).reason
    whole, *parts = (tokenizer.encode(text, add_special_tokens=False).ids for text in (before + behind, before, behind))
    assert whole != parts[0] + parts[1]


def test_what_is_not_known_is_not_cut() -> None:
    assert "future" in find_cuts(described(pre_tokenizer={"type": "future"})).reason
    assert "future" in find_cuts(described(normalizer={"type": "Sequence", "normalizers": [{"type": "future"}]})).reason
    assert "future" in find_cuts(described(model={"type": "future"})).reason
    assert "random" in find_cuts(described(model={"type": "BPE", "dropout": 0.1})).reason


def test_a_token_that_begins_with_a_space_is_no_place_to_cut() -> None:
    token = {"content": " <|x|>", "special": True, "normalized": False}
    assert find_cuts(described(added_tokens=[token])).reason


def test_normalized_tokens_are_not_looked_for_where_others_take_spaces() -> None:
    taking = {"content": "<a>", "special": True, "normalized": False, "rstrip": True}
    second = {"content": "<b>", "special": True, "normalized": True}
    assert find_cuts(described(added_tokens=[taking, second])).at == {"<a>"}


def test_the_beginning_of_a_text_is_not_a_cut() -> None:
    cuts = Cuts(frozenset(("<a>",)), ["<a>"], [])
    assert list(cuts.find("<a>x<a><a>")) == [4, 7]
    assert list(cuts.find("<a>x<a><a>", 4)) == [7]


tokens = st.lists(st.text("ab<>", min_size=1, max_size=5), min_size=1, max_size=12, unique=True)


@given(tokens, st.text("ab<>", max_size=40))
@settings(max_examples=300, deadline=None)
def test_the_search_takes_the_leftmost_and_of_those_the_longest(contents: list[str], text: str) -> None:
    plain = "|".join(re.escape(content) for content in sorted(contents, key=len, reverse=True))
    expected = [match.start() for match in re.finditer(plain, text) if match.start()]
    assert list(Cuts(frozenset(contents), contents, []).find(text)) == expected


def test_thousands_of_tokens_with_equal_beginnings_are_searched_as_a_tree() -> None:
    contents = [f"<|reserved_{number}|>" for number in range(5000)]
    text = "<|reserved_ <|reserved_77|>" * 3
    assert list(Cuts(frozenset(contents), contents, []).find(text)) == [12, 39, 66]
