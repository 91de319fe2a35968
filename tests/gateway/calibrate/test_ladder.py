import pytest

from gateway.calibrate.ladder import DEFAULT_LENGTHS, LadderError, Turn, ladder, turns


def test_the_usual_lengths_are_those_that_the_pods_can_answer() -> None:
    assert ladder(None, None) == DEFAULT_LENGTHS
    assert ladder(None, 3000) == (512, 1024, 2048)
    assert ladder(None, 32_769) == DEFAULT_LENGTHS


def test_a_limit_that_is_a_usual_length_leaves_nearly_that_length() -> None:
    assert ladder(None, 4096) == (512, 1024, 2048, 4096 - 64)


def test_lengths_that_are_asked_for_are_sorted_and_measured_once() -> None:
    assert ladder([4096, 128, 128], 8192) == (128, 4096)


@pytest.mark.parametrize(
    ("wanted", "longest", "says"),
    [
        ([63, 128], None, "less than 64"),
        ([128, 4096], 4096, "4096 tokens and an answer do not fit into the pods' 4096"),
        (range(64, 97), None, "more than 32"),
        ([128], None, "at least 2"),
        (None, 600, "at least 2 lengths are needed below 600 tokens"),
    ],
)
def test_lengths_that_cannot_be_measured_are_refused(wanted: list[int] | None, longest: int | None, says: str) -> None:
    with pytest.raises(LadderError, match=says):
        ladder(wanted, longest)


def test_each_round_has_every_length_both_ways() -> None:
    made = list(turns((100, 200), 3))
    for number in range(3):
        mine = {(turn.tokens, turn.source, turn.consumer) for turn in made if turn.round == number}
        assert mine == {(100, 0, 1), (100, 1, 0), (200, 0, 1), (200, 1, 0)}


def test_rounds_go_up_and_down_and_each_leg_comes_first_in_turn() -> None:
    made = list(turns((100, 200), 2))
    assert made[0] == Turn(0, 100, 0, 1, pull_first=False)
    assert [turn.tokens for turn in made if turn.source == 0] == [100, 200, 200, 100]
    for source in (0, 1):
        firsts = {turn.pull_first for turn in made if turn.source == source and turn.tokens == 100}
        assert firsts == {False, True}
