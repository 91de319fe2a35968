"""What a modelled pod loads before it computes: from its CPU tier, and from a peer's over the links.

As in `loadgen.pulls`: the peer answers a lookup between its steps, holds what it holds by then, and begins the transfer
between its steps, too: busy, it costs two of them. The first pull of a pair sets up its connection, which later ones
wait for; pods that were `met_before` have one. A pull that finds nothing has cost its lookup.

Blocks come once, as in `loadgen.loads`: from the answer of a lookup to their landing they are on their way, and who
wants some of them, from whichever peer or from none, waits for these and then looks again. Who names a peer has asked
it before, and asks again only for what it was found to have. Who waits for a pull that comes to nothing, or whose
client leaves, looks again at once. One whose own pull has failed asks nobody any more.
"""

from collections.abc import Callable
from collections.abc import Sequence as Run

from loadgen.profile import PodProfile
from loadgen.sim.clock import Clock
from loadgen.sim.engine import Engine
from loadgen.sim.links import Links
from loadgen.sim.sequence import Sequence


class Loader:
    """Loads for one pod. `engine_of` finds a peer's engine by its number, None where it is gone; `met_before` tells
    whether this pod has pulled from it before the load began.
    """

    def __init__(
        self,
        clock: Clock,
        profile: PodProfile,
        links: Links,
        number: int,
        engine_of: Callable[[int], Engine | None],
        met_before: Callable[[int], bool],
    ) -> None:
        self.pulled_tokens = 0
        self.pulls = 0
        self.empty_pulls = 0
        self.clock = clock
        self.profile = profile
        self.links = links
        self.number = number
        self.engine_of = engine_of
        self.met_before = met_before
        self._met: dict[int, tuple[Engine, float]] = {}  # peers, and since when they can be asked
        self._coming: dict[Sequence, _Pull] = {}  # those that were told what they bring

    def load(self, engine: Engine, sequence: Sequence, restorable: int) -> None:
        """Load what the tier below and the named peer have of a sequence's prompt, behind what it holds."""
        sequence.left = lambda: self._left(engine, sequence)
        if not self._begin(engine, sequence, restorable):
            self.clock.after(0.0, lambda: self._landed(engine, sequence, 0, 0))

    def brings(self, sequence: Sequence, block: int) -> bool:
        """Whether that block of a sequence's prompt is on its way to this pod. O(pulls under way)."""
        return self._bringing(sequence, block, block + 1) is not None

    def waits(self, sequence: Sequence, first: int, end: int) -> bool:
        """Whether one of these blocks is on its way for another sequence; then it waits. O(pulls under way)."""
        if (pull := self._bringing(sequence, first, end)) is None:
            return False
        pull.awaited.append(sequence)
        return True

    def expect(self, pull: "_Pull") -> None:
        """What it brings is on its way."""
        self._coming[pull.sequence] = pull

    def copy(self, engine: Engine, sequence: Sequence, restored: int, pulled: int) -> None:
        """Bring blocks to the GPU, and the sequence back to its engine."""
        seconds = self.profile.restore_s((restored + pulled) * self.profile.block_size)
        self.clock.after(seconds, lambda: self._landed(engine, sequence, restored, pulled))

    def missed(self, engine: Engine, sequence: Sequence) -> None:
        """Its pull comes to nothing: it, and who waited for that, look again."""
        sequence.source = None
        self._look_again(engine, [sequence, *self._ended(sequence)])

    def _begin(self, engine: Engine, sequence: Sequence, restorable: int) -> bool:
        """Begin to ask the peer, else to wait for what is on its way, else to copy; False where nothing is to load."""
        first, full = sequence.named + restorable, sequence.prompt // self.profile.block_size
        source = None if sequence.source is None else self.engine_of(sequence.source)
        reach = full if sequence.reach is None else sequence.reach
        if source is not None and sequence.source is not None and first < reach:
            pull = _Pull(self, engine, sequence, restorable, sequence.source, source)
            self.clock.at(self._meet(sequence.source, source), pull.ask)
            return True
        if first < full and self.waits(sequence, first, first + 1):
            return True
        if restorable:
            self.copy(engine, sequence, restorable, 0)
        return restorable > 0

    def _bringing(self, sequence: Sequence, first: int, end: int) -> "_Pull | None":
        return next((pull for pull in self._coming.values() if pull.brings(sequence.keys, first, end)), None)

    def _meet(self, number: int, source: Engine) -> float:
        """When a peer can be asked. One that was restarted is met for the first time."""
        if self.met_before(number):
            return self.clock.now
        engine, since = self._met.get(number, (None, 0.0))
        if engine is not source:
            since = self.clock.now + self.profile.ms(self.profile.pull_setup_ms)
            self._met[number] = source, since
        return since

    def _landed(self, engine: Engine, sequence: Sequence, restored: int, pulled: int) -> None:
        if not sequence.over:
            engine.memory.loaded(sequence, restored, pulled)
        self._look_again(engine, self._ended(sequence), [sequence])

    def _left(self, engine: Engine, sequence: Sequence) -> None:
        """Its client has left: it waits no longer, and nobody waits for it."""
        for pull in self._coming.values():
            if sequence in pull.awaited:
                pull.awaited.remove(sequence)
                engine.rejoin([sequence])
                return
        self._look_again(engine, self._ended(sequence))

    def _ended(self, sequence: Sequence) -> list[Sequence]:
        """Nothing is on its way for a sequence any more; returns who waited for what was."""
        pull = self._coming.pop(sequence, None)
        return [] if pull is None else pull.awaited

    def _look_again(self, engine: Engine, awaited: list[Sequence], back: Run[Sequence] = ()) -> None:
        """They load what is left to load. Those with nothing left are back at once, and so in one step with `back`."""
        ready = [sequence for sequence in awaited if sequence.over or not self._goes_on(engine, sequence)]
        if back or ready:
            engine.rejoin([*back, *ready])

    def _goes_on(self, engine: Engine, sequence: Sequence) -> bool:
        restorable = engine.memory.found_again(sequence)
        if self._begin(engine, sequence, restorable):
            return True
        engine.memory.loaded(sequence, 0, 0)
        return False


class _Pull:
    """One pull, whose steps follow each other from top to bottom. What fails on the way is a miss."""

    __slots__ = ("_consumer", "_first", "_found", "_loader", "_number", "_restored", "_source", "awaited", "sequence")

    def __init__(
        self, loader: Loader, consumer: Engine, sequence: Sequence, restored: int, number: int, source: Engine
    ) -> None:
        self._loader = loader
        self._consumer = consumer
        self.sequence = sequence
        self.awaited: list[Sequence] = []  # they look again once its blocks are here, or will not come
        self._restored = restored
        self._number = number
        self._source = source
        self._first, self._found = sequence.named + restored, 0  # of the blocks that it brings, and how many

    def brings(self, keys: list[int], first: int, end: int) -> bool:
        """Whether one of these blocks of a prompt is among those that it moves. O(1): keys are chained."""
        first = max(first, self._first)
        return first < min(end, self._first + self._found) and self.sequence.keys[first] == keys[first]

    def ask(self) -> None:
        """What has it? It answers between its steps."""
        self._source.between_steps(self._answered)

    def _answered(self) -> None:
        sequence, loader = self.sequence, self._loader
        asked = self._first
        found = 0 if sequence.over else self._look_again()
        sequence.reach = self._first + found
        if found and loader.waits(sequence, self._first, self._first + found):
            return
        if not found and (sequence.over or self._first > asked):
            # What it was to bring has come by itself, or is not wanted any more.
            loader.missed(self._consumer, sequence)
            return
        loader.pulls += 1
        if not found:
            self._miss()
            return
        self._source.memory.cpu.touch(sequence.keys, self._first, self._first + found)
        self._found = found
        loader.expect(self)
        loader.clock.after(
            loader.profile.ms(loader.profile.pull_fixed_ms), lambda: self._source.between_steps(self._fetch)
        )

    def _look_again(self) -> int:
        """How many blocks the source has of those that are lacked by now: some may have come from elsewhere."""
        sequence = self.sequence
        self._restored = self._consumer.memory.found_again(sequence)
        self._first = sequence.named + self._restored
        full = sequence.prompt // self._loader.profile.block_size
        return 0 if self._lost else self._source.memory.cpu.held(sequence.keys, self._first, full)

    def _fetch(self) -> None:
        if self._lost:
            self._miss()
            return
        seconds = self._loader.profile.pull_s(self._tokens)
        self._loader.links.send(self._number, self._loader.number, seconds, self._arrived)

    def _arrived(self) -> None:
        if self._lost:
            self._miss()
            return
        self._loader.pulled_tokens += self._tokens
        self._loader.copy(self._consumer, self.sequence, self._restored, self._found)

    def _miss(self) -> None:
        self._loader.empty_pulls += 1
        self._loader.missed(self._consumer, self.sequence)

    @property
    def _tokens(self) -> int:
        return self._found * self._loader.profile.block_size

    @property
    def _lost(self) -> bool:
        """Whether the source has gone; one that came up in its place holds nothing."""
        return self._loader.engine_of(self._number) is not self._source
