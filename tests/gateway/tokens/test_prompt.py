"""Token ids as they go to a pod, and what is believed of a model's files."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens import TokenIds
from gateway.tokens.probes import PROBES, Standing, difference


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=5), st.data())
def test_ids_are_written_as_json_whatever_they_grew_from(lengths: list[int], data: st.DataObject) -> None:
    ids = TokenIds("I", range(lengths[0]))
    for length in lengths[1:]:
        assert json.loads(ids.as_json()) == ids.tolist()
        known = ids
        ids = TokenIds.grown(known, data.draw(st.integers(0, len(known))))
        ids.extend(range(7, 7 + length))
    assert json.loads(ids.as_json()) == ids.tolist()
    assert ids.as_json() == ids.as_json()


def test_what_a_prompt_grew_from_is_not_written_again() -> None:
    known = TokenIds("I", range(3 * 4096 + 5))
    known.as_json()
    grown = TokenIds.grown(known, 2 * 4096 + 1)
    grown.extend([1, 2])
    grown.as_json()
    assert all(one is other for one, other in zip(known._json[:2], grown._json, strict=True))


def test_no_ids_are_an_empty_list() -> None:
    assert TokenIds("I").as_json() == b"[]"


def test_a_difference_says_where() -> None:
    assert difference("chat", [1, 2], [1, 2]) == ""
    assert difference("chat", [1, 2, 3], [1, 5, 3]) == "chat: 3 ids here, 3 there, of which the first 1 are alike"
    assert difference("chat", [1, 2], [1, 2, 3]) == "chat: 2 ids here, 3 there, of which the first 2 are alike"


def test_probes_have_names_of_their_own() -> None:
    assert len({probe.name for probe in PROBES}) == len(PROBES)


def test_three_differences_in_a_row_end_the_belief() -> None:
    standing = Standing()
    assert standing.compared(equal=False)
    assert standing.compared(equal=False)
    assert not standing.compared(equal=False)


def test_a_rare_difference_is_forgiven_and_a_usual_one_is_not() -> None:
    rare, usual = Standing(), Standing()
    assert all(rare.compared(equal=bool(number % 60)) for number in range(3000))
    assert not all(usual.compared(equal=bool(number % 10)) for number in range(3000))
