"""What is on its way to publishers."""

from array import array

import hypothesis.strategies as st
from hypothesis import given

from index import Arrival, Coming, Publisher, block_keys, root_key

SIZE = 4
A, B = Publisher("a:8000", 0), Publisher("b:8000", 0)
FROM = ("http://c:8000", 0)


def keys(*contents: int, size: int = SIZE) -> "array[int]":
    tokens = [content for content in contents for _ in range(size)]
    return array("Q", block_keys(tokens, size, root_key("base", size)))


def arrival(tokens: int, due: float = 1.0) -> Arrival:
    return Arrival(tokens, due, FROM)


def test_what_comes_is_found_as_far_as_the_prompts_are_the_same_and_no_further_than_it_is_pulled() -> None:
    coming = Coming()
    coming.begun(A, [keys(1, 2, 3, 4)], arrival(3 * SIZE))
    assert coming.match({SIZE: keys(1, 2, 9)}) == {A: arrival(2 * SIZE)}
    assert coming.match({SIZE: keys(1, 2, 3, 4, 5)}) == {A: arrival(3 * SIZE)}
    assert coming.match({SIZE: keys(2, 1)}) == {}
    assert coming.match({SIZE: keys()}) == {}


def test_of_several_to_one_publisher_the_longest_counts_and_of_equals_the_one_that_is_due_first() -> None:
    coming = Coming()
    for tokens, due in ((SIZE, 1.0), (2 * SIZE, 5.0), (2 * SIZE, 4.0), (2 * SIZE, 6.0)):
        coming.begun(A, [keys(1, 2, 3)], arrival(tokens, due))
    coming.begun(B, [keys(1, 7)], arrival(SIZE, 9.0))
    assert coming.match({SIZE: keys(1, 2, 3)}) == {A: arrival(2 * SIZE, 4.0), B: arrival(SIZE, 9.0)}


def test_it_comes_until_its_pull_has_ended_and_an_end_is_one() -> None:
    coming = Coming()
    one, two = (coming.begun(each, [keys(1, 2)], arrival(SIZE)) for each in (A, B))
    assert len(coming) == 1
    coming.ended(one)
    coming.ended(one)
    assert coming.match({SIZE: keys(1)}) == {B: arrival(SIZE)}
    coming.ended(two)
    assert not coming


def test_a_prompt_has_keys_in_each_block_size_and_without_a_whole_block_none() -> None:
    coming = Coming()
    pulled = coming.begun(A, [keys(1, 1, 2, 2), keys(1, 2, size=2 * SIZE), keys()], arrival(4 * SIZE))
    assert coming.match({2 * SIZE: keys(1, 2, size=2 * SIZE)}) == {A: arrival(4 * SIZE)}
    assert coming.match({SIZE: keys(1, 1, 2), 2 * SIZE: keys(1, size=2 * SIZE)}) == {A: arrival(3 * SIZE)}
    coming.ended(pulled)
    assert not coming


def test_of_very_many_that_begin_alike_the_newest_are_looked_at() -> None:
    coming = Coming()
    for number in range(200):
        coming.begun(Publisher(f"{number}:8000", 0), [keys(1, number)], arrival(2 * SIZE))
    found = coming.match({SIZE: keys(1, 199)})
    assert len(found) == 64
    assert found[Publisher("199:8000", 0)] == arrival(2 * SIZE)
    assert found[Publisher("136:8000", 0)] == arrival(SIZE)


prompts = st.lists(st.integers(0, 2), max_size=5)
pulls = st.lists(st.tuples(st.sampled_from([A, B]), prompts, st.integers(1, 30), st.integers(0, 9)), max_size=8)


@given(pulls=pulls, ended=st.sets(st.integers(0, 7)), asked=prompts)
def test_it_is_what_a_look_at_each_pull_would_find(
    pulls: list[tuple[Publisher, list[int], int, int]], ended: set[int], asked: list[int]
) -> None:
    coming = Coming()
    begun = [coming.begun(to, [keys(*of)], arrival(tokens, due)) for to, of, tokens, due in pulls]
    for number, each in enumerate(begun):
        if number in ended:
            coming.ended(each)
    most: dict[Publisher, tuple[int, float]] = {}
    for number, (to, of, tokens, due) in enumerate(pulls):
        shared = next((n for n, pair in enumerate(zip(of, asked, strict=False)) if pair[0] != pair[1]), None)
        blocks = min(len(of), len(asked)) if shared is None else shared
        if blocks and number not in ended:
            most[to] = max(most.get(to, (0, 0.0)), (min(blocks * SIZE, tokens), -float(due)))
    found = coming.match({SIZE: keys(*asked)})
    assert {to: (each.tokens, -each.due) for to, each in found.items()} == most
