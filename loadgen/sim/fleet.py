"""The gateway's side of a modelled fleet: its pod table, index and decider, and the events and polls that feed them."""

from array import array
from collections.abc import Iterator
from itertools import chain
from random import Random
from typing import Final

from config.schema import Breaker, PodConfig, Poll
from gateway.decision import Ask, Decider, Decision
from gateway.openai import Peek
from gateway.pod import Load, Model, Pod
from gateway.pods import PodTable
from gateway.tokens import Prompt, TokenIds
from index import BlockStored, Event, Publisher, RadixIndex, Tier
from loadgen.profile import PodProfile
from loadgen.sim.arms import Arm
from loadgen.sim.clock import Clock
from loadgen.sim.engine import Engine
from loadgen.sim.feed import Delivery, Feed
from loadgen.sim.links import Links
from loadgen.sim.pulls import Loader
from loadgen.sim.timing import Timing
from scorers import Role

MODEL: Final = "model"
_POLL: Final = Poll()
_P2P_PORT: Final = 5710


class ModelledPod:
    """A pod as the gateway knows it, and its model."""

    def __init__(
        self, number: int, role: Role, entry: Pod, publisher: Publisher, engine: Engine, loader: Loader, feed: Feed
    ) -> None:
        self.number = number
        self.role = role
        self.entry = entry
        self.publisher = publisher
        self.engine = engine
        self.loader = loader
        self.feed = feed


class Fleet:
    """Pods by number. `delivery` is how their events reach the gateway; another `seed` delays and loses others.

    The first `prefill_pods` compute prompts only, and the others answer only; 0: all do both.
    """

    def __init__(
        self,
        clock: Clock,
        profile: PodProfile,
        timing: Timing,
        arm: Arm,
        rng: Random,
        *,
        delivery: Delivery,
        seed: int,
        prefill_pods: int = 0,
    ) -> None:
        self.clock = clock
        self.index = RadixIndex()
        self.links = Links(clock)
        self.pods: dict[int, ModelledPod] = {}
        self.gone: list[ModelledPod] = []
        self.acquainted: set[int] = set()  # have pulled from each other before the load began
        self.profile = profile
        self._timing = timing
        self._rng = rng
        self._delivery = delivery
        self._seed = seed
        self.table = PodTable((), max_load_age=_POLL.max_age, clock=lambda: clock.now)
        self._prefill_pods = prefill_pods
        roles: tuple[Role, ...] = ("prefill", "decode") if prefill_pods else ("both",)
        self._deciders = {role: Decider(self.index, self.table, *arm.of(role), coordinate=rng.random) for role in roles}

    def pod(self, number: int) -> ModelledPod:
        """The pod of that number. Raises ValueError where there is none."""
        if number not in self.pods:
            raise ValueError(f"at {self.clock.now:g} s there is no pod {number}")
        return self.pods[number]

    def add(self, number: int) -> None:
        """A pod comes up, empty. Raises ValueError where it is up already."""
        if number in self.pods:
            raise ValueError(f"at {self.clock.now:g} s there is a pod {number} already")
        url = f"http://10.{number >> 16}.{number >> 8 & 255}.{number & 255}:8000"
        role = self._role(number)
        spec = PodConfig(url=url, role=role)  # type: ignore[arg-type]  # no configuration has others than `both`
        address = spec.name.rpartition(":")[0]
        entry = Pod(spec, p2p=(address, _P2P_PORT), breaker=Breaker())
        entry.joined({MODEL: Model(MODEL, MODEL)}, (0,))
        publisher = entry.publishers[0]
        feed = Feed(
            self.clock,
            self._delivery,
            Random(f"{self._seed} {number}"),
            entry.streams[0],
            lambda events: self._apply(entry, publisher, events),
        )
        loader = Loader(
            self.clock,
            self.profile,
            self.links,
            number,
            self._engine_of,
            met_before=lambda peer: number in self.acquainted and peer in self.acquainted,
        )
        engine = Engine(
            self.clock,
            self.profile,
            self._timing,
            publish=feed.publish,
            load=lambda sequence, restorable: loader.load(engine, sequence, restorable),
            coming=loader.brings,
        )
        pod = ModelledPod(number, role, entry, publisher, engine, loader, feed)
        self.pods[number] = pod
        self.index.add_publisher(publisher, MODEL)
        # A gateway has every pod that comes up compute a small prompt, and so knows its block size before any load.
        probe = array("I", range(self.profile.block_size))
        self.index.apply(publisher, [BlockStored([number], None, probe, self.profile.block_size, Tier.GPU)])
        self._enlist()
        self._poll(pod)

    def remove(self, number: int) -> ModelledPod:
        """A pod goes, with all that it held and all that is under way on it. Raises ValueError where there is none."""
        pod = self.pod(number)
        del self.pods[number]
        self.acquainted.discard(number)
        self.gone.append(pod)
        pod.feed.stop()
        pod.entry.left("gone")
        self.index.remove_pod(pod.entry.name)
        self.table.forget(pod.entry.name)
        self._enlist()
        return pod

    def _apply(self, entry: Pod, publisher: Publisher, events: list[Event]) -> None:
        applied = self.index.apply(publisher, events)
        entry.streams[0].turnover.applied(applied.stored_blocks, applied.removed_blocks, self.clock.now)

    def decide(
        self, request_id: str, prompt: TokenIds, session: str, role: Role = "both"
    ) -> tuple[Decision, ModelledPod, int | None]:
        """Where a request goes of the pods of that role, and the number of the pod it pulls from. Raises NoPodReady."""
        ask = Ask(request_id, Peek(model=MODEL), MODEL, Prompt((prompt,), "given"), session=session)
        decider = self._deciders[role]
        decision = decider.decide(ask)
        if decider.columns.wanted:
            decider.columns.placed(ask, decision)
        source = None if decision.source_pod is None else self._numbers[decision.source_pod.name]
        return decision, self.pods[self._numbers[decision.pod.name]], source

    def all_ever(self) -> Iterator[ModelledPod]:
        """The pods that are up, and those that were."""
        return chain(self.gone, self.pods.values())

    def _role(self, number: int) -> Role:
        if not self._prefill_pods:
            return "both"
        return "prefill" if number < self._prefill_pods else "decode"

    def _enlist(self) -> None:
        entries = [pod.entry for pod in self.pods.values()]
        self._numbers = {pod.entry.name: number for number, pod in self.pods.items()}
        self.table.reconfigure(entries, max_load_age=_POLL.max_age, max_requests=None)

    def _engine_of(self, number: int) -> Engine | None:
        pod = self.pods.get(number)
        return None if pod is None else pod.engine

    def _poll(self, pod: ModelledPod) -> None:
        if self.pods.get(pod.number) is not pod:
            return
        engine = pod.engine
        kv_tokens = engine.memory.gpu.capacity * self.profile.block_size
        load = Load(engine.waiting, engine.running, engine.memory.usage, kv_tokens=kv_tokens)
        pod.entry.load = {0: load}
        pod.entry.load_at = self.clock.now
        # Not all at one moment, and not always the same before the others.
        self.clock.after(_POLL.interval * self._rng.uniform(0.9, 1.1), lambda: self._poll(pod))
