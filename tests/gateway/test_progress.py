"""A rank that says that it computes, and gets nowhere."""

import pytest

from gateway.progress import Progress, Work

AFTER = 10.0
STILL = Work(running=1, generated=5.0, prompt=100.0, kv_usage=0.25)


def polls(progress: Progress, *found: tuple[float, Work], under_way: int = 1, after: float | None = AFTER) -> bool:
    """The last poll's verdict; each is (time, what was found)."""
    return [progress.polled(work, under_way, now, after) for now, work in found][-1]


@pytest.fixture
def stalled() -> Progress:
    progress = Progress()
    assert polls(progress, (0, STILL), (1, STILL), (11, STILL))
    return progress


def test_nothing_that_moves_for_long_enough_is_a_stall() -> None:
    progress = Progress()
    assert not polls(progress, (0, STILL), (1, STILL), (10.9, STILL))
    assert polls(progress, (11, STILL))


@pytest.mark.parametrize(
    "moved",
    [STILL._replace(generated=6.0), STILL._replace(prompt=200.0), STILL._replace(kv_usage=0.26)],
    ids=["a token", "a prefill's end", "a chunk of a long prefill"],
)
def test_whatever_moves_is_progress(moved: Work, stalled: Progress) -> None:
    progress = Progress()
    assert not polls(progress, (0, STILL), (1, STILL), (9, moved), (18, moved))
    assert not polls(stalled, (12, moved), (21, moved))


def test_a_rank_on_which_nothing_runs_is_not_stalled(stalled: Progress) -> None:
    idle = STILL._replace(running=0)
    assert not polls(Progress(), (0, idle), (1, idle), (100, idle))
    assert not polls(stalled, (12, idle))


def test_what_runs_for_others_is_not_judged() -> None:
    assert not polls(Progress(), (0, STILL), (1, STILL), (100, STILL), under_way=0)


def test_time_without_requests_of_ours_does_not_count() -> None:
    progress = Progress()
    polls(progress, (0, STILL), (100, STILL), under_way=0)
    assert not polls(progress, (101, STILL), (110.9, STILL))
    assert polls(progress, (111, STILL))


def test_a_stall_lasts_when_the_requests_have_gone(stalled: Progress) -> None:
    assert polls(stalled, (12, STILL), (13, STILL), under_way=0)


def test_a_pod_that_counts_no_tokens_is_never_stalled() -> None:
    silent = STILL._replace(generated=None)
    assert not polls(Progress(), (0, silent), (1, silent), (100, silent))
    assert not polls(Progress(), (0, Work()), (1, Work()), (100, Work()))


def test_none_is_stalled_where_nobody_asks(stalled: Progress) -> None:
    assert not polls(Progress(), (0, STILL), (1, STILL), (100, STILL), after=None)
    assert not polls(stalled, (12, STILL), after=None)
