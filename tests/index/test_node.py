from hypothesis import given, settings
from hypothesis import strategies as st

from index.block_hash import block_keys
from index.node import common_length, ones, trailing_ones

tokens = st.lists(st.integers(0, 1), max_size=40)


@settings(deadline=None)
@given(tokens, tokens, tokens, st.integers(0, 50), st.integers(0, 5))
def test_bisection_finds_where_two_chains_diverge(
    shared: list[int], left: list[int], right: list[int], at: int, shift: int
) -> None:
    run = block_keys(shared + left, 1, 7)
    prompt = block_keys(shared + right, 1, 7)
    at = min(at, len(shared))
    expected = 0
    for ours, theirs in zip(run[at:], prompt[at:], strict=False):
        if ours != theirs:
            break
        expected += 1
    assert common_length(run, at, [0] * shift + prompt, at + shift) == expected


@settings(deadline=None)
@given(st.integers(0, 2**80))
def test_trailing_ones_are_the_blocks_before_the_first_gap(bits: int) -> None:
    count = trailing_ones(bits)
    assert bits & ones(count + 1) == ones(count)
