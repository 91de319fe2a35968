from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sim.clock import Clock
from loadgen.sim.links import Links


class Pull(NamedTuple):
    at: float
    source: int
    consumer: int
    seconds: float


def ends(*pulls: Pull) -> list[float]:
    """Return when each ends."""
    clock, ended = Clock(), dict[int, float]()
    links = Links(clock)
    for number, pull in enumerate(pulls):

        def arrived(number: int = number) -> None:
            assert number not in ended
            ended[number] = clock.now

        def begin(pull: Pull = pull, arrived: object = arrived) -> None:
            assert callable(arrived)
            links.send(pull.source, pull.consumer, pull.seconds, arrived)

        clock.at(pull.at, begin)
    clock.run()
    return [ended[number] for number in range(len(pulls))]


def about(*seconds: float) -> list[object]:
    return [pytest.approx(each) for each in seconds]


def test_a_pull_alone_has_the_whole_link() -> None:
    assert ends(Pull(1.0, 0, 1, 2.5)) == about(3.5)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_pulls_from_one_source_take_as_many_times_longer(count: int) -> None:
    assert ends(*(Pull(0.0, 0, consumer, 2.0) for consumer in range(1, count + 1))) == about(*[2.0 * count] * count)


def test_pulls_from_two_sources_share_the_link_of_their_consumer() -> None:
    assert ends(Pull(0.0, 0, 9, 2.0), Pull(0.0, 1, 9, 2.0)) == about(4.0, 4.0)


def test_out_and_in_are_links_of_their_own() -> None:
    assert ends(Pull(0.0, 0, 1, 2.0), Pull(0.0, 1, 0, 2.0), Pull(0.0, 2, 3, 2.0)) == about(2.0, 2.0, 2.0)


def test_the_fuller_of_both_links_decides() -> None:
    # The first has a third of its source, and half of its consumer.
    first, *_ = ends(Pull(0.0, 0, 1, 1.0), Pull(0.0, 0, 2, 9.0), Pull(0.0, 0, 3, 9.0), Pull(0.0, 4, 1, 9.0))
    assert first == pytest.approx(3.0)


def test_a_pull_that_ends_speeds_up_the_others() -> None:
    assert ends(Pull(0.0, 0, 1, 1.0), Pull(0.0, 0, 2, 3.0)) == about(2.0, 4.0)


def test_a_pull_that_begins_slows_down_the_others() -> None:
    assert ends(Pull(0.0, 0, 1, 2.0), Pull(1.0, 0, 2, 3.0)) == about(3.0, 5.0)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_link_that_gets_slow_slows_down_what_is_on_it_from_then_on(slow: int) -> None:
    clock, ended = Clock(), dict[int, float]()
    links = Links(clock)
    for source, consumer in ((0, 1), (2, 3)):
        links.send(source, consumer, 2.0, lambda source=source: ended.setdefault(source, clock.now))  # type: ignore[misc]
    clock.at(1.0, lambda: links.slow(slow, 4.0))
    clock.at(3.0, lambda: links.slow(slow, 0.25))
    clock.run()
    # The half of it by then, a quarter in two seconds, and the rest at full speed.
    assert ended == {0: pytest.approx(3.5), 2: pytest.approx(2.0)}


def test_a_slow_link_decides_against_one_that_is_shared() -> None:
    clock, ended = Clock(), list[float]()
    links = Links(clock)
    links.slow(1, 3.0)
    for consumer in (1, 2):
        links.send(0, consumer, 1.0, lambda: ended.append(clock.now))
    clock.run()
    assert ended == about(2.0, 3.0)


PULLS = st.lists(
    st.builds(Pull, st.floats(0, 10), st.integers(0, 3), st.integers(4, 6), st.floats(0, 5)), min_size=1, max_size=20
)


@given(PULLS)
def test_work_is_neither_lost_nor_made(pulls: list[Pull]) -> None:
    """Each moves what it has to, at its share: summed up from one change to the next."""
    ended = ends(*pulls)
    changes = sorted({*(pull.at for pull in pulls), *ended})
    moved = [0.0] * len(pulls)
    for begin, end in pairwise(changes):
        active = [i for i, pull in enumerate(pulls) if pull.at <= begin and end <= ended[i]]
        for i in active:
            sharing_out = sum(pulls[j].source == pulls[i].source for j in active)
            sharing_in = sum(pulls[j].consumer == pulls[i].consumer for j in active)
            moved[i] += (end - begin) / max(sharing_out, sharing_in)
    assert moved == [pytest.approx(pull.seconds, abs=1e-6) for pull in pulls]
    assert all(end >= pull.at + pull.seconds - 1e-9 for pull, end in zip(pulls, ended, strict=True))


@given(PULLS)
def test_one_link_is_never_idle_while_there_is_work(pulls: list[Pull]) -> None:
    ended = ends(*(pull._replace(source=0, consumer=number + 1) for number, pull in enumerate(pulls)))
    busy = 0.0
    for pull in sorted(pulls):
        busy = max(busy, pull.at) + pull.seconds
    assert max(ended) == pytest.approx(busy)


def test_what_is_alike_ends_in_the_order_of_its_beginning() -> None:
    clock, ended = Clock(), list[int]()
    links = Links(clock)
    for number in range(50):
        links.send(0, 1, 1.0, lambda number=number: ended.append(number))  # type: ignore[misc]
    clock.run()
    assert ended == list(range(50))
