"""One load on one fleet under one arm, from the first request to the last answer."""

from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Final

import msgspec

from gateway.decision import Decision
from gateway.errors import GatewayError
from gateway.leases import Lease
from index import Counted
from loadgen.profile import PodProfile
from loadgen.sim import sequence as pod_side
from loadgen.sim.arms import Arm
from loadgen.sim.clock import Clock, Timer
from loadgen.sim.fleet import MODEL, Fleet, ModelledPod
from loadgen.sim.prompts import Prompts
from loadgen.sim.timing import ProfileTiming, Timing
from loadgen.workload import Request

_HOP_S: Final = 0.0005
"""From client to pod, gateway and network included, and as long back."""

_LOOK_S: Final = 0.1


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


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`concurrency`: how many requests may be under way, None: as many as are due (an open loop). `horizon_s`: within
    which a load has to end.
    """

    profile: PodProfile
    pods: int
    concurrency: int | None = None
    client_timeout_s: float = 600.0
    event_delay_s: float = 0.005
    horizon_s: float = 86_400.0


class Simulation:
    """Runs once."""

    def __init__(self, settings: Settings, arm: Arm, seed: int, timing: Timing | None = None) -> None:
        self.clock = Clock()
        rng = Random(seed)
        self.fleet = Fleet(
            self.clock,
            settings.profile,
            timing or ProfileTiming(settings.profile),
            arm,
            rng,
            event_delay_s=settings.event_delay_s,
        )
        self.outcomes: list[Outcome] = []
        self.explained: dict[int, Decision] = {}
        self.to_explain: frozenset[int] = frozenset()
        self._settings = settings
        self._seed = seed
        self._prompts = Prompts(MODEL, settings.profile.block_size)
        self._children: dict[int, list[Request]] = {}
        self._under_way: dict[int, _Life] = {}
        self._queue: deque[Request] = deque()
        self._left = 0
        for number in range(settings.pods):
            self.fleet.add(number)

    def run(self, requests: Iterable[Request]) -> list[Outcome]:
        """Let the whole load happen; returns what became of each request, in the order of their ends.

        Raises ValueError where requests are left at the horizon: a load without an end, or longer than that.
        """
        roots: list[Request] = []
        for request in requests:
            self._left += 1
            if request.after is None:
                roots.append(request)
            else:
                self._children.setdefault(request.after, []).append(request)
        if self._settings.concurrency is None:
            for request in roots:
                self.clock.at(request.at, lambda request=request: self._send(request))  # type: ignore[misc]
        else:
            self._queue.extend(roots)
            self._fill()
        while self._left and self.clock.now < self._settings.horizon_s:
            self.clock.run(self.clock.now + 10.0)
        if self._left:
            raise ValueError(f"{self._left} requests had not ended after {self._settings.horizon_s:g} s")
        return self.outcomes

    def remove_pod(self, number: int) -> None:
        """A pod is lost; what was under way on it has failed. Raises ValueError where there is none."""
        pod = self.fleet.remove(number)
        pod.engine.stop()
        for life in [life for life in self._under_way.values() if life.pod is pod]:
            life.fail("pod lost")

    def drain_pod(self, number: int) -> None:
        """A pod gets no more requests, and goes when those under way have ended.

        Raises ValueError where there is none.
        """
        pod = self.fleet.pod(number)
        pod.entry.left("draining")
        self._drained(pod)

    def restart_pod(self, number: int, down_s: float) -> None:
        """A pod is lost, and comes up empty. Raises ValueError where there is none."""
        self.remove_pod(number)
        self.clock.after(down_s, lambda: self.add_pod(number))

    def add_pod(self, number: int) -> None:
        """A pod comes up, empty. Raises ValueError where it is up already."""
        self.fleet.add(number)

    def _drained(self, pod: ModelledPod) -> None:
        if self.fleet.pods.get(pod.number) is not pod:
            return  # lost meanwhile
        if any(life.pod is pod for life in self._under_way.values()):
            self.clock.after(_LOOK_S, lambda: self._drained(pod))
        else:
            self.remove_pod(pod.number)

    def _fill(self) -> None:
        limit = self._settings.concurrency
        while self._queue and limit is not None and len(self._under_way) < limit:
            self._send(self._queue.popleft())

    def _send(self, request: Request) -> None:
        outcome = Outcome(
            number=request.number,
            session=request.session,
            phase=request.phase,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            due=self.clock.now,
        )
        prompt = self._prompts.prompt(request)
        try:
            decision, pod, source = self.fleet.decide(f"{self._seed}-{request.number}", prompt)
        except GatewayError as error:
            outcome.error = error.code
            self._end(request, outcome)
            return
        if request.number in self.to_explain:
            self.explained[request.number] = decision
        outcome.pod, outcome.source = pod.number, source
        life = _Life(self, request, outcome, decision, pod)
        self._under_way[request.number] = life
        tokens, keys = self._prompts.whole(request, prompt)
        sequence = pod_side.Sequence(
            request.number,
            tokens,
            keys,
            len(prompt),
            source=source,
            first=life.first_token,
            ended=life.ended,
        )
        life.begin(sequence)

    def finished(self, life: "_Life") -> None:
        """A request under way has ended, well or not."""
        del self._under_way[life.request.number]
        self._end(life.request, life.outcome)

    def _end(self, request: Request, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._left -= 1
        for child in self._children.pop(request.number, ()):
            when = self.clock.now + child.pause
            if self._settings.concurrency is None:
                self.clock.at(max(child.at, when), lambda child=child: self._send(child))  # type: ignore[misc]
            else:
                self.clock.at(when, lambda child=child: self._ready(child))  # type: ignore[misc]
        # Not in here: where no pod is ready the whole queue would fail, one request inside the other.
        self.clock.at(self.clock.now, self._fill)

    def _ready(self, request: Request) -> None:
        self._queue.append(request)
        self._fill()


class _Life:
    """One request under way, and the gateway's books on it."""

    __slots__ = ("_lease", "_predicted", "_sequence", "_simulation", "_timer", "outcome", "pod", "request")

    def __init__(
        self, simulation: Simulation, request: Request, outcome: Outcome, decision: Decision, pod: ModelledPod
    ) -> None:
        self.request = request
        self.outcome = outcome
        self.pod = pod
        self._simulation = simulation
        self._sequence: pod_side.Sequence | None = None
        # The decision itself, with a candidate per pod, is not kept: thousands may be under way.
        self._predicted = decision.predicted_cached if decision.source is None else None
        expected = None if self._predicted is None else Counted(outcome.prompt_tokens, self._predicted)
        self._lease: Lease = simulation.fleet.table.leased(pod.entry, 0, decision.uncached_tokens, expected)
        self._timer: Timer | None = None

    def begin(self, sequence: pod_side.Sequence) -> None:
        """On its way to the pod."""
        simulation = self._simulation
        clock, settings = simulation.clock, simulation._settings  # noqa: SLF001 - one object in two halves
        self._sequence = sequence
        self._timer = clock.after(settings.client_timeout_s, lambda: self.fail("client timeout"))
        clock.after(_HOP_S, lambda: self._arrive(sequence))

    def _arrive(self, sequence: pod_side.Sequence) -> None:
        if sequence.over:
            return
        try:
            self.pod.engine.submit(sequence)
        except ValueError as error:
            self.fail(str(error))

    def first_token(self) -> None:
        """The pod answers."""
        self._lease.first_byte()
        self.outcome.first = self._simulation.clock.now + _HOP_S

    def ended(self) -> None:
        """The answer is whole."""
        outcome, sequence = self.outcome, self._sequence
        outcome.ended = self._simulation.clock.now + _HOP_S
        if sequence is not None and sequence.reused is not None:
            outcome.gpu_tokens, outcome.cpu_tokens, outcome.pulled_tokens = sequence.reused
            if self._predicted is not None:
                trust = self.pod.entry.streams[0].trust
                trust.compared(self._predicted, sum(sequence.reused), self._simulation.clock.now)
        if self._timer is not None:
            self._timer.cancel()
        self._simulation.clock.at(outcome.ended, self._close)

    def fail(self, error: str) -> None:
        """It has no answer, unless that is on its way."""
        if self.outcome.ended is not None:
            return
        self.outcome.error = error
        if self._sequence is not None:
            self.pod.engine.abort(self._sequence)
            self._sequence.over = True
        self._close()

    def _close(self) -> None:
        self._lease.close()
        self._sequence = None
        if self._timer is not None:
            self._timer.cancel()
        self._simulation.finished(self)
