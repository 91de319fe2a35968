from hypothesis import given
from hypothesis import strategies as st

from engine_patch.quarantine import LET_GO_S, LONGEST_S, Quarantine

A, B = "10.0.0.1:5710", "10.0.0.2:5710"


def holding() -> Quarantine:
    """A pull of chunks 1 to 3 from A was given up; 1 and 2 have been freed since."""
    quarantine = Quarantine()
    quarantine.put(7, A, [1, 2, 3], 0)
    assert quarantine.hold(1)
    assert quarantine.hold(2)
    return quarantine


def test_a_freed_chunk_stays_out_of_use_until_the_source_says_that_it_is_through() -> None:
    quarantine = holding()
    assert len(quarantine) == 2
    assert 7 in quarantine
    assert quarantine.release(7) == {1, 2}
    assert 7 not in quarantine
    assert not quarantine.hold(3)


def test_other_chunks_are_freed_as_ever() -> None:
    assert not holding().hold(4)


def test_a_chunk_that_was_not_freed_is_not_given_back() -> None:
    quarantine = Quarantine()
    quarantine.put(7, A, [1], 0)
    assert quarantine.release(7) == set()


def test_only_the_pulls_of_a_source_that_is_gone_are_over_and_a_little_later() -> None:
    quarantine = holding()
    quarantine.put(8, B, [9], 0)
    quarantine.hold(9)
    quarantine.let_go(A, 1)
    assert quarantine.expire(1) == set()
    assert quarantine.expire(1 + LET_GO_S) == {1, 2}
    assert quarantine.peers() == {B}


def test_what_is_under_way_in_the_session_that_stands_is_not_let_go() -> None:
    quarantine = holding()
    quarantine.put(8, A, [9], 0)
    quarantine.hold(9)
    quarantine.let_go(A, 0, but={8})
    assert quarantine.expire(LET_GO_S) == {1, 2}
    assert 8 in quarantine


def test_the_chunks_of_a_pull_that_was_dropped_stay_out_of_use_a_little_longer() -> None:
    quarantine = holding()
    quarantine.ended(7, 10)
    quarantine.ended(7, 12)
    quarantine.ended(8, 12)  # nobody's
    assert quarantine.expire(10 + LET_GO_S - 0.01) == set()
    assert quarantine.expire(10 + LET_GO_S) == {1, 2}


def test_a_source_that_greets_anew_has_let_go_and_a_little_later_can_write_no_more() -> None:
    quarantine = holding()
    quarantine.let_go(B, 0)
    quarantine.let_go(A, 10)
    quarantine.let_go(A, 12)
    assert quarantine.expire(10 + LET_GO_S - 0.01) == set()
    assert quarantine.expire(10 + LET_GO_S) == {1, 2}


def test_nothing_is_kept_for_ever() -> None:
    quarantine = holding()
    assert quarantine.expire(LONGEST_S - 1) == set()
    assert quarantine.expire(LONGEST_S) == {1, 2}
    assert quarantine.peers() == set()


def test_a_pull_that_nobody_gave_up_has_nothing_to_give_back() -> None:
    assert Quarantine().release(1) == set()


def test_when_all_memory_was_taken_back_there_is_nothing_to_return() -> None:
    quarantine = holding()
    quarantine.clear()
    assert quarantine.release(7) == set()
    assert len(quarantine) == 0
    assert not quarantine.hold(3)


def gone(quarantine: Quarantine, peer: str, now: float) -> set[int]:
    quarantine.let_go(peer, now)
    return quarantine.expire(now + LET_GO_S)


@given(st.lists(st.tuples(st.sampled_from(["free", "done", "gone", "later"]), st.integers(0, 3)), max_size=60))
def test_each_chunk_comes_back_once(steps: list[tuple[str, int]]) -> None:
    """Pull n has the chunks 10n to 10n+2; what is freed is either free or held, and comes back once at most."""
    quarantine, now = Quarantine(), 0.0
    for pull in range(4):
        quarantine.put(pull, A if pull % 2 else B, range(10 * pull, 10 * pull + 3), now)
    free: set[int] = set()
    freed: set[int] = set()
    for step, pull in steps:
        if step == "free" and (chunk := 10 * pull + len(freed) % 3) not in freed:
            freed.add(chunk)
            if not quarantine.hold(chunk):
                free.add(chunk)
            continue
        now += 50 if step == "later" else 0
        back = {
            "free": set[int],
            "done": lambda pull=pull: quarantine.release(pull),
            "gone": lambda pull=pull, now=now: gone(quarantine, A if pull % 2 else B, now),
            "later": lambda now=now: quarantine.expire(now),
        }[step]()
        assert not back & free
        free |= back
    assert free | quarantine.expire(LONGEST_S) == freed
