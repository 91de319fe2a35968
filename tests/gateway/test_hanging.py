"""What hangs at whom, for how long, without a clock."""

from array import array

import pytest

from gateway.hanging import HANGS_S, Hanging
from gateway.pairs import Pair

A, B, C = ((f"http://{name}", 0) for name in "abc")
PAIR = Pair(A, B)
PROMPT = array("Q", range(100, 110))


def hanging(index: int = 4) -> Hanging:
    made = Hanging()
    made.add(PAIR, [PROMPT], index, 50.0)
    return made


def test_nothing_hangs_to_begin_with() -> None:
    assert not Hanging()
    assert not Hanging().sources(B, [PROMPT], 0.0)


def test_who_wants_the_first_block_of_a_pull_would_wait_for_it_and_nobody_else() -> None:
    made = hanging()
    assert made
    assert made.sources(B, [PROMPT], 50.0)
    assert made.sources(B, [array("Q", [1]), PROMPT[:5]], 50.0)
    assert not made.sources(B, [PROMPT[:4]], 50.0)
    other = array("Q", PROMPT)
    other[4] = 1
    assert not made.sources(B, [other], 50.0)
    assert not made.sources(B, [], 50.0)
    assert not made.sources(C, [PROMPT], 50.0)
    assert not made.sources(A, [PROMPT], 50.0)


def test_a_pull_that_was_to_bring_no_whole_block_hangs_nobody() -> None:
    assert not hanging(10)


def test_it_ends_by_itself() -> None:
    made = hanging()
    assert made.sources(B, [PROMPT], 50.0 + HANGS_S - 0.1)
    assert not made.sources(B, [PROMPT], 50.0 + HANGS_S)
    assert not made


def test_each_ends_in_its_own_time() -> None:
    made = hanging()
    made.add(Pair(C, B), [array("Q", range(10))], 0, 60.0)
    assert made.sources(B, [PROMPT], 60.0) == {A[0]}
    assert made.sources(B, [array("Q", range(10))], 60.0) == {C[0]}
    assert not made.sources(B, [PROMPT], 55.0 + HANGS_S)
    assert made.sources(B, [array("Q", range(10))], 55.0 + HANGS_S)


def test_it_ends_with_a_pull_of_the_same_pair() -> None:
    made = hanging()
    made.over(Pair(C, B))
    assert made.sources(B, [PROMPT], 51.0)
    made.over(PAIR)
    assert not made


@pytest.mark.parametrize(("gone", "left"), [(A, True), (B, False)])
def test_a_consumer_that_restarts_waits_for_nothing(gone: tuple[str, int], left: bool) -> None:
    made = hanging()
    made.parted(gone[0])
    assert bool(made) is left


def test_of_pods_that_are_no_more_nothing_is_kept() -> None:
    made = hanging()
    made.keep([B[0]])
    assert made
    made.keep([A[0]])
    assert not made


def test_what_is_remembered_of_a_consumer_is_bounded() -> None:
    made = Hanging()
    for number in range(100):
        made.add(PAIR, [array("Q", [number])], 0, 50.0)
    assert not made.sources(B, [array("Q", [35])], 50.0)
    assert all(made.sources(B, [array("Q", [number])], 50.0) for number in range(36, 100))
