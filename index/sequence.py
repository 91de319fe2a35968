"""What a frame's sequence number says about the frames before it.

A publisher numbers its batches from 0 and starts again at 0 when its engine restarts; there is no epoch. Frames come
on two ways: live, in order but with possible losses, and replayed from the publisher's buffer of recent batches on
request. Only the batch right after the last applied one may be applied, for a batch changes what later ones mean.

Two numbers are kept apart. `last_applied` is the last batch in the index, whichever way it came. `last_live` is the
last one seen live. Live frames come over one connection, which never repeats and never reorders, so a live number not
above `last_live` means a new engine; a live number above it but not above `last_applied` was replayed in the meantime.
Before the first live frame there is no such yardstick: one at or below a finished replay may be either, is taken for a
new engine, and costs one replay where it was not.

The machine FOLLOWS while nothing is known to be missing and is HOLDING from the moment something is until a replay of
it has ended. Its decisions, by where the frame came from and how its number relates to `last_applied`:

    frame      state       next     behind      ahead
    live       FOLLOWING   APPLY    DUPLICATE   GAP → HOLDING
    live       HOLDING     HOLD     HOLD        HOLD
    replayed   HOLDING     APPLY    DUPLICATE   GAP
    replayed   FOLLOWING   DUPLICATE (an answer to a replay that is over)
    held       FOLLOWING   APPLY    DUPLICATE   GAP → HOLDING
    held       HOLDING     HOLD     HOLD        HOLD

A publisher without a replay port is always FOLLOWING; what is ahead is applied and the batches before it are lost.

How a caller drives it: attaching and every GAP are answered by a repair. Keep frames answered with HOLD or GAP; ask
for a replay from `missing()`, call `replay_begin`, offer each answer to `replayed`, call `replay_end`; then offer the
kept frames, in order, to `held`, and keep those answered with HOLD or GAP for the next repair. A GAP inside the replay
is a hole in the answers, or a start later than asked: ask again from the hole, as often as is worth while, then call
`lose_before` with the frame at hand and offer it again. If the replay gives nothing, call `lose_before` with the first
kept frame. On RESTART forget what the publisher held, drop the kept frames, abandon the replay, and offer the frame
again.
"""

import enum
from typing import Final, NamedTuple


class Action(enum.Enum):
    """What to do with a frame."""

    APPLY = "apply"
    HOLD = "hold"
    DUPLICATE = "duplicate"
    GAP = "gap"
    RESTART = "restart"


class Decision(NamedTuple):
    """`missing` is the first batch not seen, where `action` is GAP."""

    action: Action
    missing: int | None = None


class State(enum.Enum):
    """Whether batches are known to be missing."""

    FOLLOWING = "following"
    HOLDING = "holding"


class _Way(enum.Enum):
    LIVE = "live"
    REPLAYED = "replayed"
    HELD = "held"


class _Relation(enum.Enum):
    NEXT = "next"
    BEHIND = "behind"
    AHEAD = "ahead"


_SORTED_OUT: Final = {
    _Relation.NEXT: Action.APPLY,
    _Relation.BEHIND: Action.DUPLICATE,
    _Relation.AHEAD: Action.GAP,
}
_KEPT: Final = dict.fromkeys(_Relation, Action.HOLD)
_STRAY: Final = dict.fromkeys(_Relation, Action.DUPLICATE)

_TRANSITIONS: Final[dict[tuple[_Way, State], dict[_Relation, Action]]] = {
    (_Way.LIVE, State.FOLLOWING): _SORTED_OUT,
    (_Way.LIVE, State.HOLDING): _KEPT,
    (_Way.REPLAYED, State.HOLDING): _SORTED_OUT,
    (_Way.REPLAYED, State.FOLLOWING): _STRAY,
    (_Way.HELD, State.FOLLOWING): _SORTED_OUT,
    (_Way.HELD, State.HOLDING): _KEPT,
}


class Sequence:
    """The sequence numbers of one publisher.

    `replay` says whether it has a replay port, `position` which batch was the last that a restored record holds (None:
    there is no such record). Counters over the machine's life: `gaps` (GAP decisions; without replay,
    frames applied behind a gap), `restarts`, `duplicates`, `lost` (batches given up).
    """

    def __init__(self, *, replay: bool, position: int | None = None) -> None:
        self.gaps = 0
        self.restarts = 0
        self.duplicates = 0
        self.lost = 0
        self._replay = replay
        self._state = State.HOLDING if replay else State.FOLLOWING
        self._next = 0 if position is None else position + 1
        self._last_live: int | None = None
        self._anchored = False
        self._incomplete = False

    @property
    def state(self) -> State:
        """Whether frames are followed or held."""
        return self._state

    @property
    def last_applied(self) -> int | None:
        """The newest batch in the index, None if none is."""
        return self._next - 1 if self._next else None

    @property
    def last_live(self) -> int | None:
        """The newest batch seen live, None if none was."""
        return self._last_live

    @property
    def certain(self) -> bool:
        """Whether every batch that the engine is known to have published since its start was applied."""
        return self._state is State.FOLLOWING and self._anchored and not self._incomplete

    def missing(self) -> int | None:
        """Where to ask for a replay from; None while nothing is known to be missing."""
        return self._next if self._state is State.HOLDING else None

    def live(self, number: int) -> Decision:
        """Decides about a frame just received from the event stream."""
        if self._is_restart(number):
            self.restart()
            return Decision(Action.RESTART)
        self._last_live = number
        return self._decide(_Way.LIVE, number)

    def replayed(self, number: int) -> Decision:
        """Decides about an answer to a replay request."""
        return self._decide(_Way.REPLAYED, number)

    def held(self, number: int) -> Decision:
        """Decides about a live frame that was kept, once the replay it was kept for has ended."""
        return self._decide(_Way.HELD, number)

    def replay_begin(self, start: int) -> None:
        """A replay from `start` was asked for; live frames are held until `replay_end`.

        `start` may lie below `missing()` (what is known already is a duplicate), not above it.
        """
        if not self._replay or start > self._next:
            raise ValueError(f"no replay from {start}: replay port {self._replay}, next batch {self._next}")
        self._state = State.HOLDING

    def replay_end(self, *, complete: bool) -> None:
        """The replay is over: `complete` if its end marker came, else it broke off.

        Either way live frames flow again, and a held frame that does not follow is a GAP as before.
        """
        self._state = State.FOLLOWING
        self._anchored = self._anchored or complete

    def lose_before(self, number: int) -> None:
        """Gives up the batches between the last applied one and `number`; the record is uncertain until a restart."""
        if number > self._next:
            self.lost += number - self._next
            self._next = number
            self._incomplete = True

    def restart(self) -> None:
        """The engine is a new one; also for a caller that learnt it elsewhere. What was known of the old is void."""
        self.restarts += 1
        self._state = State.FOLLOWING
        self._next = 0
        self._last_live = None
        self._anchored = False
        self._incomplete = False

    def _is_restart(self, number: int) -> bool:
        if self._last_live is not None:
            return number <= self._last_live
        return self._state is State.FOLLOWING and number < self._next

    def _decide(self, way: _Way, number: int) -> Decision:
        action = _TRANSITIONS[way, self._state][self._relation(number)]
        if action is Action.GAP:
            self.gaps += 1
            if self._replay:
                self._state = State.HOLDING
                return Decision(Action.GAP, self._next)
            self.lose_before(number)
            action = Action.APPLY
        if action is Action.APPLY:
            self._anchored = True
            self._next = number + 1
        elif action is Action.DUPLICATE:
            self.duplicates += 1
        return Decision(action)

    def _relation(self, number: int) -> _Relation:
        if number == self._next:
            return _Relation.NEXT
        return _Relation.BEHIND if number < self._next else _Relation.AHEAD
