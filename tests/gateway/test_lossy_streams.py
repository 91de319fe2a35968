"""Streams that lose frames: repaired where they can be, and where they cannot, of little harm and no secret."""

from collections import deque
from functools import cache
from itertools import count, islice
from random import Random
from typing import Literal, NamedTuple, get_args

import msgspec
import pytest

from config.schema import P2P, Breaker, Placement, PodConfig
from gateway.agreement import Agreement
from gateway.decision import Ask, Decider
from gateway.intake import Intake
from gateway.metrics import Metrics
from gateway.openai import Peek
from gateway.pod import Load, Model, Pod
from gateway.pods import PodTable
from gateway.tokens import Prompt, TokenIds
from index import Action, Counted, Publisher, RadixIndex
from index import Sequence as SequenceNumbers
from loadgen.answer import Answer
from loadgen.cache import Block
from loadgen.events import EventEncoder
from loadgen.hashing import BlockHasher
from loadgen.pod import SimulatedPod
from loadgen.profile import PodProfile
from loadgen.scheduler import Scheduler
from loadgen.sequence import Sequence
from tests.gateway.fleet import BLOCK, MODEL, SMALL, Front, fleet, ids, until, warm
from tests.gateway.workload import conversations

Told = Literal["in answers", "by counters", "not at all"]
LOSS = 0.05
BOUND = 0.05
SEEDS = (7, 8)
PROFILE = PodProfile(block_size=BLOCK, gpu_blocks=128, cpu_blocks=192, max_model_len=2048)
SMALLER = msgspec.structs.replace(SMALL, gpu_blocks=128, cpu_blocks=192, max_model_len=2048)
PODS = 4
REQUESTS = 1500
BETWEEN_S = 0.1  # of the requests, by the test's own clock
POLLED_EVERY = 10
REMEMBERED = 4 * PODS  # requests that make the pods' queues


class Engine:
    """A simulated pod's scheduler and caches, without the time that its steps and loads take."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(PROFILE, self._load)
        self.hasher = BlockHasher(BLOCK, seed="0")
        self._encoder = EventEncoder("map", "int", 0)
        self._loads: list[tuple[Sequence, list[Block], int]] = []

    def holds(self, prompt: list[int]) -> int:
        """Tokens of a prompt that it would not have to compute now."""
        hashes: list[bytes] = []
        self.hasher.extend(hashes, prompt)
        gpu = len(self.scheduler.gpu.match(hashes))
        return (gpu + self.scheduler.cpu.match(hashes[gpu:])) * BLOCK

    def serve(self, prompt: list[int]) -> tuple[int, list[bytes]]:
        """Compute a prompt to the end: what was reused of it, and the event batches that this gave."""
        sequence = Sequence(prompt, Answer([1], ["a"], "length", None), self.hasher)
        self.scheduler.waiting.append(sequence)
        batches = []
        while True:
            self.scheduler.offload()
            plan = self.scheduler.plan()
            self.scheduler.complete(plan)
            progress = bool(plan or self._loads)
            self._finish_loads()
            if events := self.scheduler.take_events():
                batches.append(self._encoder.encode(0.0, events))
            if not progress:
                assert sequence.cached is not None
                return sum(sequence.cached), batches

    def _load(self, sequence: Sequence, hits: list[Block], restorable: int) -> None:
        self.scheduler.gpu.use(hits)
        self._loads.append((sequence, list(hits), restorable))

    def _finish_loads(self) -> None:
        for sequence, hits, restorable in self._loads:
            restored = min(restorable, self.scheduler.gpu.free)
            held = hits + self.scheduler.allocate(restored)
            self.scheduler.loaded(sequence, held, len(hits), restored, 0)
            self.scheduler.rejoin(sequence, held)
        self._loads.clear()


class Followed:
    """An engine and how a gateway knows it, over a stream that has no replay and loses a share of its frames."""

    def __init__(self, number: int, loss: float) -> None:
        self.engine = Engine()
        self.pod = Pod(PodConfig(url=f"http://pod{number}:8000"), p2p=None, breaker=Breaker())
        self.pod.joined({MODEL: Model(MODEL, MODEL)}, (0,))
        self.publisher = Publisher(self.pod.name, 0)
        self.stream = self.pod.streams[0]
        self.numbers = SequenceNumbers(replay=False)
        self._published = 0
        self._loss = loss
        self._random = Random(number)

    def intake(self, index: RadixIndex, metrics: Metrics) -> Intake:
        index.add_publisher(self.publisher, MODEL)
        return Intake(self.pod, self.publisher, index=index, agreement=Agreement(), metrics=metrics)

    def polled(self, busy: int, now: float, *, counters: bool) -> None:
        self.pod.load, self.pod.load_at = {0: Load(max(0, busy - REMEMBERED // PODS), busy, 0.0)}, now
        if counters:
            counts = self.engine.scheduler.counts
            self.pod.audited(self.pod.moves(), {0: Counted(counts["prompt tokens"], counts["cached"])}, now)

    def publish(self, batches: list[bytes], intake: Intake, now: float) -> None:
        for batch in batches:
            number, self._published = self._published, self._published + 1
            if self._random.random() < self._loss:
                continue
            # As `Subscriber` does with a stream that has no replay.
            assert self.numbers.live(number).action is Action.APPLY
            intake.apply(batch)
            self.stream.follows(self.numbers, now)


class Outcome(NamedTuple):
    """What a workload came to: the share of its prompt tokens that the pods chosen held when they were chosen."""

    hit_rate: float
    pods: list[Followed]
    credits: list[float]


def routed(loss: float, seed: int, told: Told = "in answers") -> Outcome:
    """Route the workload by the gateway's own decisions; `told` says how pods tell what they reused."""
    now = 0.0
    followed = {f"http://pod{number}:8000": Followed(number, loss) for number in range(PODS)}
    index = RadixIndex()
    table = PodTable((each.pod for each in followed.values()), max_load_age=10.0, clock=lambda: now)
    intakes = {url: each.intake(index, Metrics(table, index)) for url, each in followed.items()}
    decider = Decider(index, table, Placement(preset="affinity"), P2P(enabled=False), coordinate=Random(seed).random)
    recent: deque[str] = deque(maxlen=REMEMBERED)
    asked = held = 0
    for number, prompt in enumerate(islice(conversations(seed), REQUESTS)):
        now += BETWEEN_S
        for url, each in followed.items():
            each.polled(recent.count(url), now, counters=told == "by counters" and number % POLLED_EVERY == 0)
        ask = Ask(str(number), Peek(), MODEL, Prompt((TokenIds("I", prompt),), "given"))
        decision = decider.decide(ask)
        chosen = followed[decision.pod.url]
        recent.append(decision.pod.url)
        asked += len(prompt)
        held += chosen.engine.holds(prompt)
        assert decision.predicted_cached is not None
        expected = Counted(len(prompt), decision.predicted_cached)
        with decision.leased(table, expected) as lease:
            reused, batches = chosen.engine.serve(prompt)
            lease.first_byte()
        chosen.publish(batches, intakes[decision.pod.url], now)
        if told == "in answers":
            chosen.stream.trust.compared(expected.cached, reused, now)
    index.check_invariants()
    return Outcome(held / asked, list(followed.values()), [each.stream.trust.credit(now) for each in followed.values()])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("told", get_args(Told))
def test_what_is_lost_for_good_costs_few_hits(seed: int, told: Told) -> None:
    whole, lossy = perfect(seed), routed(LOSS, seed, told)
    assert 0.5 < whole.hit_rate < 0.9
    assert lossy.hit_rate > whole.hit_rate - BOUND
    assert all(each.numbers.gaps > 0 and not each.stream.certain for each in lossy.pods)
    assert all(each.numbers.certain for each in whole.pods)
    assert whole.credits == [1.0] * PODS
    assert max(lossy.credits) < 1.0


@pytest.mark.parametrize("seed", SEEDS)
def test_losing_most_frames_costs_more(seed: int) -> None:
    assert routed(0.8, seed).hit_rate < perfect(seed).hit_rate - BOUND


@cache
def perfect(seed: int) -> Outcome:
    """The workload's outcome where every frame arrives."""
    return routed(0.0, seed)


class Losing:
    """Simulated pods whose event batches are lost on the way, each with the same probability."""

    def __init__(self, pods: list[SimulatedPod]) -> None:
        self._random = Random(3)
        self._decided = dict.fromkeys(pods, 0)

    def decide(self) -> None:
        """Decide about the batches to come, as many as have been published since the last time."""
        for pod, decided in self._decided.items():
            published = pod.next_seq()
            pod.drop_events(sum(self._random.random() < LOSS for _ in range(published - decided)))
            self._decided[pod] = published


async def converse(front: Front, pods: list[SimulatedPod], requests: int) -> list[list[int]]:
    """Send a workload, of whose events some are lost, then a last request to every pod whose events are not."""
    losing = Losing(pods)
    prompts = list(islice(conversations(5, openings=6, active=20), requests))
    for prompt in prompts:
        await front.complete(prompt)
        losing.decide()
    for pod in pods:
        for number in range(10):  # lost: what was still to be
            await warm(pod, ids(40, salt=number))
    return prompts


async def test_with_replay_the_index_ends_as_the_pods_are() -> None:
    async with fleet(3, pod={"profile": SMALLER}) as (front, pods):
        prompts = await converse(front, pods, 250)

        async def alike() -> bool:
            rows = await front.pods()
            held = {pod.url: pod.cached_blocks() for pod in pods}
            return all(
                rows[url]["certain"] and rows[url]["cached_blocks"] == {"gpu": len(t["GPU"]), "cpu": len(t["CPU"])}
                for url, t in held.items()
            )

        await until(alike)
        for prompt in prompts:
            told = await front.explain(prompt)
            claimed = {candidate["pod"]: candidate["cached_tokens"] for candidate in told["candidates"]}
            assert claimed == {pod.url: really_held(pod, prompt) for pod in pods}
        assert await front.metric("kv_gaps_total") > 10
        assert await front.metric("kv_event_effects_total", effect="removed_blocks") > 0
        front.parts.index.check_invariants()


def really_held(pod: SimulatedPod, prompt: list[int]) -> dict[str, int]:
    (engine,) = pod.engines
    hashes: list[bytes] = []
    engine.hasher.extend(hashes, prompt)
    gpu, cpu = len(engine.scheduler.gpu.match(hashes)), engine.scheduler.cpu.match(hashes)
    both = gpu + engine.scheduler.cpu.match(hashes[gpu:])
    return {"gpu": gpu * BLOCK, "cpu": cpu * BLOCK, "any": both * BLOCK}


async def test_without_replay_a_pod_is_shown_to_be_uncertain() -> None:
    async with fleet(2, pod={"profile": SMALLER, "replay": False}) as (front, pods):
        losing = Losing(pods)
        salts = count()

        async def shown() -> bool:
            for pod in pods:
                await warm(pod, ids(100, salt=next(salts)))
            losing.decide()
            rows = (await front.pods()).values()
            # What was published before the gateway heard anything is the first gap.
            return all(not row["certain"] and row["gaps"] > 1 and row["credit"] < 1.0 for row in rows)

        await until(shown)
        assert await front.metric("kv_stream_certain") == 0
        assert await front.metric("kv_gaps_total") == sum(row["gaps"] for row in (await front.pods()).values())
        assert await front.metric("pod_credit") < 2.0
