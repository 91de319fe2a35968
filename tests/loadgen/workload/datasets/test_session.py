from loadgen.workload import Piece
from loadgen.workload.datasets.session import Session
from loadgen.workload.seeds import answer_piece


def test_a_turn_repeats_what_was_said_and_waits_for_the_answer() -> None:
    session = Session("s", [Piece(1, 10)])
    first = session.turn(3, [Piece(2, 5)], 7, pause=9.0, phase="a")
    second = session.turn(5, [Piece(3, 4)], 1, at=2.0, pause=1.5, phase="b")
    assert first.prompt == (Piece(1, 10), Piece(2, 5))
    assert second.prompt == (*first.prompt, answer_piece(3, 7), Piece(3, 4))
    assert (first.after, first.pause, second.after, second.pause, second.at) == (None, 0.0, 3, 1.5, 2.0)
    assert session.tokens == 10 + 5 + 7 + 4 + 1


def test_pieces_without_tokens_are_no_part_of_a_prompt() -> None:
    assert Session("s", [Piece(1, 0)]).turn(0, [Piece(2, 5), Piece(3, 0)], 1, phase="").prompt == (Piece(2, 5),)


def test_a_fork_goes_on_by_itself() -> None:
    parent = Session("s", [Piece(1, 10)])
    said = parent.turn(0, [Piece(2, 5)], 7, phase="")
    one, other = parent.fork(), parent.fork()
    child = one.turn(1, [Piece(3, 4)], 1, phase="")
    assert (child.session, child.after) == ("s.1", 0)
    assert child.prompt == (*said.prompt, answer_piece(0, 7), Piece(3, 4))
    assert other.turn(2, [], 1, phase="").prompt == (*said.prompt, answer_piece(0, 7))
    assert parent.turn(3, [], 1, phase="").after == 0


def test_a_session_may_wait_before_it_begins() -> None:
    first = Session("s", [Piece(1, 10)], after=8).turn(9, [], 1, pause=2.0, phase="")
    assert (first.after, first.pause) == (8, 2.0)
