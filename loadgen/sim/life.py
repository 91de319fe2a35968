"""One request, from its placement to its end, and the gateway's books on it."""

from collections.abc import Callable
from typing import Final

import msgspec

from gateway.decision import Decision
from gateway.leases import Lease
from index import Counted
from loadgen.sim.clock import Timer
from loadgen.sim.fleet import Fleet, ModelledPod
from loadgen.sim.sequence import Sequence
from loadgen.workload import Request

HOP_S: Final = 0.0005
"""From client to pod, gateway and network included, and as long back."""


class Outcome(msgspec.Struct, kw_only=True):
    """What became of one request; seconds since the load's start, None where it did not come to that."""

    number: int
    session: str
    phase: str
    prompt_tokens: int
    output_tokens: int
    due: float
    pod: int | None = None
    source: int | None = None
    first: float | None = None
    ended: float | None = None
    error: str = ""
    gpu_tokens: int = 0
    cpu_tokens: int = 0
    pulled_tokens: int = 0


class Life:
    """A request on the pod that it was placed on. `over` is called once, when it has ended, well or not."""

    __slots__ = ("_fleet", "_lease", "_over", "_predicted", "_sequence", "_timer", "outcome", "pod", "request")

    def __init__(
        self,
        fleet: Fleet,
        request: Request,
        outcome: Outcome,
        decision: Decision,
        pod: ModelledPod,
        over: Callable[["Life"], None],
    ) -> None:
        self.request = request
        self.outcome = outcome
        self.pod = pod
        self._fleet = fleet
        self._over = over
        self._sequence: Sequence | None = None
        # The decision itself, with a candidate per pod, is not kept: thousands may be under way.
        self._predicted = decision.predicted_cached if decision.source is None else None
        expected = None if self._predicted is None else Counted(outcome.prompt_tokens, self._predicted)
        self._lease: Lease = decision.leased(fleet.table, expected)
        self._timer: Timer | None = None

    def begin(self, sequence: Sequence, timeout_s: float) -> None:
        """On its way to the pod; its client waits for so long."""
        self._timer = self._fleet.clock.after(timeout_s, lambda: self.fail("client timeout"))
        self._send(sequence)

    def first_token(self) -> None:
        """The pod answers."""
        self._lease.first_byte()
        self.outcome.first = self._fleet.clock.now + HOP_S

    def ended(self) -> None:
        """The answer is whole."""
        self._lease.completed()
        self._reported()
        self._last()

    def fail(self, error: str) -> None:
        """It has no answer, unless that is on its way."""
        if self.outcome.ended is not None:
            return
        self.outcome.error = error
        if self._sequence is not None:
            self.pod.engine.abort(self._sequence)
            self._sequence.over = True
        self._close()

    def _send(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._fleet.clock.after(HOP_S, lambda: self._arrive(sequence))

    def _arrive(self, sequence: Sequence) -> None:
        if sequence.over:
            return
        try:
            self.pod.engine.submit(sequence)
        except ValueError as error:
            self.fail(str(error))

    def _reported(self) -> None:
        """The pod tells what it has reused of the prompt."""
        outcome, sequence = self.outcome, self._sequence
        if sequence is not None and sequence.reused is not None:
            outcome.gpu_tokens, outcome.cpu_tokens, outcome.pulled_tokens = sequence.reused
            if self._predicted is not None:
                trust = self.pod.entry.streams[0].trust
                trust.compared(self._predicted, sum(sequence.reused), self._fleet.clock.now)

    def _last(self) -> None:
        """The last token is on its way."""
        clock = self._fleet.clock
        self.outcome.ended = clock.now + HOP_S
        if self._timer is not None:
            self._timer.cancel()
        clock.at(self.outcome.ended, self._close)

    def _close(self) -> None:
        self._lease.close()
        self._sequence = None
        if self._timer is not None:
            self._timer.cancel()
        self._over(self)
