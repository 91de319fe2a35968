from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload import Piece
from loadgen.workload.seeds import answer_piece, answer_seed, text_seed

numbers = st.integers(0, 2**64 - 1)


@given(numbers, numbers)
def test_texts_of_other_kinds_numbers_or_seeds_are_others(one: int, other: int) -> None:
    assert text_seed("a", one) != text_seed("b", one)
    assert (text_seed("a", one) == text_seed("a", other)) == (one == other)
    assert text_seed("a", one, 1) != text_seed("a", one, 2)


def test_a_seed_is_the_same_in_every_process() -> None:
    assert answer_seed(4) == 0x34A2AED3CC850BFC


def test_an_answer_is_named_by_its_request() -> None:
    assert answer_piece(4, 30) == Piece(answer_seed(4), 30, "assistant", 4)
