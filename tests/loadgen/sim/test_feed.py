"""A pod's events on their way to the gateway: late, lost, replayed."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pod import EventStream
from index import BlockRemoved, Event
from loadgen.sim import feed as module
from loadgen.sim.clock import Clock
from loadgen.sim.feed import Delivery, Feed
from loadgen.workload.datasets.distributions import LogNormal, Uniform

DELAY_S = 0.005
REPLAY_S = 0.05


class Pod:
    """Publishes batches by the clock, each an event that names its number."""

    def __init__(self, delivery: Delivery | None = None, *, seed: int = 0) -> None:
        self.clock = Clock()
        self.stream = EventStream()
        self.arrived: list[tuple[int, float]] = []
        self.feed = Feed(self.clock, delivery or Delivery(), Random(seed), self.stream, self._apply)
        self.count = 0

    def _apply(self, events: Sequence[Event]) -> None:
        (event,) = events
        assert isinstance(event, BlockRemoved)
        self.arrived.append((event.block_hashes[0], self.clock.now))

    def publish(self, *, lost: bool = False) -> None:
        if lost:
            self.feed.lose(1e-9)
        self.feed.publish([BlockRemoved([self.count])], 0.0)
        self.count += 1

    def publish_at(self, *times: float, lost: Sequence[float] = ()) -> None:
        for time in sorted((*times, *lost)):
            self.clock.at(time, lambda time=time: self.publish(lost=time in lost))  # type: ignore[misc]

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.arrived]

    def time(self, number: int) -> float:
        (time,) = (time for each, time in self.arrived if each == number)
        return time


def test_a_batch_arrives_a_delay_after_its_step() -> None:
    pod = Pod()
    pod.clock.at(1.0, lambda: pod.feed.publish([BlockRemoved([0])], 0.25))
    pod.clock.run()
    assert pod.arrived == [(0, pytest.approx(1.25 + DELAY_S))]
    assert (pod.stream.certain, pod.stream.last_seq, pod.stream.gaps) == (True, 0, 0)


@pytest.mark.parametrize("delay", [Uniform(low=1.0, high=200.0), LogNormal(median=5.0, mean=20.0)])
def test_delays_differ_but_never_the_order(delay: Any) -> None:
    pod = Pod(Delivery(delay_ms=delay))
    times = [number * 0.01 for number in range(200)]
    pod.publish_at(*times)
    pod.clock.run()
    assert pod.numbers == list(range(200))
    late = [arrived - sent for (_, arrived), sent in zip(pod.arrived, times, strict=True)]
    assert min(late) > 0
    assert len({round(each, 6) for each in late}) > 50
    assert pod.stream.certain


def test_what_is_lost_is_seen_at_the_next_batch_and_replayed() -> None:
    pod = Pod()
    pod.publish_at(0.0, 0.3, 0.31, 1.0, lost=[0.1, 0.2])
    pod.clock.run(0.32)
    assert pod.numbers == [0]
    pod.clock.run()
    assert pod.numbers == [0, 1, 2, 3, 4, 5]
    for number in (1, 2, 3, 4):
        assert pod.time(number) == pytest.approx(0.3 + DELAY_S + REPLAY_S)
    assert pod.time(5) == pytest.approx(1.0 + DELAY_S)
    assert (pod.feed.numbers.gaps, pod.feed.numbers.lost, pod.stream.certain) == (1, 0, True)
    assert pod.stream.trust.credit(100.0) == 1.0
    assert not pod.feed._buffer


def test_without_a_replay_port_it_is_given_up_and_the_pod_believed_less() -> None:
    pod = Pod(Delivery(replay=False))
    pod.publish_at(0.0, 0.3, 0.31, lost=[0.1, 0.2])
    pod.clock.run()
    assert pod.numbers == [0, 3, 4]
    assert pod.time(3) == pytest.approx(0.3 + DELAY_S)
    assert (pod.stream.gaps, pod.feed.numbers.lost, pod.stream.certain) == (1, 2, False)
    # Of the three batches since the first one, and of the time since, two thirds.
    assert pod.stream.trust.credit(0.4) == pod.stream.trust.credit(100.0) == pytest.approx(2 ** -(0.2 / 60))


def test_gap_after_gap_is_asked_for_as_long_as_replays_bring_what_is_missing() -> None:
    pod = Pod()
    # Each replay has what was published before it was asked for, and while it is under way another batch is lost.
    asked = 0.1 + DELAY_S
    pod.publish_at(0.1, lost=[0.0])
    for replay in range(5):
        begun = asked + replay * REPLAY_S
        pod.publish_at(begun + 0.02, lost=[begun + 0.01])
    pod.publish_at(1.0)
    pod.clock.run()
    assert pod.numbers == list(range(13))
    for gap in range(6):
        assert pod.time(2 * gap + 1) == pytest.approx(asked + (gap + 1) * REPLAY_S)
    assert pod.time(12) == pytest.approx(1.0 + DELAY_S)
    assert (pod.feed.numbers.gaps, pod.feed.numbers.lost, pod.stream.lost, pod.stream.certain) == (6, 0, 0, True)
    assert pod.stream.trust.credit(100.0) == 1.0


def test_what_the_pod_keeps_no_longer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUFFERED", 3)
    pod = Pod()
    pod.publish_at(0.0, 0.5, 1.0, lost=[0.1, 0.2, 0.3, 0.4])
    pod.clock.run()
    assert pod.numbers == [0, 3, 4, 5, 6]
    assert pod.time(5) == pytest.approx(0.5 + DELAY_S + 3 * REPLAY_S)
    assert (pod.feed.numbers.lost, pod.stream.certain) == (2, False)


def test_only_the_gap_that_no_replay_filled_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUFFERED", 3)
    pod = Pod()
    pod.publish_at(0.0, 0.5, lost=[0.1, 0.2, 0.3, 0.4])
    # While the last replay is under way another batch is lost; that one the pod still has.
    asked = 0.5 + DELAY_S + 2 * REPLAY_S
    pod.publish_at(asked + 0.02, lost=[asked + 0.01])
    pod.clock.run()
    assert pod.numbers == [0, 5, 6, 7]
    assert pod.time(5) == pytest.approx(asked + REPLAY_S)
    assert pod.time(6) == pytest.approx(asked + 2 * REPLAY_S)
    assert (pod.feed.numbers.lost, pod.stream.certain) == (4, False)


def test_of_a_pod_that_publishes_faster_than_it_answers_what_it_no_longer_has_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_BUFFERED", 3)
    pod = Pod()
    pod.publish_at(*(number * 0.01 for number in range(60) if number != 30), lost=[0.3])
    pod.clock.run()
    assert pod.numbers == [number for number in range(60) if number != 30]
    assert pod.time(31) == pytest.approx(0.31 + DELAY_S + 3 * REPLAY_S)
    assert (pod.feed.numbers.lost, pod.stream.certain) == (1, False)


def test_of_a_pod_that_is_gone_nothing_arrives() -> None:
    pod = Pod()
    pod.publish_at(0.0, 0.2, 0.3, lost=[0.1])
    pod.clock.at(0.23, pod.feed.stop)
    pod.clock.run()
    assert pod.numbers == [0]
    late = Pod()
    late.publish_at(0.0)
    late.clock.at(0.001, late.feed.stop)
    late.clock.run()
    assert late.numbers == []


@given(
    st.lists(st.tuples(st.floats(1e-6, 0.1), st.booleans()), max_size=60),
    st.booleans(),
    st.sampled_from([0.0, 5.0, Uniform(low=0.0, high=80.0)]),
)
def test_every_batch_arrives_once_and_in_order_or_is_counted_as_lost(
    batches: list[tuple[float, bool]], replay: bool, delay: Any
) -> None:
    pod = Pod(Delivery(delay_ms=delay, replay=replay))
    now = 0.0
    for pause, lost in batches:
        now += pause
        pod.clock.at(now, lambda lost=lost: pod.publish(lost=lost))  # type: ignore[misc]
    pod.clock.at(now + 1.0, pod.publish)  # shows what was lost at the end
    pod.clock.run()
    assert pod.numbers == sorted(set(pod.numbers))
    assert pod.numbers[-1] == len(batches)
    assert len(pod.numbers) + pod.feed.numbers.lost == len(batches) + 1
    assert pod.stream.certain == (pod.feed.numbers.lost == 0)
    assert pod.feed.numbers.lost == (0 if replay else sum(lost for _, lost in batches))
    assert not pod.feed._kept
    assert not pod.feed._buffer


def test_the_share_that_is_lost_is_the_one_that_was_asked_for() -> None:
    pod = Pod(Delivery(loss=0.2, replay=False))
    pod.publish_at(*(number * 0.01 for number in range(5000)))
    pod.clock.run()
    assert pod.feed.numbers.lost == pytest.approx(1000, abs=100)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [({"loss": 1.5}, "event_loss must be between 0 and 1"), ({"delay_ms": -1.0}, "event_delay_ms must be at least 0")],
)
def test_what_cannot_be_is_refused(wrong: dict[str, float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Delivery(**wrong)
