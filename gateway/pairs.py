"""Which peers must not be named as sources now: a circuit breaker per pair of ranks and per source, pure.

    closed ──a pull failed──▶ open ──back-off──▶ due ──trial──▶ closed
                               ▲                          │
                               └──failed, twice as long───┘

One failure opens a pair: it may have cost somebody seconds, and a trial costs nobody any. A source from which pulls of
several consumers failed, and none brought anything since, is not named to anybody. So what is wrong with a source is
paid for by `consumers` requests, not by one for each.

Two failures are told apart. A *late* pull held its request until somebody gave it up. One that brought *nothing* was a
miss, as between pods that refuse each other, or where the blocks are gone.

Trials are made by whoever owns this, with a small prompt of its own. How one ended is `passed`, `failed`, or `unclear`
where it could not be told: then the next request is the trial. What a small prompt can do a large one may not, so only
a request's success ends a row of failures.

A port on which nobody listens makes a rank no source for as long as that is so. Beside all that stand pods which can
never pull from each other (see `agreement`); they are no matter of time.

Time is an argument, in seconds of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, NamedTuple

from scorers import Barred, Rank

Why = Literal["late", "nothing", "restarted"]
_MOST_DOUBLINGS: Final = 30  # beyond, floats would overflow before the bound is applied


class Pair(NamedTuple):
    """Who is pulled from, and who pulls."""

    source: Rank
    consumer: Rank


class Broken(NamedTuple):
    """An open breaker as it is shown: `pair` has no consumer where it is the source's. `due_s`: until its trial."""

    source: Rank
    consumer: Rank | None
    why: str
    failures: int
    due_s: float | None


class _State:
    """One pair that is not as it should be."""

    __slots__ = ("due", "failures", "open", "postponed", "trial", "why")

    def __init__(self) -> None:
        self.failures = 0  # in a row
        self.open = True
        self.due = 0.0
        self.trial = False
        self.postponed = 0  # trials in a row that could not be made
        self.why: Why = "late"


class Pairs:
    """All of them. `barred` is what decisions go by; None: every peer may be named."""

    def __init__(self, *, cooldown: float = 2.0, longest: float = 300.0, consumers: int = 2) -> None:
        self.barred: Barred | None = None
        self._states: dict[Pair, _State] = {}
        self._struck: dict[Rank, set[Rank]] = {}  # source → consumers whose pulls failed since one last succeeded
        self._deaf: set[Rank] = set()
        self._strangers: frozenset[tuple[str, str]] = frozenset()
        self._doubted: dict[Pair, float] = {}  # pairs to be tried though nothing failed
        self.reconfigure(cooldown=cooldown, longest=longest, consumers=consumers)

    def reconfigure(self, *, cooldown: float, longest: float, consumers: int) -> None:
        """From now on these. `cooldown`: of the first failure, and `longest` of any; `consumers`: see the module."""
        self._cooldown = cooldown
        self._longest = longest
        self._consumers = consumers
        self._redraw()

    def failed(self, source: Rank, consumer: Rank, why: Why, now: float) -> None:
        """A pull failed. O(open pairs)."""
        state = self._states.setdefault(Pair(source, consumer), _State())
        if not state.open or state.trial or not state.failures:  # else one that was under way when the first failed
            state.failures += 1
            state.due = now + self._back_off_s(state.failures)
        state.open, state.trial, state.why, state.postponed = True, False, why, 0
        self._struck.setdefault(source, set()).add(consumer)
        self._redraw()

    def restarted(self, source: Rank, consumers: Iterable[Rank], now: float) -> None:
        """The source is another process now, and these may believe in what they shared with the old one.

        They are tried before any request is. O(open pairs).
        """
        for consumer in consumers:
            state = self._states.setdefault(Pair(source, consumer), _State())
            state.open, state.trial, state.due = True, False, now
            state.why, state.postponed = "restarted", 0
        self._redraw()

    def passed(self, source: Rank, consumer: Rank) -> bool:
        """A trial brought something; whether that closed a breaker. O(open pairs)."""
        struck, state = self._struck.pop(source, None), self._states.get(Pair(source, consumer))
        opened = state is not None and state.open
        if state is not None:
            state.open, state.trial, state.postponed = False, False, 0
        if opened or struck is not None:
            self._redraw()
        return opened

    def succeeded(self, source: Rank, consumer: Rank) -> bool:
        """A request's pull brought something; whether that closed a breaker. O(1) where none was open."""
        known = self._states.pop(Pair(source, consumer), None)
        struck = self._struck.pop(source, None)
        if known is None and struck is None:
            return False
        self._redraw()
        return known is not None and known.open

    def unclear(self, source: Rank, consumer: Rank) -> None:
        """Nobody can tell by a trial: requests may try, and one more failure counts as one in a row."""
        state = self._states.get(Pair(source, consumer))
        if state is None:
            return
        state.open, state.trial, state.postponed = False, False, 0
        struck = self._struck.get(source)
        if struck is not None:
            struck.discard(consumer)
        self._redraw()

    def postponed(self, source: Rank, consumer: Rank, now: float) -> None:
        """The trial could not be made: the next is later each time, since what keeps it may be there to stay."""
        state = self._states.get(Pair(source, consumer))
        if state is not None and state.trial:
            state.postponed += 1
            state.trial, state.due = False, now + self._back_off_s(state.postponed)

    def doubt(self, source: Rank, consumer: Rank, now: float) -> None:
        """Nobody can tell by requests whether they can pull: try them, and name them meanwhile."""
        self._doubted.setdefault(Pair(source, consumer), now)

    def due(self, now: float) -> list[Pair]:
        """The pairs to be tried now, of each source one, which count as on trial from then on. O(open pairs)."""
        found: dict[Rank, Pair] = {}
        busy = self._busy()
        for pair, state in sorted(self._states.items(), key=lambda item: item[1].due):
            if state.open and state.due <= now and pair.source not in busy:
                state.trial = True
                found[pair.source] = pair
                busy.add(pair.source)
        for pair in list(self._doubted):
            if pair.source not in busy:
                del self._doubted[pair]
                found[pair.source] = pair
                busy.add(pair.source)
        return list(found.values())

    def next_due(self) -> float | None:
        """When `due` will have something, None: never before a trial has ended or a pull has failed. O(open pairs)."""
        busy = self._busy()
        times = [state.due for pair, state in self._states.items() if state.open and pair.source not in busy]
        doubts = [due for pair, due in self._doubted.items() if pair.source not in busy]
        return min([*times, *doubts], default=None)

    def listens(self, source: Rank, *, listening: bool) -> bool:
        """Whether anybody listens on the port that a rank serves pulls from; whether that is news. O(open pairs)."""
        if listening is (source not in self._deaf):
            return False
        (self._deaf.discard if listening else self._deaf.add)(source)
        self._redraw()
        return True

    def differ(self, strangers: Iterable[tuple[str, str]]) -> None:
        """These pods, by URL, can never pull from each other. O(open pairs)."""
        both = {each for one, other in strangers for each in ((one, other), (other, one))}
        if both != self._strangers:
            self._strangers = frozenset(both)
            self._redraw()

    def parted(self, pod: str) -> None:
        """A pod, by URL, is gone; what comes back is another process. O(pairs)."""
        self._drop(lambda rank: rank[0] == pod)

    def keep(self, pods: Iterable[str]) -> None:
        """Only these pods, by URL, exist. O(pairs)."""
        known = set(pods)
        self._drop(lambda rank: rank[0] not in known)

    def why(self, source: Rank, consumer: Rank) -> Literal["differ", "breaker"] | None:
        """Why the one must not be named to the other; None: it may. O(1)."""
        if (source[0], consumer[0]) in self._strangers:
            return "differ"
        barred = self.barred
        if barred is not None and (source in barred.sources or (source, consumer) in barred.pairs):
            return "breaker"
        return None

    def is_deaf(self, source: Rank) -> bool:
        """Whether nobody listens there, as far as is known."""
        return source in self._deaf

    def open_counts(self) -> tuple[tuple[Literal["pair", "source"], int], ...]:
        """How many breakers are open. O(1)."""
        barred = self.barred or Barred()
        return ("pair", len(barred.pairs)), ("source", len(barred.sources))

    def broken(self, now: float) -> Iterator[Broken]:
        """What is open, sources first. O(open pairs)."""
        for source in sorted(self._deaf):
            yield Broken(source, None, "port", 1, None)
        for source, struck in self._struck.items():
            if len(struck) >= self._consumers:
                yield Broken(source, None, "consumers", len(struck), None)
        for pair, state in self._states.items():
            if state.open:
                due_s = None if state.trial else max(0.0, state.due - now)
                yield Broken(pair.source, pair.consumer, state.why, state.failures, due_s)

    def _back_off_s(self, row: int) -> float:
        """Seconds until a trial, after so many in a row that came to nothing."""
        return min(self._longest, self._cooldown * 2.0 ** min(row - 1, _MOST_DOUBLINGS))

    def _busy(self) -> set[Rank]:
        """The sources of trials under way."""
        return {pair.source for pair, state in self._states.items() if state.trial}

    def _drop(self, gone: Callable[[Rank], bool]) -> None:
        self._states = {
            pair: state for pair, state in self._states.items() if not (gone(pair.source) or gone(pair.consumer))
        }
        self._doubted = {
            pair: due for pair, due in self._doubted.items() if not (gone(pair.source) or gone(pair.consumer))
        }
        self._deaf = {rank for rank in self._deaf if not gone(rank)}
        left = {
            source: {rank for rank in struck if not gone(rank)}
            for source, struck in self._struck.items()
            if not gone(source)
        }
        self._struck = {source: struck for source, struck in left.items() if struck}
        self._redraw()

    def _redraw(self) -> None:
        sources = frozenset(self._deaf | {s for s, struck in self._struck.items() if len(struck) >= self._consumers})
        pairs = frozenset((pair.source, pair.consumer) for pair, state in self._states.items() if state.open)
        anything = sources or pairs or self._strangers
        self.barred = Barred(sources, pairs, self._strangers) if anything else None
