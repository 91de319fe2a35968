"""What a modelled pod loads before it computes: from its CPU tier, and from a peer's over the links.

As in `loadgen.pulls`: the peer answers a lookup between its steps, holds what it holds by then, and begins the transfer
between its steps, too: busy, it costs two of them. The first pull of a pair sets up its connection, which later ones
wait for; pods that were `met_before` have one. A pull that finds nothing has cost its lookup.
"""

from collections.abc import Callable

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

    def load(self, engine: Engine, sequence: Sequence, restorable: int) -> None:
        """Load what the tier below and the named peer have of a sequence's prompt, behind what it holds."""
        first, full = sequence.named + restorable, sequence.prompt // self.profile.block_size
        source = None if sequence.source is None else self.engine_of(sequence.source)
        if source is None or sequence.source is None or first >= full:
            self.copy(engine, sequence, restorable, 0)
            return
        self.pulls += 1
        pull = _Pull(self, engine, sequence, restorable, sequence.source, source)
        self.clock.at(self._meet(sequence.source, source), pull.ask)

    def copy(self, engine: Engine, sequence: Sequence, restored: int, pulled: int) -> None:
        """Bring blocks to the GPU, and the sequence back to its engine."""
        seconds = self.profile.restore_s((restored + pulled) * self.profile.block_size)
        self.clock.after(seconds, lambda: self._landed(engine, sequence, restored, pulled))

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
        engine.rejoin(sequence)


class _Pull:
    """One pull, whose steps follow each other from top to bottom. What fails on the way is a miss."""

    __slots__ = ("_consumer", "_found", "_loader", "_number", "_restored", "_sequence", "_source")

    def __init__(
        self, loader: Loader, consumer: Engine, sequence: Sequence, restored: int, number: int, source: Engine
    ) -> None:
        self._loader = loader
        self._consumer = consumer
        self._sequence = sequence
        self._restored = restored
        self._number = number
        self._source = source
        self._found = 0

    def ask(self) -> None:
        """What has it? It answers between its steps."""
        self._source.between_steps(self._answered)

    def _answered(self) -> None:
        sequence, cpu = self._sequence, self._source.memory.cpu
        first, full = sequence.named + self._restored, sequence.prompt // self._loader.profile.block_size
        if self._lost or sequence.over or not (found := cpu.held(sequence.keys, first, full)):
            self._miss()
            return
        cpu.touch(sequence.keys, first, first + found)
        self._found = found
        self._loader.clock.after(
            self._loader.profile.ms(self._loader.profile.pull_fixed_ms), lambda: self._source.between_steps(self._fetch)
        )

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
        self._loader.copy(self._consumer, self._sequence, self._restored, self._found)

    def _miss(self) -> None:
        self._loader.empty_pulls += 1
        self._loader.copy(self._consumer, self._sequence, self._restored, 0)

    @property
    def _tokens(self) -> int:
        return self._found * self._loader.profile.block_size

    @property
    def _lost(self) -> bool:
        """Whether the source has gone; one that came up in its place holds nothing."""
        return self._loader.engine_of(self._number) is not self._source
