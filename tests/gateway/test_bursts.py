"""Requests that arrive together on one prefix are placed with knowledge of each other."""

import asyncio
from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from config.schema import P2P, Breaker, Placement, PodConfig
from gateway.decision import Ask, Decider, Decision
from gateway.leases import Lease
from gateway.openai import Peek
from gateway.pod import Load, Model, Pod
from gateway.pods import PodTable
from gateway.tokens import Prompt, TokenIds
from index import BlockStored, RadixIndex, Tier
from scorers import Costs, Priors, Pull, TokenLoad
from tests.gateway.fleet import MODEL, SLOW, fleet, ids, text_body, until

PREFIX = 4000
BURST = 8
AFFINITY = Placement(preset="affinity")
ROOMY = msgspec.structs.replace(SLOW, gpu_blocks=4096, cpu_blocks=8192)
SEEDS = range(5)


def member(number: int, own: int = 100) -> list[int]:
    """A prompt of the burst: the prefix, and tokens of its own."""
    return [*ids(PREFIX), *range(50_000 + number * 1000, 50_000 + number * 1000 + own)]


class Idle:
    """Three idle pods that hold nothing, as a gateway knows them; requests on them stay unanswered."""

    def __init__(self, placement: Placement, seed: int = 0, *, publishes: bool = True) -> None:
        self.pods = [
            Pod(PodConfig(url=f"http://10.0.0.{number}:8000"), p2p=(f"10.0.0.{number}", 5710), breaker=Breaker())
            for number in range(3)
        ]
        self.table = PodTable(self.pods, max_load_age=10.0, clock=lambda: 1.0)
        for pod in self.pods:
            pod.joined({MODEL: Model(MODEL, MODEL)}, (0,), publishes=publishes)
            pod.load, pod.load_at = {0: Load(0, 0, 0.0)}, 1.0
        self.index = RadixIndex()
        self.decider = Decider(self.index, self.table, placement, P2P(), coordinate=Random(seed).random)
        self.leases: list[Lease] = []

    def decide(self, *prompts: list[int]) -> Decision:
        sequences = tuple(TokenIds("I", prompt) for prompt in prompts)
        return self.decider.decide(
            Ask("r", Peek(model=MODEL), MODEL, Prompt(sequences, "given"), is_batch=len(prompts) > 1)
        )

    def place(self, *prompts: list[int]) -> Decision:
        decision = self.decide(*prompts)
        self.leases.append(decision.leased(self.table))
        return decision

    def burst(self, own: int = 100) -> Counter[str]:
        """How many of it are placed where."""
        return Counter(self.place(member(number, own)).pod.name for number in range(BURST))

    def blind(self) -> "Idle":
        """The same, but that nothing is expected of what is placed."""
        self.table.expected.placed = lambda *_: None  # type: ignore[method-assign]
        return self


@pytest.mark.parametrize("seed", SEEDS)
def test_a_burst_on_a_new_prefix_goes_to_the_pod_that_expects_it(seed: int) -> None:
    assert len(Idle(AFFINITY, seed).burst()) == 1
    assert len(Idle(AFFINITY, seed).blind().burst()) > 1  # it scatters


TOKEN_LOAD = Placement(scorers=(TokenLoad(),))


def busy(own: int, *, blind: bool = False) -> Counter[str]:
    """A burst by token-load, where all pods but the first have a prompt of 3,000 tokens to compute before."""
    idle = Idle(TOKEN_LOAD)
    if blind:
        idle.blind()
    for pod in idle.pods[1:]:
        idle.leases.append(idle.table.leased(pod, 0, 3000))
    return idle.burst(own)


def test_by_tokens_to_compute_a_burst_stays_together_while_that_is_less_than_the_prefix_again() -> None:
    first = "10.0.0.0:8000"
    assert busy(own=100) == {first: BURST}
    # Each adds 1,000 tokens there; from the fourth on elsewhere the prefix and those are no more.
    spread = busy(own=1000)
    assert spread[first] > BURST / 3
    assert len(spread) > 1
    assert max(spread.values()) < BURST


def test_by_tokens_to_compute_a_burst_scatters_where_nothing_is_expected() -> None:
    scattered = busy(own=100, blind=True)
    assert sorted(scattered.values()) == [2, 3, 3]


def test_what_others_are_about_to_compute_is_not_counted_twice() -> None:
    idle = Idle(AFFINITY)
    first, second = idle.place(member(0)), idle.place(member(1))
    assert (first.uncached_tokens, first.uncached_square) == (4100, 4100**2)
    assert (second.uncached_tokens, second.uncached_square) == (100, 4100**2 - 4000**2)
    assert second.predicted_cached == 0  # which is what events have confirmed
    assert second.pod.in_flight[0].tokens == 4200


def test_a_prompt_that_comes_again_is_expected_but_for_its_last_token() -> None:
    idle = Idle(AFFINITY)
    idle.place(ids(160))
    again = idle.decide(ids(160))
    assert (again.chosen.speculative_tokens, again.uncached_tokens) == (160, 1)


def test_sequences_of_a_batch_are_expected_and_counted_singly() -> None:
    idle = Idle(AFFINITY)
    idle.place(ids(160), ids(320, salt=1))
    decision = idle.decide(ids(160), ids(480, salt=1), ids(80, salt=2))
    assert decision.chosen.speculative_tokens == 160 + 320
    assert decision.uncached_tokens == 1 + 160 + 80
    assert decision.uncached_square == (160**2 - 159**2) + (480**2 - 320**2) + 80**2


def test_what_is_expected_is_no_source() -> None:
    idle = Idle(Placement(scorers=()))
    idle.place(member(0))
    told = [idle.decide(member(1)) for _ in range(10)]
    assert {decision.source_reason for decision in told} == {"no-holder"}
    assert {decision.chosen.speculative_tokens for decision in told} == {0, PREFIX}


class Held(Idle):
    """The same three, of which the first holds the prefix in both tiers, and has much to compute; pulls are quick."""

    def __init__(self, *, owner_tokens: int) -> None:
        super().__init__(Placement())
        self.table.costs = Costs(Priors(pull=Pull(0.01, 1e-6, 0.01, 0.01)))
        blocks = PREFIX // 16
        owner = self.pods[0].publishers[0]
        self.index.add_publisher(owner, MODEL)
        self.index.apply(
            owner, [BlockStored(list(range(blocks)), None, ids(PREFIX), 16, tier) for tier in (Tier.GPU, Tier.CPU)]
        )
        self.leases.append(self.table.leased(self.pods[0], 0, owner_tokens, square=owner_tokens**2))


def test_a_burst_on_what_a_busy_pod_holds_pulls_it_to_each_pod_once_and_waits_for_that() -> None:
    held = Held(owner_tokens=200_000)
    placed = [held.place(member(number)) for number in range(BURST)]
    assert {each.source_reason for each in placed} == {"named"}
    assert {each.source.pod for each in placed if each.source} == {held.pods[0].url}
    moving = [each for each in placed if each.pulled_tokens]
    assert len({each.pod.name for each in moving}) == len(moving) <= 2
    assert {each.pulled_tokens for each in moving} == {PREFIX}
    for pod in held.pods[1:]:
        counts = pod.in_flight[0]
        assert (counts.pulls, counts.pulls + counts.joined) == (1, counts.unanswered)
    assert held.pods[0].in_flight[0].serving == len(moving)
    assert {each.uncached_tokens for each in placed} == {100}
    joined = next(each for each in placed if not each.pulled_tokens)
    assert joined.chosen.coming_tokens == PREFIX
    assert joined.predicted_s is not None
    assert joined.predicted_s > joined.chosen.coming_s > 0


def test_once_a_pull_is_there_it_comes_no_more_and_is_expected() -> None:
    held = Held(owner_tokens=200_000)
    first = held.place(member(0))
    held.leases[-1].first_byte()
    (there,) = [each for each in held.decide(member(1)).candidates if each.pod == first.pod.url]
    assert (there.coming_tokens, there.speculative_tokens) == (0, PREFIX)


def test_one_that_pulls_what_its_pod_is_not_believed_to_have_joins_nobody() -> None:
    """The pod tells of the whole prefix, and its answers have shown otherwise."""
    held = Held(owner_tokens=200_000)
    for pod in held.pods[1:]:
        tiers = [BlockStored(list(range(PREFIX // 16)), None, ids(PREFIX), 16, tier) for tier in (Tier.GPU, Tier.CPU)]
        held.index.add_publisher(pod.publishers[0], MODEL)
        held.index.apply(pod.publishers[0], tiers)
        for _ in range(30):
            pod.streams[0].trust.compared(PREFIX, 0, 1.0)
    placed = held.place(member(0))
    assert placed.chosen.credit < 0.5
    assert placed.source is not None
    assert placed.source.pod == held.pods[0].url
    assert placed.pulled_tokens > PREFIX / 2
    counts = placed.pod.in_flight[0]
    assert (counts.pulls, counts.joined) == (1, 0)


def test_pods_that_tell_nothing_of_their_blocks_are_expected_to_hold_nothing() -> None:
    idle = Idle(AFFINITY, publishes=False)
    assert len(idle.burst()) > 1
    assert not idle.table.expected


async def test_a_burst_over_the_wire_is_computed_once() -> None:
    async with fleet(3, pod={"profile": ROOMY}, placement={"preset": "affinity"}) as (front, _):
        burst = [asyncio.create_task(front.complete(member(number))) for number in range(BURST)]
        told: dict[str, Any] = {}

        async def expected() -> bool:
            told.update(await front.explain(member(BURST)))
            return any(candidate["speculative_tokens"] == PREFIX for candidate in told["candidates"])

        await until(expected)
        answers = await asyncio.gather(*burst)
        assert len({answer.pod for answer in answers}) == 1
        (candidate,) = (each for each in told["candidates"] if each["speculative_tokens"])
        assert candidate["pod"] == told["chosen"] == answers[0].pod
        computed = sum(answer.json["usage"]["prompt_tokens"] - answer.cached for answer in answers)
        assert computed < 2 * PREFIX
        await front.idle()
        for row in (await front.pods()).values():
            assert row["in_flight_unanswered"] == row["pulls"] == row["serving"] == 0


@pytest.mark.parametrize(("asked", "status", "left"), [(200, 200, 192), (9000, 400, 0)])
async def test_what_a_pod_has_answered_is_expected_on_and_what_it_refused_is_not(
    asked: int, status: int, left: int
) -> None:
    async with fleet(pod={"replay": False}) as (front, (pod,)):
        pod.drop_events(1000)
        assert (await front.post("/v1/completions", text_body(ids(asked)))).status == status
        (candidate,) = (await front.explain(ids(asked)))["candidates"]
        assert candidate["speculative_tokens"] == left
        assert candidate["cached_tokens"]["any"] == 0
