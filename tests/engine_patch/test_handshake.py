from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_patch.handshake import SETTLED_S, Greeting, Message, sort_out, strangers, withdrawn_left_out

ACK: Message = {"type": "connect_ack", "peer_id": "a"}
BYE: Message = {"type": "disconnect"}


def hello(process: str = "one") -> Message:
    return {"type": "connect", "agent_metadata": process.encode()}


def lookup(request: str = "r") -> Message:
    return {"type": "lookup", "kv_request_id": request, "round_seq": 0}


def fetch(request: str = "r", round_seq: int = 0) -> Message:
    return {"type": "fetch", "kv_request_id": request, "round_seq": round_seq}


def abort(request: str = "r", round_seq: int = 0) -> Message:
    return {"type": "abort_fetch", "kv_request_id": request, "round_seq": round_seq}


def greeted(process: str = "one") -> Greeting:
    return Greeting(opened_at=0, metadata=process.encode())


def test_the_first_greeting_belongs_to_the_connection_and_is_remembered() -> None:
    greeting = Greeting(opened_at=0)
    assert sort_out([hello(), ACK, lookup()], greeting, 0.1).kept == [hello(), ACK, lookup()]
    assert greeting.metadata == b"one"


def test_a_peer_that_takes_leave_and_greets_starts_over() -> None:
    result = sort_out([lookup(), BYE, hello(), lookup("next")], greeted(), 0.1)
    assert result.kept == [BYE]
    assert result.over == [hello(), lookup("next")]
    assert not result.replaced_process


def test_a_greeting_on_an_old_connection_starts_over() -> None:
    """The peer has lost its end, and its farewell was lost, too."""
    result = sort_out([hello()], greeted(), SETTLED_S + 0.1)
    assert (result.kept, result.over) == ([], [hello()])


def test_another_process_behind_the_same_name_starts_over_at_once() -> None:
    result = sort_out([hello("two")], greeted("one"), 0.1)
    assert result.over == [hello("two")]
    assert result.replaced_process


def test_a_second_greeting_right_after_the_first_is_acknowledged_only() -> None:
    """Two ends that start over at the same time would do so for ever."""
    result = sort_out([hello(), ACK], greeted(), 0.1)
    assert result == ([ACK], [], False, 1)


def test_a_connection_that_heard_a_farewell_first_was_meant_for_the_session_before() -> None:
    result = sort_out([BYE, hello()], Greeting(opened_at=0), 0.1)
    assert result.over == [hello()]
    assert not result.replaced_process


def test_what_is_no_message_of_the_protocol_is_kept_for_the_session_to_refuse() -> None:
    odd: list[Any] = [{}, {"type": 5}, {"kind": "x"}]
    assert sort_out(odd, greeted(), 0.1).kept == odd


def test_a_fetch_that_was_taken_back_is_not_served() -> None:
    messages = [lookup(), fetch(), fetch(round_seq=1), abort()]
    assert withdrawn_left_out(messages) == [lookup(), fetch(round_seq=1), abort()]


@pytest.mark.parametrize(("named", "round_seq"), [(["r"], 0), ("r", {}), (None, None), ({}, [])])
def test_an_abort_of_nothing_takes_nothing_back(named: Any, round_seq: Any) -> None:
    odd: Message = {"type": "abort_fetch", "kv_request_id": named, "round_seq": round_seq}
    also: Message = odd | {"type": "fetch"}
    assert withdrawn_left_out([fetch(), also, odd]) == [fetch(), also, odd]


def test_an_abort_before_a_fetch_is_of_an_older_one() -> None:
    assert withdrawn_left_out([abort(), fetch()]) == [abort(), fetch()]


def test_what_was_asked_before_a_farewell_is_not_served() -> None:
    done: Message = {"type": "transfer_done", "kv_request_id": "r", "round_seq": 0}
    assert withdrawn_left_out([lookup(), fetch(), done, BYE]) == [done, BYE]


def test_a_stranger_is_told_once_that_there_is_no_session() -> None:
    assert strangers([("a", lookup()), ("a", fetch()), ("b", abort())]) == ([], ["a", "b"])


def test_a_stranger_that_greets_is_none() -> None:
    kept, told = strangers([("a", lookup()), ("a", hello()), ("a", lookup("next"))])
    assert kept == [("a", hello()), ("a", lookup("next"))]
    assert told == []


def test_farewells_are_not_answered() -> None:
    assert strangers([("a", BYE), ("b", BYE)]) == ([], [])


class End:
    """One end of a pair: it has a connection to the other or none, and may lose it at any time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.greeting: Greeting | None = None
        self.acknowledged = False
        self.inbox: list[Message] = []
        self.sent: list[Message] = []

    def open(self, now: float) -> None:
        self.greeting, self.acknowledged = Greeting(opened_at=now), False
        self.sent.append(hello(self.name))

    def lose(self) -> None:
        if self.greeting is not None:
            self.greeting = None
            self.sent.append(BYE)

    def look(self, now: float) -> None:
        """As the tier's transport and session do with what has come."""
        inbox, self.inbox = self.inbox, []
        if self.greeting is None:
            self._welcome(inbox, now)
            return
        result = sort_out(inbox, self.greeting, now)
        self.sent += [ACK] * result.acknowledged
        self._session(result.kept)
        if result.over:
            self.greeting = None
            self._welcome(result.over, now)

    def _welcome(self, messages: list[Message], now: float) -> None:
        kept, told = strangers([("peer", message) for message in messages])
        self.sent += [BYE] * len(told)
        if kept:
            self.open(now)
            assert self.greeting is not None
            self.greeting.metadata = kept[0][1]["agent_metadata"]
            self._session([message for _, message in kept])

    def _session(self, messages: list[Message]) -> None:
        for message in messages:
            if message["type"] == "connect":
                self.sent.append(ACK)
            elif message["type"] == "connect_ack":
                self.acknowledged = True
            elif message["type"] == "disconnect":
                self.greeting = None
                return


@given(st.lists(st.sampled_from(["a opens", "b opens", "a loses", "b loses", "a looks", "b looks"]), max_size=40))
def test_ends_that_are_left_in_peace_come_to_rest_and_agree(steps: list[str]) -> None:
    a, b = End("a"), End("b")
    now = 0.0

    def look(end: End, other: End) -> None:
        end.look(now)
        other.inbox += end.sent
        end.sent = []

    for step in steps:
        now += 0.01
        end, other = (a, b) if step.startswith("a") else (b, a)
        if step.endswith("opens") and end.greeting is None:
            end.open(now)
        elif step.endswith("loses"):
            end.lose()
        elif step.endswith("looks"):
            look(end, other)
    for _ in range(12):
        now += 0.01
        look(a, b)
        look(b, a)
    assert a.inbox == b.inbox == [], "they greet each other for ever"
    # The next try of one that has none finds the other, whatever that one believes.
    now += SETTLED_S + 1
    if a.greeting is None:
        a.open(now)
    for _ in range(12):
        now += 0.01
        look(a, b)
        look(b, a)
    if a.greeting is not None and a.acknowledged:
        assert b.greeting is not None
        assert b.acknowledged
