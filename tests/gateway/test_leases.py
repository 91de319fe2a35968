"""What requests under way do to the books of their pods and sources, from placement to first byte, failure or end."""

from array import array
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from config.schema import Breaker, PodConfig
from gateway.in_flight import InFlight
from gateway.leases import Lease, Predicted
from gateway.pod import Load, Model, Pod
from gateway.pods import PodTable
from gateway.pull_lease import Pull
from index import Arrival, Cached, Publisher, block_keys, root_key
from index.expected import TTL_S
from scorers import Candidate, Prefill, Timed
from scorers import Pull as PullTerms

MODELS = {"base": Model("base", "base")}
BLOCK = 16


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Books(NamedTuple):
    """What is counted on a rank."""

    requests: int = 0
    unanswered: int = 0
    tokens: int = 0
    square: int = 0
    pulls: int = 0
    pulled_tokens: int = 0
    serving: int = 0
    serving_tokens: int = 0
    joined: int = 0
    awaited: int = 0


def books(counts: InFlight) -> Books:
    return Books(*(getattr(counts, name) for name in Books._fields))


NOTHING = Books()
ANSWERED = Books(requests=1)


def fleet(count: int = 2) -> tuple[Clock, PodTable, list[Pod]]:
    clock = Clock()
    pods = [
        Pod(PodConfig(url=f"http://10.0.0.{number}:8000"), p2p=(f"10.0.0.{number}", 5710), breaker=Breaker())
        for number in range(count)
    ]
    for pod in pods:
        pod.joined(MODELS, (0,))
    return clock, PodTable(pods, max_load_age=10, clock=clock), pods


def prompt(*contents: int) -> "array[int]":
    tokens = [content for content in contents for _ in range(BLOCK)]
    return array("Q", block_keys(tokens, BLOCK, root_key("base", BLOCK)))


def expected(table: PodTable, asked: "array[int]") -> dict[Publisher, int]:
    return table.expected.match({BLOCK: asked}, table.clock())


@pytest.mark.parametrize("how", ["first byte", "refusal", "failure", "end"])
def test_a_pull_counts_on_both_sides_until_nothing_is_waited_for_and_once(how: str) -> None:
    _, table, (consumer, source) = fleet()
    pulling = table.leased(consumer, 0, 50, square=9000, pull=Pull(source.in_flight[0], 2048))
    other = table.leased(source, 0, 7, square=49)
    assert books(consumer.in_flight[0]) == Books(1, 1, 50, 9000, 1, 2048)
    assert books(source.in_flight[0]) == Books(1, 1, 7, 49, serving=1, serving_tokens=2048, awaited=1)
    for _ in range(2):
        match how:
            case "first byte":
                pulling.first_byte()
            case "refusal":
                pulling.first_byte(computed=False)
            case "failure":
                pulling.failed(table.clock(), suspect=False)
            case "end":
                pulling.close()
        assert books(consumer.in_flight[0]) == (NOTHING if how == "end" else ANSWERED)
        assert books(source.in_flight[0]) == Books(1, 1, 7, 49)
    for lease in (pulling, other):
        lease.close()
    assert books(consumer.in_flight[0]) == books(source.in_flight[0]) == NOTHING


def test_a_source_that_left_and_came_back_serves_nothing_of_what_was_pulled_before() -> None:
    _, table, (consumer, source) = fleet()
    before = source.in_flight[0]
    pulling = table.leased(consumer, 0, 50, pull=Pull(before, 2048))
    source.left("gone")
    source.joined(MODELS, (0,))
    assert books(source.in_flight[0]) == NOTHING
    pulling.first_byte()
    assert books(source.in_flight[0]) == books(before) == NOTHING


def test_a_rank_tells_since_when_it_is_busy_and_when_it_answered_last() -> None:
    clock, table, (pod, _) = fleet()
    counts = pod.in_flight[0]
    assert (counts.busy_since, counts.answered_at) == (0.0, 0.0)
    clock.now = 101.0
    one = table.leased(pod, 0, 10)
    clock.now = 102.0
    two = table.leased(pod, 0, 10)
    assert (counts.busy_since, counts.answered_at) == (101.0, 0.0)
    clock.now = 103.0
    one.first_byte()
    assert (counts.busy_since, counts.answered_at) == (101.0, 103.0)
    clock.now = 104.0
    one.first_byte()  # again
    two.close()  # aborted
    assert (counts.busy_since, counts.answered_at) == (101.0, 103.0)
    three = table.leased(pod, 0, 10)
    three.first_byte(computed=False)
    assert (counts.busy_since, counts.answered_at) == (104.0, 103.0)


def test_what_is_placed_is_expected_from_placement_until_events_have_had_time_to_confirm_it() -> None:
    clock, table, (pod, _) = fleet()
    lease = table.leased(pod, 0, 48, prompts=[prompt(1, 2, 3)])
    clock.now += 600
    assert expected(table, prompt(1, 2, 9)) == {Publisher(pod.name, 0): 2 * BLOCK}
    lease.first_byte()
    lease.close()
    clock.now += TTL_S - 0.01
    assert expected(table, prompt(1, 2, 9)) == {Publisher(pod.name, 0): 2 * BLOCK}
    clock.now += 0.01
    assert expected(table, prompt(1, 2, 9)) == {}


@pytest.mark.parametrize("how", ["abort", "failure", "refusal"])
def test_what_was_not_computed_is_expected_no_more(how: str) -> None:
    _, table, (pod, _) = fleet()
    with table.leased(pod, 0, 48, prompts=[prompt(1, 2, 3)]) as lease:
        if how == "failure":
            lease.failed(table.clock(), suspect=True)
        elif how == "refusal":
            lease.first_byte(computed=False)
    assert expected(table, prompt(1, 2, 3)) == {}


def test_nothing_is_expected_of_a_pod_that_left() -> None:
    _, table, (pod, other) = fleet()
    leases = [table.leased(each, 0, 48, prompts=[prompt(1, 2, 3)]) for each in (pod, other)]
    table.forget(pod.name)
    for lease in leases:
        lease.first_byte()
    assert expected(table, prompt(1, 2, 3)) == {Publisher(other.name, 0): 3 * BLOCK}


def test_what_is_expected_is_a_column_of_its_own_and_no_confirmed_one() -> None:
    _, table, (pod, other) = fleet()
    table.leased(pod, 0, 48, prompts=[prompt(1, 2, 3)])
    table.leased(pod, 0, 16, prompts=[prompt(4, 5, 6)], pull=Pull(other.in_flight[0], 32))
    one, two = table.candidates([pod, other], {}, expected(table, prompt(1, 2)))
    assert (one.speculative_tokens, one.any_tokens, two.speculative_tokens) == (2 * BLOCK, 0, 0)
    assert (one.in_flight_unanswered, one.pulls, one.pulled_tokens, one.serving) == (2, 1, 32, 0)
    assert (two.in_flight_unanswered, two.pulls, two.serving, two.serving_tokens) == (0, 0, 1, 32)


def coming(table: PodTable, asked: "array[int]", *pods: Pod) -> list[Candidate]:
    return table.candidates(pods, {}, {}, coming=table.coming.match({BLOCK: asked}))


def test_what_a_request_pulls_is_on_its_way_until_its_first_byte_and_then_expected_there() -> None:
    clock, table, (pod, other) = fleet()
    arrival = Arrival(2 * BLOCK, clock.now + 3.0, (other.url, 0))
    lease = table.leased(pod, 0, 16, prompts=[prompt(1, 2, 3)], pull=Pull(other.in_flight[0], 2 * BLOCK, arrival))
    clock.now += 1.0
    one, two = coming(table, prompt(1, 2, 9), pod, other)
    assert (one.coming_tokens, one.coming_s, one.coming_from, one.coming_rank) == (2 * BLOCK, 2.0, other.url, 0)
    assert (two.coming_tokens, two.coming_s, two.coming_from) == (0, 0.0, None)
    assert coming(table, prompt(1, 9), pod)[0].coming_tokens == BLOCK
    assert coming(table, prompt(9, 2), pod)[0].coming_tokens == 0
    assert expected(table, prompt(1, 2, 3)) == {}
    clock.now += 6.0  # what is late is expected to take as long again
    assert coming(table, prompt(1, 2), pod)[0].coming_s == 4.0
    lease.first_byte()
    lease.close()
    assert coming(table, prompt(1, 2), pod)[0].coming_tokens == 0
    assert expected(table, prompt(1, 2, 3)) == {Publisher(pod.name, 0): 3 * BLOCK}
    clock.now += TTL_S
    assert expected(table, prompt(1, 2, 3)) == {}


@pytest.mark.parametrize("how", ["abort", "failure", "refusal", "pod left"])
def test_what_was_not_pulled_comes_no_more_and_is_not_expected(how: str) -> None:
    clock, table, (pod, other) = fleet()
    pull = Pull(other.in_flight[0], 2 * BLOCK, Arrival(2 * BLOCK, clock.now + 3.0, (other.url, 0)))
    with table.leased(pod, 0, 16, prompts=[prompt(1, 2, 3)], pull=pull) as lease:
        if how == "failure":
            lease.failed(clock.now, suspect=True)
        elif how == "refusal":
            lease.first_byte(computed=False)
        elif how == "pod left":
            pod.left("gone")
            table.forget(pod.name)
            lease.first_byte()
    assert not table.coming
    assert expected(table, prompt(1, 2, 3)) == {}


def test_a_pull_tells_of_as_many_tokens_as_its_links_carried_meanwhile() -> None:
    """Four pull from one source at once, each placed without knowing of the next; then one of them alone."""
    clock, table, (source, *consumers) = fleet(5)
    told: list[float] = []
    table.costs.pulled = lambda *told_of: told.append(told_of[2].token)  # type: ignore[method-assign]
    peer = (source.url, 0)

    def pulling(consumer: Pod) -> Lease:
        work = Timed((consumer.url, 0), 64, Prefill(1.0, 16.0, 16.0), peer, PullTerms(1.0, 32.0, 0.0, 0.0))
        pull = Pull(source.in_flight[0], 32)
        return Lease(table, consumer, 0, 16, pull=pull, predicted=Predicted(None, work))

    under_way = [pulling(consumer) for consumer in consumers]
    clock.now += 1.0
    for lease in under_way:
        lease.first_byte()
    assert told == [4 * 32.0] * 4
    alone = pulling(consumers[0])
    clock.now += 1.0
    other = pulling(consumers[1])
    clock.now += 1.0
    alone.first_byte()
    other.pull_is_over()
    clock.now += 1.0
    other.first_byte()
    assert told[4:] == [1.5 * 32.0, 2.0 * 32.0]


def test_who_waits_for_what_another_one_pulls_counts_on_no_link() -> None:
    _, table, (pod, other) = fleet()
    lease = table.leased(pod, 0, 16, prompts=[prompt()], pull=Pull(other.in_flight[0], 0))
    assert books(pod.in_flight[0]) == Books(1, 1, 16, joined=1)
    assert books(other.in_flight[0]) == Books(awaited=1)
    assert not table.coming
    lease.first_byte()
    lease.close()
    assert books(pod.in_flight[0]) == NOTHING
    assert expected(table, prompt()) == {}


class Taken(NamedTuple):
    lease: Lease
    counts: InFlight
    tokens: int
    square: int
    pull: Pull | None


def recounted(counts: InFlight, waiting: list[Taken], under_way: list[Taken]) -> Books:
    mine = [taken for taken in waiting if taken.counts is counts]
    named = [taken.pull for taken in mine if taken.pull is not None]
    pulls = [pull for pull in named if pull.tokens]
    moving = [taken.pull for taken in waiting if taken.pull is not None and taken.pull.tokens]
    serving = [pull for pull in moving if pull.source is counts]
    return Books(
        sum(taken.counts is counts for taken in under_way),
        len(mine),
        sum(taken.tokens for taken in mine),
        sum(taken.square for taken in mine),
        len(pulls),
        sum(pull.tokens for pull in pulls),
        len(serving),
        sum(pull.tokens for pull in serving),
        len(named) - len(pulls),
        sum(taken.pull is not None and taken.pull.source is counts for taken in waiting),
    )


steps = st.tuples(st.sampled_from(["place", "byte", "fail", "close", "flap"]), st.integers(0, 9), st.integers(0, 2))


@given(st.lists(steps, max_size=60))
def test_however_requests_go_the_books_are_the_sums_over_those_under_way(steps: list[tuple[str, int, int]]) -> None:
    clock, table, pods = fleet(3)
    all_counts = [pod.in_flight[0] for pod in pods]
    waiting: list[Taken] = []
    under_way: list[Taken] = []
    for step, number, which in steps:
        clock.now += 1
        pod, peer = pods[which], pods[number % 3]
        if step == "place":
            pull = Pull(peer.in_flight[0], number) if peer is not pod else None
            lease = table.leased(pod, 0, number, square=number * number, pull=pull, prompts=[prompt(number, which)])
            taken = Taken(lease, pod.in_flight[0], number, number * number, pull)
            waiting.append(taken)
            under_way.append(taken)
        elif step == "flap":
            pod.left("gone")
            table.forget(pod.name)
            pod.joined(MODELS, (0,))
            all_counts.append(pod.in_flight[0])
        elif under_way:
            taken = under_way[number % len(under_way)]
            waiting = [each for each in waiting if each is not taken]
            if step == "byte":
                taken.lease.first_byte()
            elif step == "fail":
                taken.lease.failed(clock.now, suspect=False)
            else:
                taken.lease.close()
                under_way.remove(taken)
        for counts in all_counts:
            assert books(counts) == recounted(counts, waiting, under_way)
    for taken in under_way:
        taken.lease.close()
    assert {books(counts) for counts in all_counts} == {NOTHING}
    clock.now += TTL_S
    assert expected(table, prompt()) == {}
    assert not table.expected


def test_every_column_of_a_candidate_is_what_its_name_says() -> None:
    clock, table, (pod, _) = fleet()
    pod.joined(MODELS, (3,))
    pod.streams[3].trust.compared(100, 50, clock.now)
    pod.load, pod.load_at = {3: Load(11, 12, 0.13)}, clock.now
    counts = pod.in_flight[3]
    for number, name in enumerate(Books._fields, 20):
        setattr(counts, name, number)
    counts.busy_since, counts.answered_at, counts.context = 90.0, 95.0, 30
    publisher = Publisher(pod.name, 3)
    (candidate,) = table.candidates([pod], {publisher: Cached(32, 16, 48)}, {publisher: 64})
    assert candidate == Candidate(
        pod=pod.url,
        rank=3,
        p2p_host="10.0.0.0",
        p2p_port=5713,
        gpu_tokens=32,
        cpu_tokens=16,
        any_tokens=48,
        credit=pod.streams[3].trust.credit(clock.now),
        speculative_tokens=64,
        waiting=11,
        running=12,
        kv_usage=0.13,
        in_flight_requests=20,
        in_flight_unanswered=21,
        in_flight_tokens=22,
        in_flight_square=23,
        in_flight_context=30,
        progress_s=5.0,
        pulls=24,
        pulled_tokens=25,
        serving=26,
        serving_tokens=27,
        awaited=29,
    )
    assert candidate.credit < 1.0
