"""Columns that are filled on demand, from what the pod table knows; filters and faults, as an operator sees them."""

import sys
from collections.abc import MutableMapping, Sequence
from random import Random
from types import ModuleType
from typing import Any

import pytest

from config.schema import P2P, Breaker, Placement, PodConfig
from gateway.decision import Ask, Decider, Decision
from gateway.openai import Peek
from gateway.pod import Adapters, Load, Model, Pod
from gateway.pods import PodTable
from gateway.tokens import Prompt, TokenIds
from index import RadixIndex
from scorers import (
    Candidate,
    LabelAffinity,
    LabelFilter,
    LoraAffinity,
    NoHitLru,
    PlacementRequest,
    RoleFilter,
    SessionAffinity,
)
from tests.gateway.fleet import AFFINITY, BLOCK, Front, fleet, ids, serving, simulated, spec

MODELS = {"base": Model("base", "base"), "poet": Model("poet", "poet", adapter=True)}


class Three:
    """Three pods as a gateway knows them."""

    def __init__(self, placement: Placement, ranks: tuple[int, ...] = (0,)) -> None:
        self.now = 100.0
        self.pods = [
            Pod(
                PodConfig(url=f"http://10.0.0.{number}:8000", labels={"zone": zone}),
                p2p=(f"10.0.0.{number}", 5710),
                breaker=Breaker(),
            )
            for number, zone in enumerate("xyx")
        ]
        for pod in self.pods:
            pod.joined(MODELS, ranks)
        self.index = RadixIndex()
        self.table = PodTable(self.pods, max_load_age=10.0, clock=lambda: self.now)
        self.decider = Decider(self.index, self.table, placement, P2P(), coordinate=Random(1).random)

    def decide(self, prompt: Sequence[int] = (), model: str = "base", session: str | None = None) -> Decision:
        given = Prompt((TokenIds("I", list(prompt)),), "given") if prompt else Prompt((), "none")
        return self.decider.decide(Ask("r", Peek(model=model), model, given, session=session))

    def place(self, prompt: Sequence[int], session: str | None = None) -> str:
        given = Prompt((TokenIds("I", list(prompt)),), "given")
        ask = Ask("r", Peek(model="base"), "base", given, session=session)
        decision = self.decider.decide(ask)
        self.decider.columns.placed(ask, decision)
        return decision.pod.name


def column(decision: Decision, name: str) -> list[Any]:
    return [getattr(candidate, name) for candidate in decision.candidates]


def test_a_session_is_kept_while_somebody_reads_it() -> None:
    three = Three(Placement(scorers=(SessionAffinity(),)), ranks=(0, 1))
    where = three.place([1, 2, 3], session="s")
    held = column(three.decide([7, 8, 9], session="s"), "session")
    assert held.count(True) == 1
    assert three.pods[held.index(True) // 2].name == where
    assert column(three.decide([7, 8, 9], session="t"), "session") == column(three.decide(), "session") == [False] * 6
    three.decider.reconfigure(Placement(), P2P())
    three.place([1, 2, 3], session="s")
    assert (len(three.decider.columns.sessions), three.decider.columns.sessions.wanted) == (0, False)


def test_nothing_is_filled_that_nobody_reads() -> None:
    three = Three(Placement())
    assert not three.decider.columns.wanted
    decision = three.decide([1, 2, 3])
    assert column(decision, "labels") == [{}, {}, {}]
    three.decider.reconfigure(Placement(filters=(RoleFilter(),)), P2P())
    assert three.decider.columns.wanted
    assert column(three.decide([1, 2, 3]), "labels") == [{}, {}, {}]


@pytest.mark.parametrize(
    "part",
    [
        {"scorers": (LabelAffinity(key="zone", values=("y",)),)},
        {"filters": (LabelFilter(key="zone", values=("y",)),)},
    ],
)
def test_labels_are_those_of_the_configuration_on_every_rank(part: Any) -> None:
    three = Three(Placement(**part), ranks=(0, 1))
    decision = three.decide([1, 2, 3])
    assert column(decision, "labels") == [{"zone": zone} for zone in "xxyyxx"]
    assert decision.pod is three.pods[1]
    three.pods[0].reconfigure(PodConfig(url=three.pods[0].url, labels={"zone": "y"}), p2p=None, breaker=Breaker())
    assert column(three.decide([1, 2, 3]), "labels")[:2] == [{"zone": "y"}] * 2


def test_requests_that_nobody_holds_go_round() -> None:
    three = Three(Placement(scorers=(NoHitLru(),)))
    went = [three.place(range(1000 * number, 1000 * number + 64)) for number in range(9)]
    assert [sorted(went[first : first + 3]) for first in (0, 3, 6)] == [sorted(pod.name for pod in three.pods)] * 3


def test_who_comes_back_had_no_such_request_yet() -> None:
    three = Three(Placement(scorers=(NoHitLru(),)))
    for number in range(3):
        three.place(range(1000 * number, 1000 * number + 64))
    again = three.pods[1]
    again.left("gone")
    again.joined(MODELS, (0,))
    assert three.place(range(9000, 9064)) == again.name


def test_a_prompt_whose_tokens_are_not_known_takes_no_turn() -> None:
    three = Three(Placement(scorers=(NoHitLru(),)))
    decision = three.decide()
    three.decider.columns.placed(Ask("r", Peek(), "base", decision.prompt), decision)
    assert [pod.cold_turns for pod in three.pods] == [{}, {}, {}]


def adapters(*names: str, slots: int = 2, waiting: tuple[str, ...] = ()) -> Adapters:
    return Adapters(slots, frozenset(names), frozenset(waiting))


@pytest.mark.parametrize(
    ("known", "state"),
    [
        (adapters("poet", "sql"), "loaded"),
        (adapters("sql"), "slot"),
        (adapters(), "slot"),
        (adapters("sql", "chess"), "full"),
        (adapters("sql", "chess", waiting=("poet",)), "waiting"),
        (adapters("sql", waiting=("poet", "chess")), "waiting"),
        (adapters("sql", waiting=("poet",), slots=3), "slot"),
    ],
)
def test_an_adapter_stands_where_the_pod_says(known: Adapters, state: str) -> None:
    assert known.state("poet") == state


def test_the_state_of_an_adapter_is_unknown_without_a_fresh_word_of_it_and_of_a_base_model_always() -> None:
    three = Three(Placement(scorers=(LoraAffinity(),)))
    for pod in three.pods[:2]:
        pod.load, pod.load_at = {0: Load(adapters=adapters("poet"))}, three.now
    three.pods[1].load_at = three.now - 11
    assert column(three.decide(model="poet"), "adapter") == ["loaded", None, None]
    assert column(three.decide(model="base"), "adapter") == [None, None, None]
    assert three.decide(model="poet").pod is three.pods[0]


# In a gateway


async def scores(front: Front, name: str, **fields: Any) -> list[float]:
    return [each["scores"][name] for each in (await front.explain(ids(50), **fields))["candidates"]]


async def test_adapters_that_pods_serve_are_read_off_their_metrics() -> None:
    scorers = {"scorers": [{"type": "lora-affinity"}]}
    loras = {"poet": "/loras/poet"}
    async with (
        simulated(1, loras=loras) as (one,),
        simulated(1) as (two,),
        serving([one, two], placement=scorers) as front,
    ):
        assert await scores(front, "lora-affinity", model="poet") == [1.0]
        assert await scores(front, "lora-affinity") == [0.5, 0.5]


async def test_a_filter_is_seen_in_the_explanation_and_one_that_would_leave_nobody_is_counted() -> None:
    filters = [
        {"type": "label", "key": "zone", "values": ["x"]},
        {"type": "label", "key": "zone", "values": ["nowhere"]},
    ]
    async with simulated(2) as (one, two):
        pods = [spec(one, labels={"zone": "x"}), spec(two, labels={"zone": "y"})]
        async with serving(pods, placement={**AFFINITY, "filters": filters}) as front:
            told = await front.explain(ids(50))
            assert told["chosen"] == one.url
            assert [each["filtered_by"] for each in told["candidates"]] == [None, "label"]
            assert [each["total"] is None for each in told["candidates"]] == [False, True]
            assert [list(each["scores"]) for each in told["candidates"]] == [["prefix", "queue", "kv-utilization"], []]
            assert told["filters_skipped"] == ["label"]
            assert await front.metric("filters_skipped_total") == 0
            for salt in range(4):
                assert (await front.complete(ids(50, salt))).pod == one.url
            assert await front.metric("filters_skipped_total", filter="label") == 4


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_a_pod_that_a_filter_drops_is_still_pulled_from() -> None:
    filters = [{"type": "label", "key": "zone", "values": ["x"]}]
    async with simulated(2) as (one, two):
        pods = [spec(one, labels={"zone": "x"}), spec(two, labels={"zone": "y"})]
        async with serving(pods, placement={"filters": filters}) as front:
            async with serving([two]) as other:
                await other.complete(ids(200))
            await front.settled(two)
            answer = await front.complete(ids(200))
            assert (answer.pod, answer.source, answer.cached) == (one.url, two.url, 200 // BLOCK * BLOCK)


class Cracked:
    """A scorer that fails at every second request."""

    def __init__(self) -> None:
        self.asked = 0

    def score(self, request: PlacementRequest, candidates: Sequence[Candidate]) -> list[float]:
        del request
        self.asked += 1
        if self.asked % 2:
            raise LookupError("weather")
        return [0.0] * len(candidates)


async def test_a_scorer_that_fails_costs_no_request_and_is_counted_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, log: list[MutableMapping[str, Any]]
) -> None:
    module = ModuleType("cracked")
    module.Cracked = Cracked  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cracked", module)
    async with fleet(2, placement={"scorers": [{"type": "cracked:Cracked"}]}) as (front, _):
        for salt in range(6):
            await front.complete(ids(50, salt))
        assert await front.metric("scorer_faults_total", scorer="cracked:Cracked") == 3
    (entry,) = [each for each in log if each["log_level"] == "error"]
    assert (entry["scorer"], repr(entry["exc_info"])) == ("cracked:Cracked", "LookupError('weather')")
    log.remove(entry)
