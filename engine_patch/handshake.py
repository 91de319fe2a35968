"""Who may speak to whom, by the messages of vLLM's P2P tier.

A pair has one session with two ends. Each end sends on a connection of its own and judges the other by that connection
alone, so one end can lose the session while the other keeps it (half open). What the end that has lost it hears then
comes from a stranger: its session would start with a message that is no greeting, and wait for one that nobody sends.
And where the end that has lost it greets again, the other one takes that for a violation.

The cures: a stranger is told that there is no session (`strangers`), and a greeting from a peer that is known already
starts over (`sort_out`).

Starting over answers a greeting with a greeting. Two ends that start over at the same time must not do so for ever:
a second greeting by the same process on a connection that has just been made is only acknowledged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

TYPE = "type"
CONNECT = "connect"
CONNECT_ACK = "connect_ack"
DISCONNECT = "disconnect"
LOOKUP = "lookup"
FETCH = "fetch"
ABORT = "abort_fetch"
REQUEST = "kv_request_id"
ROUND = "round_seq"
METADATA = "agent_metadata"

SETTLED_S = 1.0
"""A handshake takes milliseconds. What greets again on an older connection has lost its end of the session."""

Message = dict[str, Any]


@dataclass(slots=True)
class Greeting:
    """What a connection has heard of its peer."""

    opened_at: float
    metadata: object = None
    """The transfer agent's description in the peer's greeting: differs from process to process. None: not greeted."""


class Sorted(NamedTuple):
    """What to do with the messages of a connection."""

    kept: list[Message]
    over: list[Message]
    """Begins with the greeting of a new session, which takes this connection's place; empty: there is none."""
    replaced_process: bool
    """The new session's peer is another process than the one before."""
    acknowledged: int
    """Greetings left out, to be acknowledged only."""


def kind(message: object) -> object:
    """The type of a decoded message, which may be anything."""
    return message.get(TYPE) if isinstance(message, dict) else None


def sort_out(messages: Sequence[Message], greeting: Greeting, now: float) -> Sorted:
    """Separate the messages of a connection from those of the session that follows it. Notes the first greeting."""
    kept: list[Message] = []
    ended, acknowledged = False, 0
    for position, message in enumerate(messages):
        what = kind(message)
        if what == CONNECT:
            same = message.get(METADATA) == greeting.metadata
            if greeting.metadata is None and not ended:
                greeting.metadata = message.get(METADATA)
            elif ended or not same or now - greeting.opened_at > SETTLED_S:
                known = greeting.metadata is not None
                return Sorted(withdrawn_left_out(kept), list(messages[position:]), known and not same, acknowledged)
            else:
                acknowledged += 1
                continue
        ended = ended or what == DISCONNECT
        kept.append(message)
    return Sorted(withdrawn_left_out(kept), [], False, acknowledged)


def withdrawn_left_out(messages: list[Message]) -> list[Message]:
    """The messages without the fetches and lookups whose peer has taken them back behind them.

    A source that was stopped or busy finds a fetch and its abort together. To serve it would write to memory that the
    consumer may have given to others.
    """
    aborted: set[tuple[str, int]] = set()
    ended = False
    kept = []
    for message in reversed(messages):
        what = kind(message)
        if what == DISCONNECT:
            ended = True
        elif what == ABORT:
            aborted |= _round_of(message)
        withdrawn = not aborted.isdisjoint(_round_of(message))
        if (what == FETCH and (ended or withdrawn)) or (what == LOOKUP and ended):
            continue
        kept.append(message)
    kept.reverse()
    return kept


def _round_of(message: Message) -> set[tuple[str, int]]:
    """Which round of which request a message is of; none, of one that the session will refuse."""
    request, number = message.get(REQUEST), message.get(ROUND)
    return {(request, number)} if isinstance(request, str) and isinstance(number, int) else set()


def strangers(pending: Iterable[tuple[str, Message]]) -> tuple[list[tuple[str, Message]], list[str]]:
    """Of messages from peers without a connection, those from their greeting on, and who has to be told first that
    there is no session.

    A stranger's farewell is answered with nothing: two ends would take leave of each other for ever.
    """
    kept: list[tuple[str, Message]] = []
    greeted: set[str] = set()
    told: dict[str, None] = {}
    for sender, message in pending:
        what = kind(message)
        if what == CONNECT or sender in greeted:
            greeted.add(sender)
            kept.append((sender, message))
        elif what != DISCONNECT:
            told[sender] = None
    return kept, [sender for sender in told if sender not in greeted]
