"""Cut and remembered tokenization gives the ids of whole tokenization, for every build of tokenizer and any history."""

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.tokens.cuts import Cuts, find_cuts
from gateway.tokens.segments import Segmenter
from tests.gateway.tokens.built import SAFE, built

ROOM = 1 << 24
CHUNK = 16

fragments = st.one_of(
    st.sampled_from(
        [
            "<|im_start|>",
            "<|im_end|>",
            "<|endoftext|>",
            "<|im_end|>\n",
            "<|im_",
            "x<|im_end|>",
            "|>",
            "<s>",
            "</s>",
            "<bos>",
            "[SEP]",
            "<mask>",
            "<think>",
            " ",
            "  ",
            "\n\n",
            "\t",
            "\u00a0",
            "\u2581",
            "\u0338",
            "e\u0301",
            "\u0301",
            "\u200d",
            "\U0001f469\u200d\U0001f4bb",
            "\u4f60\u597d",
            "user\nHello there",
            "it's 1234567",
            "",
        ]
    ),
    st.text(max_size=8),
)
texts = st.lists(fragments, max_size=12).map("".join)
turn = st.one_of(
    st.tuples(st.just("goes on"), st.integers(0, 3), texts),
    st.tuples(st.just("is rewritten"), st.integers(0, 120), texts),
    st.tuples(st.just("is another"), st.just(0), texts),
)


def segmenter(tokenizer: Tokenizer, room: int = ROOM, lead: Sequence[int] = ()) -> Segmenter:
    def encode(texts: list[str]) -> list[list[int]]:
        return [made.ids for made in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    return Segmenter(encode, find_cuts(tokenizer.to_str()), room, lead, chunk=CHUNK)


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def history(turns: list[tuple[str, int, str]]) -> list[str]:
    """Prompts of conversations that grow, are rewritten from some character on, and come in between one another."""
    prompts = [""]
    for kind, number, text in turns:
        if kind == "goes on":
            prompts.append(prompts[max(-1 - number, -len(prompts))] + text)
        elif kind == "is rewritten":
            prompts.append(prompts[-1][:number] + text)
        else:
            prompts.append(text)
    return prompts


@pytest.mark.parametrize("room", [ROOM, 3000], ids=["all is remembered", "most is forgotten"])
@pytest.mark.parametrize("name", SAFE)
@given(turns=st.lists(turn, min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_any_history_gives_the_ids_of_whole_tokenization(
    name: str, room: int, turns: list[tuple[str, int, str]]
) -> None:
    tokenizer = built(name)
    made = segmenter(tokenizer, room, lead=(7, 8))
    for prompt in history(turns):
        encoded = made.encode(prompt)
        assert encoded.ids.tolist() == [7, 8, *whole(tokenizer, prompt)]
        assert encoded.reused <= len(encoded.ids)


TURNS = [f"<|im_start|>user\nquestion {n}<|im_end|>\n<|im_start|>assistant\nanswer {n}<|im_end|>\n" for n in range(20)]


def counting(tokenizer: Tokenizer, room: int = ROOM) -> tuple[Segmenter, list[str]]:
    asked: list[str] = []

    def encode(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return [made.ids for made in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    return Segmenter(encode, find_cuts(tokenizer.to_str()), room, chunk=CHUNK), asked


def test_a_turn_tokenizes_only_what_is_new() -> None:
    made, asked = counting(built("qwen"))
    for count in range(1, len(TURNS)):
        made.encode("".join(TURNS[:count]))
        del asked[:]
        made.encode("".join(TURNS[: count + 1]))
        assert asked == [f"<|im_start|>user\nquestion {count}", f"<|im_start|>assistant\nanswer {count}"]


def test_a_segment_is_known_wherever_it_comes_again() -> None:
    made, asked = counting(built("qwen"))
    made.encode("".join(TURNS))
    del asked[:]
    assert made.encode("".join(reversed(TURNS))).segments_reused > 100
    assert asked == []


def test_a_prompt_that_comes_again_is_the_same_object() -> None:
    made = segmenter(built("qwen"))
    first = made.encode("".join(TURNS))
    again = made.encode("".join(TURNS))
    assert again.ids is first.ids
    assert again.reused == len(first.ids)


def test_block_keys_are_taken_over_from_the_known_prompt_and_equal_fresh_ones() -> None:
    tokenizer = built("qwen")
    made = segmenter(tokenizer)
    for salt in (None, "salt"):
        for count in range(10, 20):
            ids = made.encode("".join(TURNS[:count])).ids
            fresh = segmenter(tokenizer).encode("".join(TURNS[:count])).ids
            assert ids.keys("m", 16, salt) == fresh.keys("m", 16, salt)


def test_a_conversation_holds_one_prompt() -> None:
    made = segmenter(built("qwen"))
    for count in range(len(TURNS)):
        made.encode("".join(TURNS[: count + 1]))
    assert len(made._prompts._led) == 1
    made.encode("".join(TURNS[:3]) + "<|im_start|>user\nsomething else")
    assert len(made._prompts._led) == 2


def test_both_memories_keep_to_their_bounds() -> None:
    made = segmenter(built("qwen"), room := 20_000)
    for count in range(300):
        made.encode(f"<|im_start|>user\n{count}<|im_end|>\n" + "".join(TURNS))
        assert made._prompts.held <= room
        assert made._segments.held <= room
    assert made._prompts.held == sum(known.bytes for known, _ in made._prompts._led.values())
    assert len(made._prompts._led) > 0


def test_a_prompt_larger_than_the_memory_is_tokenized_and_not_kept() -> None:
    tokenizer = built("qwen")
    made = segmenter(tokenizer, 1000)
    text = "".join(TURNS) * 5
    assert made.encode(text).ids.tolist() == whole(tokenizer, text)
    assert made._prompts.held == 0


def test_a_text_that_may_not_be_cut_is_tokenized_whole_and_remembered_whole() -> None:
    asked: list[str] = []

    def encode(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return [[1] * len(text) for text in texts]

    made = Segmenter(encode, Cuts(frozenset(), [], [], "not proved"), ROOM, chunk=CHUNK)
    for text in ("x" * 100, "x" * 100, "x" * 100 + "y"):
        assert len(made.encode(text).ids) == len(text)
    assert asked == ["x" * 100, "x" * 100 + "y"]


def test_threads_that_grow_conversations_at_once_get_the_ids_of_whole_tokenization() -> None:
    tokenizer = built("llama_3")
    made = segmenter(tokenizer, 30_000)
    wrong: list[str] = []

    def talk(own: int) -> None:
        prompt = "".join(TURNS[:5])
        for count in range(40):
            prompt += f"<|im_start|>user\n{own}: {count}<|im_end|>\n"
            if made.encode(prompt).ids.tolist() != whole(tokenizer, prompt):
                wrong.append(prompt)

    threads = [threading.Thread(target=talk, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
