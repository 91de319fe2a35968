import pytest

from engine_patch.peers import FIRST_PAUSE_S, FORGET_S, LONGEST_PAUSE_S, REMEMBERED_PEERS, Peers

A, B = "10.0.0.1:5710", "10.0.0.2:5710"


def failing(*, waited: bool, times: int = 1) -> Peers:
    """Peers of which A has failed so often, at second 0."""
    peers = Peers()
    peers.may_ask(A, 0)
    for _ in range(times):
        peers.failed(A, 0, waited=waited)
    return peers


def test_a_peer_that_nobody_knows_may_be_asked() -> None:
    assert Peers().may_ask(A, 0)


def test_a_peer_that_a_request_has_waited_for_is_left_alone_and_tried_after_a_pause() -> None:
    peers = failing(waited=True)
    assert not peers.may_ask(A, 0)
    assert peers.may_ask(B, 0)
    assert peers.due(FIRST_PAUSE_S - 0.01) == []
    assert peers.due(FIRST_PAUSE_S) == [A]
    assert peers.next_due() == FIRST_PAUSE_S
    assert peers.left_alone() == 1


def test_a_peer_that_only_let_go_is_tried_at_once_and_asked_when_it_has_greeted() -> None:
    peers = failing(waited=False)
    assert peers.due(0) == [A]
    assert not peers.may_ask(A, 0)
    peers.connected(A)
    assert peers.may_ask(A, 0)
    assert peers.due(1000) == []
    assert peers.next_due() is None


@pytest.mark.parametrize(("waited", "first"), [(True, 0), (False, -1)])
def test_pauses_double_up_to_the_longest(waited: bool, first: int) -> None:
    peers = Peers()
    peers.may_ask(A, 0)
    pauses = []
    for _ in range(12):
        peers.failed(A, 0, waited=waited)
        due = peers.next_due()
        assert due is not None
        pauses.append(due)
    exact = [0.0 if n < 0 else FIRST_PAUSE_S * 2.0**n for n in range(first, first + 12)]
    assert pauses == [min(pause, LONGEST_PAUSE_S) for pause in exact]


def test_no_number_of_failures_is_too_large() -> None:
    assert failing(waited=True, times=5000).next_due() == LONGEST_PAUSE_S


def test_a_peer_that_greets_and_keeps_silent_costs_a_wait_less_and_less_often() -> None:
    peers = failing(waited=True)
    peers.connected(A)
    peers.failed(A, 10, waited=True)
    assert peers.next_due() == 10 + 2 * FIRST_PAUSE_S


def test_an_answer_makes_failures_forgotten() -> None:
    peers = failing(waited=True, times=5)
    peers.connected(A)
    peers.answered(A)
    peers.failed(A, 10, waited=True)
    assert peers.next_due() == 10 + FIRST_PAUSE_S


def test_a_peer_that_only_pulls_from_here_is_not_missed() -> None:
    peers = Peers()
    peers.failed(A, 0, waited=False)
    assert peers.due(100) == []
    assert peers.may_ask(A, 100)


def test_a_peer_that_nobody_asks_for_is_forgotten() -> None:
    peers = failing(waited=True)
    peers.may_ask(B, FORGET_S)
    assert peers.due(FORGET_S + 1) == []
    assert peers.may_ask(A, FORGET_S + 1)


def test_to_be_asked_for_is_to_be_remembered() -> None:
    peers = failing(waited=True)
    peers.may_ask(A, FORGET_S)
    assert peers.due(FORGET_S + 1) == [A]


def test_no_more_peers_are_remembered_than_there_is_room_for() -> None:
    peers = failing(waited=True)
    for number in range(REMEMBERED_PEERS):
        peers.may_ask(f"10.1.0.1:{number}", 1)
    assert peers.due(2) == []
    assert peers.left_alone() == 0


def test_what_never_failed_connects_and_answers_without_a_trace() -> None:
    peers = Peers()
    peers.connected(A)
    peers.answered(A)
    assert peers.next_due() is None
