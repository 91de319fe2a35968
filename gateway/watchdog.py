"""How long a request that pulls may be without a first byte, as a pure state machine.

A pull that hangs holds its request for as long as the engine's own deadlines are, of which some do not exist. What the
request would have taken without the source is known, so it has that, and a margin:

    patience = min(max(floor, alone + margin), max(cap, LATE · with the source)),   at least the cap if they never met
    fires    = turn + patience

Both times are without the wait for what the pod has before it. `margin` is what pulls have come later than expected,
the mean and four times the deviation of it, as TCP sets its retransmissions. The turn begins with the expected wait,
and not before those that came earlier have answered: an engine takes prompts in the order in which they came. An engine
looks after pulls between its steps only, so where it computes other prompts when the time is up, there is time for some
of its steps as well, once.

Then the pod itself is asked, by a poll, since a request may be late for more reasons than its pull. vLLM says how many
requests wait for capacity, and how many are deferred, which is what one that waits for its pull is:

    all that pull here are deferred   →  asked again: fire, if it is so twice in a row, or thrice for what is no stream
    none is, and some want capacity   →  its turn has not come
    none is, and none wants capacity  →  it is being computed: the pull is over, and so is the watch
    some are                          →  it is not known which
    none waits, and none runs         →  nor is anything, for it is there

Deferred are others, too: who is loaded for from another tier, or waits for a grammar, or pulls for a stranger. So one
poll proves little. For a stream the next one follows at once. An answer in one piece may be under way, and is not done
twice for a coincidence: its polls are a patience apart.

Where that is not known, or the pod does not say, a stream gets the cap once more and is then given up. An answer in one
piece is not: its first byte comes after its last token, and it may be nothing but long.

Time is an argument, in seconds of any monotonic clock.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

LOOK_S: Final = 0.25
"""Between two looks at whether its turn has come."""

_ASK_S: Final = 0.05
"""Between two looks at whether the poll that was asked for is there."""

_ANSWER_S: Final = 1.0
"""After which a poll that was asked for is not waited for."""

_LATE: Final = 1.5
"""A pull that is expected to take long is late when it takes so many times as long."""

_STEPS: Final = 3
"""Of the engine that a pull takes: it is asked for, it comes, the rest of the prompt is computed."""

_POLLS_OF_A_STREAM: Final = 2
"""That have to find all that pull deferred: others' requests may be that, too, for as long as a load takes."""

_POLLS: Final = 3
"""Likewise for an answer in one piece, which may be computed for as long as it takes."""

_SMOOTHING: Final = 0.125
_DEVIATION_SMOOTHING: Final = 0.25
_DEVIATIONS: Final = 4.0
"""As in RFC 6298."""

Finding = Literal["wait", "poll", "fire", "over"]


class Margin:
    """By how much pulls come later than expected. `seconds` is what is added to an expectation."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._deviation = 0.0
        self._first = True

    @property
    def seconds(self) -> float:
        """Never below 0: what comes early is no reason for less patience."""
        return max(0.0, self._mean) + _DEVIATIONS * self._deviation

    def observe(self, late_s: float) -> None:
        """A pull came so much later than expected, below 0: earlier."""
        if self._first:
            self._first, self._mean, self._deviation = False, late_s, abs(late_s) / 2
            return
        self._deviation += _DEVIATION_SMOOTHING * (abs(late_s - self._mean) - self._deviation)
        self._mean += _SMOOTHING * (late_s - self._mean)


class Bounds(NamedTuple):
    """Seconds: of the patience, whatever is expected."""

    floor: float
    cap: float


def patience_s(alone_s: float, pulling_s: float, margin_s: float, bounds: Bounds, *, met: bool) -> float:
    """Seconds from its turn on; `alone_s` and `pulling_s` are expected without and with the source, less the wait."""
    longest = max(bounds.cap, _LATE * pulling_s)
    patience = min(max(bounds.floor, alone_s + margin_s), longest)
    return patience if met else max(patience, bounds.cap)


class Seen(NamedTuple):
    """What is known of the rank: of this gateway's requests, and of a poll. None: the pod does not say.

    `ahead`: how many stand before it. `pulls`: how many have pulls that are not known to be over, itself included.
    `step_s`: what a step of the others' prompts takes.
    """

    ahead: int
    pulls: int
    step_s: float = 0.0
    polled_at: float = 0.0
    waiting: int | None = None
    running: int | None = None
    deferred: int | None = None


class Look(NamedTuple):
    """What was found, and when to look again. "poll": have the pod polled meanwhile."""

    finding: Finding
    again_s: float = 0.0


class Watch:
    """One request's. `streams`: its first byte comes with its first token."""

    __slots__ = ("_asked", "_bounds", "_deferred", "_due", "_extended", "_patience", "_stepped", "_streams")

    def __init__(self, now: float, *, wait_s: float, patience_s: float, bounds: Bounds, streams: bool) -> None:
        self._due = now + wait_s + patience_s
        self._patience = patience_s
        self._bounds = bounds
        self._streams = streams
        self._asked: float | None = None  # when a poll was asked for
        self._extended = self._stepped = False
        self._deferred = 0  # polls in a row by which all that pull there are

    def first_s(self, now: float, ahead: int) -> float:
        """Seconds until the first look."""
        return LOOK_S if ahead else max(0.0, self._due - now)

    def look(self, now: float, seen: Seen) -> Look:
        """To be asked at the time that the last look named."""
        if seen.ahead:
            self._due = max(self._due, now + self._patience)
            return Look("wait", LOOK_S)
        if now >= self._due and seen.step_s and not self._stepped:
            self._stepped, self._due = True, now + _STEPS * seen.step_s
        if now < self._due:
            return Look("wait", self._due - now)
        if self._asked is None:
            self._asked = now
            return Look("poll", _ASK_S)
        if seen.polled_at >= self._asked:
            return self._by_poll(now, seen)
        if now - self._asked < _ANSWER_S:
            return Look("wait", _ASK_S)
        return self._unknown(now)

    def _by_poll(self, now: float, seen: Seen) -> Look:
        waiting, deferred = seen.waiting, seen.deferred
        if waiting is None or (waiting == 0 and seen.running == 0):  # the page is of between two states
            return self._unknown(now)
        if waiting == 0:
            return Look("over")
        if seen.running == 0 if deferred is None else deferred >= seen.pulls:
            return self._all_deferred(now)
        if deferred is None or deferred:
            return self._unknown(now)
        self._deferred = 0
        return self._later(now, self._patience)  # all that wait want capacity

    def _all_deferred(self, now: float) -> Look:
        self._deferred += 1
        if self._deferred >= (_POLLS_OF_A_STREAM if self._streams else _POLLS):
            return self._fire()
        return self._later(now, LOOK_S if self._streams else self._patience)

    def _fire(self) -> Look:
        self._asked = None  # who may not go again has it polled anew
        return Look("fire", LOOK_S)

    def _unknown(self, now: float) -> Look:
        """Nobody can tell whether it hangs."""
        self._deferred = 0
        if not self._streams:
            return self._later(now, self._patience)
        if self._extended:
            return self._fire()
        self._extended = True
        return self._later(now, self._bounds.cap)

    def _later(self, now: float, seconds: float) -> Look:
        self._due, self._asked = now + seconds, None
        return Look("wait", seconds)
