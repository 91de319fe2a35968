"""The gateway's side of a modelled fleet: its pod table, index and decider, and the events and polls that feed them."""

from collections.abc import Iterator
from itertools import chain
from random import Random
from typing import Final

import msgspec

from config.schema import Breaker, PodConfig, Poll
from gateway.decision import Ask, Decider, Decision
from gateway.openai import Peek
from gateway.pods import Load, Model, Pod, PodTable
from gateway.tokens import Prompt, TokenIds
from index import Event, Publisher, RadixIndex
from loadgen.profile import PodProfile
from loadgen.sim.arms import Arm, RoundRobin
from loadgen.sim.clock import Clock
from loadgen.sim.engine import Engine
from loadgen.sim.links import Links
from loadgen.sim.pulls import Loader
from loadgen.sim.timing import Timing

MODEL: Final = "model"
_POLL: Final = Poll()
_P2P_PORT: Final = 5710


class ModelledPod:
    """A pod as the gateway knows it, and its model."""

    def __init__(self, number: int, entry: Pod, engine: Engine, loader: Loader) -> None:
        self.number = number
        self.entry = entry
        self.engine = engine
        self.loader = loader
        self.publisher = Publisher(entry.name, 0)
        self.told_at = 0.0  # when the last of its events arrive


class Fleet:
    """Pods by number. `event_delay_s` passes between a step's end and its events' arrival at the gateway."""

    def __init__(
        self, clock: Clock, profile: PodProfile, timing: Timing, arm: Arm, rng: Random, *, event_delay_s: float
    ) -> None:
        self.index = RadixIndex()
        self.links = Links(clock)
        self.pods: dict[int, ModelledPod] = {}
        self.gone: list[ModelledPod] = []
        self._clock = clock
        self._profile = profile
        self._timing = timing
        self._rng = rng
        self._event_delay_s = event_delay_s
        self.table = PodTable((), max_load_age=_POLL.max_age, clock=lambda: clock.now)
        placement = arm.placement
        if arm.in_turn:
            placement = msgspec.structs.replace(placement, picker=RoundRobin())
        self._decider = Decider(self.index, self.table, placement, arm.p2p, coordinate=rng.random)

    def pod(self, number: int) -> ModelledPod:
        """The pod of that number. Raises ValueError where there is none."""
        if number not in self.pods:
            raise ValueError(f"at {self._clock.now:g} s there is no pod {number}")
        return self.pods[number]

    def add(self, number: int) -> None:
        """A pod comes up, empty. Raises ValueError where it is up already."""
        if number in self.pods:
            raise ValueError(f"at {self._clock.now:g} s there is a pod {number} already")
        spec = PodConfig(url=f"http://10.{number >> 16}.{number >> 8 & 255}.{number & 255}:8000")
        address = spec.name.rpartition(":")[0]
        entry = Pod(spec, p2p=(address, _P2P_PORT), breaker=Breaker())
        entry.joined({MODEL: Model(MODEL, MODEL)}, (0,))
        loader = Loader(self._clock, self._profile, self.links, number, self._engine_of)
        engine = Engine(
            self._clock,
            self._profile,
            self._timing,
            publish=lambda events, seconds: self._publish(pod, events, seconds),
            load=lambda sequence, restorable: loader.load(engine, sequence, restorable),
        )
        pod = ModelledPod(number, entry, engine, loader)
        self.pods[number] = pod
        self.index.add_publisher(pod.publisher, MODEL)
        self._enlist()
        self._poll(pod)

    def remove(self, number: int) -> ModelledPod:
        """A pod goes, with all that it held and all that is under way on it. Raises ValueError where there is none."""
        pod = self.pod(number)
        del self.pods[number]
        self.gone.append(pod)
        pod.entry.left("gone")
        self.index.remove_pod(pod.entry.name)
        self._enlist()
        return pod

    def decide(self, request_id: str, prompt: TokenIds) -> tuple[Decision, ModelledPod, int | None]:
        """Where a request goes, and the number of the pod it pulls from. Raises NoPodReady."""
        ask = Ask(request_id, Peek(model=MODEL), MODEL, Prompt((prompt,), "given"))
        decision = self._decider.decide(ask)
        source = None if decision.source_pod is None else self._numbers[decision.source_pod.name]
        return decision, self.pods[self._numbers[decision.pod.name]], source

    def all_ever(self) -> Iterator[ModelledPod]:
        """The pods that are up, and those that were."""
        return chain(self.gone, self.pods.values())

    def _enlist(self) -> None:
        entries = [pod.entry for pod in self.pods.values()]
        self._numbers = {pod.entry.name: number for number, pod in self.pods.items()}
        self.table.reconfigure(entries, max_load_age=_POLL.max_age, max_requests=None)

    def _engine_of(self, number: int) -> Engine | None:
        pod = self.pods.get(number)
        return None if pod is None else pod.engine

    def _publish(self, pod: ModelledPod, events: list[Event], seconds: float) -> None:
        # Never before what was told earlier: two sums of the same times may differ in their last digit.
        pod.told_at = max(pod.told_at, self._clock.now + seconds + self._event_delay_s)
        self._clock.at(pod.told_at, lambda: self._arrived(pod, events))

    def _arrived(self, pod: ModelledPod, events: list[Event]) -> None:
        if self.pods.get(pod.number) is pod:
            self.index.apply(pod.publisher, events)

    def _poll(self, pod: ModelledPod) -> None:
        if self.pods.get(pod.number) is not pod:
            return
        engine = pod.engine
        pod.entry.load = {0: Load(engine.waiting, engine.running, engine.memory.usage)}
        pod.entry.load_at = self._clock.now
        # Not all at one moment, and not always the same before the others.
        self._clock.after(_POLL.interval * self._rng.uniform(0.9, 1.1), lambda: self._poll(pod))
