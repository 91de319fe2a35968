"""One load on one fleet under one arm, from the first request to the last answer."""

from collections import deque
from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Any, Final

import msgspec

from gateway.errors import GatewayError
from gateway.explained import explanation
from loadgen.profile import PodProfile
from loadgen.sim.arms import Arm
from loadgen.sim.clock import Clock
from loadgen.sim.disaggregated import InTwoLegs
from loadgen.sim.feed import Delivery
from loadgen.sim.fleet import MODEL, Fleet, ModelledPod
from loadgen.sim.life import Life, Outcome
from loadgen.sim.prompts import Prompts
from loadgen.sim.sequence import Sequence
from loadgen.sim.timing import ProfileTiming, Timing
from loadgen.workload import Request
from scorers import Role

_LOOK_S: Final = 0.1


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`concurrency`: how many requests may be under way, None: as many as are due (an open loop). `horizon_s`: within
    which a load has to end. `met`: the first pods have pulled from each other before. `prefill_pods`: the first so many
    compute prompts only, and the others answer only; 0: all do both.
    """

    profile: PodProfile
    pods: int
    concurrency: int | None = None
    client_timeout_s: float = 600.0
    delivery: Delivery = Delivery()
    met: bool = True
    prefill_pods: int = 0
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
            delivery=settings.delivery,
            seed=seed,
            prefill_pods=settings.prefill_pods,
        )
        self.outcomes: list[Outcome] = []
        self.explained: dict[int, dict[str, Any]] = {}
        self.to_explain: frozenset[int] = frozenset()
        self._settings = settings
        self._seed = seed
        self._prompts = Prompts(MODEL, settings.profile.block_size)
        self._children: dict[int, list[Request]] = {}
        self._under_way: dict[int, Life] = {}
        self._queue: deque[Request] = deque()
        self._left = 0
        for number in range(settings.pods):
            self.fleet.add(number)
        if settings.met:
            self.fleet.acquainted.update(range(settings.pods))

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

    def lose_events(self, number: int, seconds: float) -> None:
        """What a pod tells of its blocks in these seconds does not arrive. Raises ValueError where there is none."""
        self.fleet.pod(number).feed.lose(seconds)

    def slow_link(self, number: int, seconds: float, times: float) -> None:
        """For so long pulls by a pod and from it take so many times longer. Raises ValueError where there is none."""
        self.fleet.pod(number)
        self.fleet.links.slow(number, times)
        self.clock.after(seconds, lambda: self.fleet.links.slow(number, 1.0 / times))

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
        decide = partial(self.fleet.decide, f"{self._seed}-{request.number}", prompt, request.session)
        role: Role = "prefill" if self._settings.prefill_pods else "both"
        try:
            decision, pod, source = decide(role)
        except GatewayError as error:
            outcome.error = error.code
            self._end(request, outcome)
            return
        if request.number in self.to_explain:
            self.explained[request.number] = explanation(decision)
        outcome.pod, outcome.source = pod.number, source
        kind = partial(InTwoLegs, decide) if role == "prefill" else Life
        life = kind(self.fleet, request, outcome, decision, pod, self.finished)
        self._under_way[request.number] = life
        followers = len(self._children.get(request.number, ()))
        tokens, keys = self._prompts.whole(request, prompt, followers=followers)
        sequence = Sequence(
            request.number,
            tokens,
            keys,
            len(prompt),
            source=source,
            first=life.first_token,
            ended=life.ended,
        )
        life.begin(sequence, self._settings.client_timeout_s)

    def finished(self, life: Life) -> None:
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
