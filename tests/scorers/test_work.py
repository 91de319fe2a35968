"""What a placed request makes a rank do, as terms of its costs."""

import pytest

from scorers import pulling_seconds, timed
from tests.scorers.forecasts import PULL, asked, met, pod


def test_a_pull_is_its_tokens_as_often_as_its_link_is_shared_a_busy_source_and_a_first_time() -> None:
    source, consumer = pod("b", 960, serving=1, in_flight_requests=2), pod("a")
    costs = asked().costs
    assert costs is not None
    work = timed(costs, consumer, 1_000, (40, 78_400), source, 960)
    assert work.pulling == (1.0, 2 * 960.0, 2 * 0.01, 1.0)
    assert pulling_seconds(costs, work) == pytest.approx(PULL.seconds(1_920, 0.02, met=False))
    known = met((source, consumer))
    work = timed(known, consumer, 1_000, (40, 78_400), source, 960)
    assert work.pulling == (1.0, 2 * 960.0, 2 * 0.01, 0.0)
    assert pulling_seconds(known, work) < pulling_seconds(costs, timed(costs, consumer, 1_000, (40, 0), source, 960))


def test_who_waits_for_what_another_one_pulls_pulls_nothing() -> None:
    source, consumer = pod("b", 960), pod("a", in_flight_requests=1, in_flight_unanswered=1, in_flight_tokens=100)
    costs = asked().costs
    assert costs is not None
    work = timed(costs, consumer, 1_000, (40, 78_400), source, 0)
    assert (work.source, work.pulling) == (("http://b:8000", 0), None)
    assert work.wait_s == pytest.approx(0.1 + 0.1)
    assert pulling_seconds(costs, work) == 0.0


def test_without_a_source_nothing_is_pulled() -> None:
    costs = asked().costs
    assert costs is not None
    work = timed(costs, pod("a"), 1_000, (1_000, 1_000_000), None, 0)
    assert (work.source, work.pulling, pulling_seconds(costs, work)) == (None, None, 0.0)
