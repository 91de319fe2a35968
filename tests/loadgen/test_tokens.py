import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import tokens
from loadgen.answer import answer

HELLO = [{"role": "user", "content": "hello"}]


@given(st.text())
def test_text_survives_the_round_trip(text: str) -> None:
    assert tokens.decode(tokens.encode(text)) == text.encode(errors="replace").decode()


@given(st.lists(st.integers(256, tokens.VOCABULARY_SIZE - 1)))
def test_every_id_has_a_spelling_of_its_own(ids: list[int]) -> None:
    assert tokens.encode(tokens.decode(ids)) == ids


def test_the_next_turn_repeats_the_ids_of_the_last_one() -> None:
    prompt = tokens.render_chat(HELLO)
    reply = answer(prompt, 1000)
    history = [*HELLO, {"role": "assistant", "content": "".join(reply.texts)}, {"role": "user", "content": "more"}]
    assert tokens.render_chat(history)[: len(prompt) + len(reply.token_ids)] == prompt + reply.token_ids


def test_whatever_shapes_the_prompt_changes_its_ids() -> None:
    prompts = [
        tokens.render_chat(HELLO),
        tokens.render_chat(HELLO, add_generation_prompt=False),
        tokens.render_chat(HELLO, continue_final_message=True),
        tokens.render_chat(HELLO, add_special_tokens=True),
        tokens.render_chat(HELLO, tools=[{"type": "function", "function": {"name": "f"}}]),
        tokens.render_chat(HELLO, settings={"enable_thinking": False}),
        tokens.render_chat([*HELLO, {"role": "assistant", "tool_calls": [{"id": "1"}]}]),
    ]
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)


def test_text_parts_are_read_as_text() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert tokens.render_chat(parts) == tokens.render_chat(HELLO)


@pytest.mark.parametrize("content", [[{"type": "image_url", "image_url": {"url": "x"}}], 3])
def test_content_that_is_no_text_is_refused(content: object) -> None:
    with pytest.raises(ValueError, match="text"):
        tokens.render_chat([{"role": "user", "content": content}])


def test_an_answer_depends_on_the_prompt_alone() -> None:
    assert answer([1, 2, 3], 50) == answer((1, 2, 3), 50)
    assert answer([1, 2, 3], 50) != answer([1, 2, 4], 50)


def test_a_shorter_limit_only_cuts_the_answer() -> None:
    assert answer([7], 10).token_ids == answer([7], 20).token_ids[:10]
    assert answer([7], 10).finish_reason == "length"


def test_the_model_ends_by_itself_unless_told_not_to() -> None:
    assert answer([7], 10_000).finish_reason == "stop"
    assert answer([7], 10_000).token_ids[-1] == tokens.END
    assert len(answer([7], 10_000, ignore_eos=True).token_ids) == 10_000


def test_a_stop_string_ends_the_answer_and_is_not_in_it() -> None:
    whole = "".join(answer([7], 200).texts)
    word = whole.split()[3]
    cut = answer([7], 200, stop=["never said", word])
    assert "".join(cut.texts) == whole[: whole.index(word)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", word)
    assert len(cut.token_ids) == len(cut.texts) == whole.index(word) + len(word)
