"""Prefill and decode on pods of their own: a prompt is computed on one pod, and answered on another.

The first leg asks a prefill pod for one token; it may pull from any pod, and so has what a decode pod has answered in
the turn before. At its end the second leg goes to a decode pod, which gets what it lacks of the prompt as a pull from
the prefill pod: over the links, out of that pod's CPU tier, between its steps. The client's first token is the second
leg's. Both legs are placed by the arm, each among the pods of its role. How long the second one takes says nothing of
what computing or pulling costs, so nothing is learned from it.

A gateway has no such pods yet: this is what they would be worth.
"""

from collections.abc import Callable

from gateway.decision import Decision
from gateway.errors import GatewayError
from loadgen.sim.fleet import Fleet, ModelledPod
from loadgen.sim.life import HOP_S, Life, Outcome
from loadgen.sim.sequence import Sequence
from loadgen.workload import Request
from scorers import Role


class InTwoLegs(Life):
    """A request whose prompt is computed where it was placed; `decide` then places its answer."""

    __slots__ = ("_decide", "_whole")

    def __init__(
        self,
        decide: Callable[[Role], tuple[Decision, ModelledPod, int | None]],
        fleet: Fleet,
        request: Request,
        outcome: Outcome,
        decision: Decision,
        pod: ModelledPod,
        over: Callable[[Life], None],
    ) -> None:
        super().__init__(fleet, request, outcome, decision, pod, over)
        self._decide = decide

    def _send(self, sequence: Sequence) -> None:
        """The prompt, and one token of the answer."""
        self._whole = sequence
        tokens = sequence.tokens[: sequence.prompt + 1]
        full = len(tokens) // self._fleet.profile.block_size
        prompt = Sequence(
            sequence.number,
            tokens,
            sequence.keys[:full],
            sequence.prompt,
            source=sequence.source,
            first=self._lease.first_byte,
            ended=self._computed,
        )
        super()._send(prompt)

    def _computed(self) -> None:
        self._reported()
        self._fleet.clock.after(HOP_S, self._hand_over)

    def _hand_over(self) -> None:
        if self.outcome.error:
            return
        self._lease.close()
        try:
            decision, pod, _ = self._decide("decode")
        except GatewayError as error:
            self.fail(error.code)
            return
        self._lease = decision.leased(self._fleet.table, streams=False)
        self._whole.source = self.pod.number if pod is not self.pod else None
        self.pod = pod
        super()._send(self._whole)

    def ended(self) -> None:
        """The answer is whole."""
        self._last()
