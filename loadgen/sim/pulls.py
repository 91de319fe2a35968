"""What a modelled pod loads before it computes: from its CPU tier, and from a peer's over the links.

As in `loadgen.pulls`: the peer answers a lookup between its steps, holds what it holds by then, and is asked again for
each transfer's start. The first pull of a pair sets up its connection. A pull that finds nothing has cost its lookup.
"""

from collections.abc import Callable

from loadgen.profile import PodProfile
from loadgen.sim.clock import Clock
from loadgen.sim.engine import Engine
from loadgen.sim.links import Links
from loadgen.sim.sequence import Sequence


class Loader:
    """Loads for one pod. `engine_of` finds a peer's engine by its number, None where it is gone."""

    def __init__(
        self,
        clock: Clock,
        profile: PodProfile,
        links: Links,
        number: int,
        engine_of: Callable[[int], Engine | None],
    ) -> None:
        self.pulled_tokens = 0
        self.pulls = 0
        self.empty_pulls = 0
        self._clock = clock
        self._profile = profile
        self._links = links
        self._number = number
        self._engine_of = engine_of
        self._known: set[int] = set()

    def load(self, engine: Engine, sequence: Sequence, restorable: int) -> None:
        """Load what the tier below and the named peer have of a sequence's prompt, behind what it holds."""
        restored = restorable
        first, full = sequence.named, sequence.prompt // self._profile.block_size
        source = None if sequence.source is None else self._engine_of(sequence.source)
        if source is None or sequence.source is None or first + restored >= full:
            self._copy(engine, sequence, restored, 0)
            return
        number = sequence.source
        setup = 0.0 if number in self._known else self._profile.ms(self._profile.pull_setup_ms)
        self._known.add(number)
        self.pulls += 1
        self._clock.at(
            max(source.step_ends(), self._clock.now + setup),
            lambda: self._looked_up(engine, sequence, restored, number),
        )

    def _looked_up(self, engine: Engine, sequence: Sequence, restored: int, number: int) -> None:
        source = self._engine_of(number)
        first, full = sequence.named + restored, sequence.prompt // self._profile.block_size
        found = 0
        if source is not None and not sequence.over:
            found = source.memory.cpu.held(sequence.keys, first, full)
            source.memory.cpu.touch(sequence.keys, first + found)
        if not found:
            self.empty_pulls += 1
            self._copy(engine, sequence, restored, 0)
            return
        tokens = found * self._profile.block_size
        self.pulled_tokens += tokens
        fixed = self._profile.ms(self._profile.pull_fixed_ms)
        self._clock.after(
            fixed,
            lambda: self._links.send(
                number,
                self._number,
                self._profile.pull_s(tokens),
                lambda: self._copy(engine, sequence, restored, found),
            ),
        )

    def _copy(self, engine: Engine, sequence: Sequence, restored: int, pulled: int) -> None:
        seconds = self._profile.restore_s((restored + pulled) * self._profile.block_size)
        self._clock.after(seconds, lambda: self._landed(engine, sequence, restored, pulled))

    def _landed(self, engine: Engine, sequence: Sequence, restored: int, pulled: int) -> None:
        if not sequence.over:
            engine.memory.loaded(sequence, restored, pulled)
        engine.rejoin(sequence)
