import asyncio
from typing import Any

import pytest

from config.schema import Breaker, PodConfig
from gateway.pod import EventStream, Load, Model, Pod
from gateway.pods import PodTable
from index import Cached, Publisher, Sequence

BASE = {"base": Model("base", "base"), "poet": Model("poet", "poet", adapter=True)}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pod(number: int = 1, *, ranks: tuple[int, ...] = (0,), models: Any = None) -> Pod:
    """A ready pod."""
    made = Pod(
        PodConfig(url=f"http://10.0.0.{number}:8000"),
        p2p=(f"10.0.0.{number}", 5710),
        breaker=Breaker(failures=1, cooldown=10),
    )
    made.joined(BASE if models is None else models, ranks)
    return made


def names(pods: list[Pod]) -> list[str]:
    return [each.name for each in pods]


def test_a_lease_is_released_step_by_step_and_once() -> None:
    one = pod()
    table = PodTable([one], max_load_age=10)
    lease = table.leased(one, 0, 50)
    other = table.leased(one, 0, 7)
    assert (one.in_flight[0].requests, one.in_flight[0].tokens) == (2, 57)
    for _ in range(2):
        lease.first_byte()
        assert (one.in_flight[0].requests, one.in_flight[0].tokens) == (2, 7)
    for _ in range(2):
        lease.close()
        assert (one.in_flight[0].requests, one.in_flight[0].tokens) == (1, 7)
    other.close()
    assert (one.in_flight[0].requests, one.in_flight[0].tokens) == (0, 0)


def test_a_lease_of_an_earlier_incarnation_touches_nothing_of_the_next() -> None:
    one = pod()
    lease = PodTable([one], max_load_age=10).leased(one, 0, 50)
    one.left("gone")
    one.joined(BASE, (0,))
    lease.failed(0.0, suspect=False)
    lease.close()
    assert (one.in_flight[0].requests, one.in_flight[0].tokens) == (0, 0)
    assert one.breaker.state(0.0) == "closed"


def test_a_lease_is_taken_back_however_its_request_ends() -> None:
    one = pod()
    table = PodTable([one], max_load_age=10)

    def ends(how: BaseException) -> None:
        with table.leased(one, 0, 9):
            assert one.in_flight[0].tokens == 9
            raise how

    for how in (RuntimeError(), asyncio.CancelledError(), KeyboardInterrupt()):
        with pytest.raises(type(how)):
            ends(how)
    assert (one.in_flight[0].requests, one.in_flight[0].tokens) == (0, 0)


def test_healthy_pods_are_preferred_then_suspect_ones_then_those_with_an_open_breaker() -> None:
    clock = Clock()
    healthy, suspect, failing, down = (pod(number) for number in range(1, 5))
    suspect.suspected()
    failing.breaker.failed(clock(), trial=False)
    down.left("down")
    table = PodTable([failing, suspect, healthy, down], max_load_age=10, clock=clock)
    assert names(table.serving("base")) == [healthy.name]
    assert names(table.serving("base", frozenset({healthy.name}))) == [suspect.name]
    assert names(table.serving("base", frozenset({healthy.name, suspect.name}))) == [failing.name]
    assert table.serving("base", frozenset({healthy.name, suspect.name, failing.name})) == []
    clock.now += 10
    assert set(names(table.serving("base"))) == {healthy.name, failing.name}


def test_a_suspect_pod_is_a_candidate_without_an_address() -> None:
    one = pod(ranks=(0, 1))
    table = PodTable([one], max_load_age=10)
    cached = {Publisher(one.name, 1): Cached(32, 16, 32)}
    assert [(each.p2p_host, each.p2p_port) for each in table.candidates([one], cached)] == [
        ("10.0.0.1", 5710),
        ("10.0.0.1", 5711),
    ]
    one.suspected()
    assert one.wake.is_set()
    assert [(each.p2p_host, each.p2p_port) for each in table.candidates([one], cached)] == [(None, None)] * 2
    second = table.candidates([one], cached)[1]
    assert (second.rank, second.gpu_tokens, second.cpu_tokens, second.any_tokens) == (1, 32, 16, 32)


def test_a_load_is_believed_until_it_is_too_old() -> None:
    clock = Clock()
    one = pod()
    table = PodTable([one], max_load_age=10, clock=clock)
    one.load, one.load_at = {0: Load(3, 2, 0.5)}, clock()
    for age, expected in ((0, (3, 2, 0.5)), (10, (3, 2, 0.5)), (10.1, (None, None, None))):
        clock.now = one.load_at + age
        (candidate,) = table.candidates([one], {})
        assert (candidate.waiting, candidate.running, candidate.kv_usage) == expected


def test_a_rank_that_says_nothing_is_unknown() -> None:
    one = pod(ranks=(0, 1))
    table = PodTable([one], max_load_age=10)
    one.load, one.load_at = {0: Load(3)}, table.clock()
    assert [each.waiting for each in table.candidates([one], {})] == [3, None]


def test_a_pod_that_left_forgets_its_load_and_streams_and_keeps_its_models() -> None:
    one = pod()
    table = PodTable([one], max_load_age=10)
    one.load, one.load_at = {0: Load(3)}, table.clock()
    one.streams[0].certain = True
    assert bool(table.ready) is True
    one.left("no answer")
    assert bool(table.ready) is False
    assert (one.state, one.reason, one.load, one.streams[0]) == ("down", "no answer", {}, EventStream())
    assert list(table.models()) == ["base", "poet"]
    assert table.serving("base") == []


def follow(stream: EventStream, numbers: Sequence, now: float, *frames: int) -> None:
    for number in frames:
        numbers.live(number)
    stream.follows(numbers, now)


def test_claims_lose_credit_for_the_time_whose_batches_are_lost() -> None:
    stream, numbers = EventStream(), Sequence(replay=False)
    follow(stream, numbers, 0.0)
    follow(stream, numbers, 100.0, 0, 1)
    assert stream.trust.credit(1e6) == 1.0
    follow(stream, numbers, 190.0, 4)
    assert stream.trust.credit(190.0) == stream.trust.credit(1e6) == pytest.approx(0.5)  # two of three
    follow(stream, numbers, 250.0)
    follow(stream, numbers, 310.0, 5, 7)
    assert stream.trust.credit(1e6) == pytest.approx(2 ** -(100 / 60))  # and one of three
    assert (stream.last_seq, stream.lost, stream.certain) == (7, 3, False)


def test_of_batches_lost_before_any_was_seen_nobody_knows_how_much_time_they_took() -> None:
    stream, numbers = EventStream(last_seq=4), Sequence(replay=False, position=4)
    follow(stream, numbers, 100.0)
    follow(stream, numbers, 110.0, 9)
    assert stream.trust.credit(110.0) == 1.0
    assert stream.trust.credit(170.0) == pytest.approx(0.5)


def test_of_a_new_engine_time_is_counted_from_its_first_batch_on() -> None:
    stream, numbers = EventStream(), Sequence(replay=False)
    follow(stream, numbers, 100.0, 0, 1, 2)
    follow(stream, numbers, 200.0, 2, 2)  # the first one tells of the restart
    assert stream.restarts == 1
    assert stream.trust.credit(260.0) == pytest.approx(0.5)
    follow(stream, numbers, 320.0, 4)
    assert stream.trust.credit(320.0) == pytest.approx(2 ** -(120 / 60 + 60 / 60))


def test_the_base_model_is_no_adapter() -> None:
    assert pod().base_model == "base"
    assert pod(models={"poet": BASE["poet"]}).base_model == ""
    assert pod(models={}).base_model == ""


def test_a_table_is_found_by_name_and_keeps_its_order() -> None:
    pods = [pod(number) for number in (3, 1, 2)]
    table = PodTable(pods, max_load_age=10)
    assert list(table) == pods
    assert table["10.0.0.1:8000"] is pods[1]
    assert names(table.models()["base"]) == names(pods)
