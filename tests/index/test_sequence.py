import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.sequence import Action, Decision, Sequence, State

APPLY = Decision(Action.APPLY)
HOLD = Decision(Action.HOLD)
DUPLICATE = Decision(Action.DUPLICATE)
RESTART = Decision(Action.RESTART)


def gap(missing: int) -> Decision:
    return Decision(Action.GAP, missing)


def attached(last: int) -> Sequence:
    """A publisher whose batches 0 … last were replayed, and that then sent its first live frame."""
    sequence = Sequence(replay=True)
    sequence.replay_begin(0)
    for number in range(last):
        assert sequence.replayed(number) == APPLY
    sequence.replay_end(complete=True)
    assert sequence.live(last) == APPLY
    return sequence


def test_live_frames_are_held_until_the_first_replay_has_ended() -> None:
    sequence = Sequence(replay=True)
    assert sequence.missing() == 0
    assert not sequence.certain
    assert sequence.live(2) == HOLD
    sequence.replay_begin(0)
    assert [sequence.replayed(number) for number in range(3)] == [APPLY] * 3
    assert sequence.live(3) == HOLD
    sequence.replay_end(complete=True)
    assert [sequence.held(2), sequence.held(3), sequence.live(4)] == [DUPLICATE, APPLY, APPLY]
    assert sequence.certain
    assert sequence.missing() is None
    assert (sequence.gaps, sequence.duplicates, sequence.lost, sequence.last_applied) == (0, 1, 0, 4)


def test_an_empty_complete_replay_is_certain() -> None:
    sequence = Sequence(replay=True)
    sequence.replay_begin(0)
    sequence.replay_end(complete=True)
    assert sequence.certain
    assert (sequence.last_applied, sequence.last_live) == (None, None)
    assert sequence.live(0) == APPLY


def test_an_empty_replay_that_broke_off_is_not_certain() -> None:
    sequence = Sequence(replay=True)
    sequence.replay_begin(0)
    sequence.replay_end(complete=False)
    assert not sequence.certain
    assert sequence.live(1) == gap(0)


def test_a_gap_is_repaired_by_replay() -> None:
    sequence = attached(4)
    assert sequence.live(7) == gap(5)
    assert sequence.state is State.HOLDING
    assert sequence.missing() == 5
    assert sequence.live(8) == HOLD
    sequence.replay_begin(5)
    assert [sequence.replayed(number) for number in (5, 6, 7)] == [APPLY] * 3
    sequence.replay_end(complete=True)
    assert [sequence.held(7), sequence.held(8)] == [DUPLICATE, APPLY]
    assert sequence.certain
    assert (sequence.gaps, sequence.lost) == (1, 0)


def test_a_replay_may_start_before_what_is_missing() -> None:
    sequence = attached(4)
    assert sequence.live(6) == gap(5)
    sequence.replay_begin(3)
    assert [sequence.replayed(number) for number in (3, 4, 5)] == [DUPLICATE, DUPLICATE, APPLY]


def test_a_replay_that_starts_too_late_is_seen_and_given_up() -> None:
    sequence = Sequence(replay=True)
    sequence.replay_begin(0)
    assert sequence.replayed(40) == gap(0)
    sequence.lose_before(40)
    assert sequence.replayed(40) == APPLY
    sequence.replay_end(complete=True)
    assert not sequence.certain
    assert sequence.lost == 40
    assert sequence.live(41) == APPLY


def test_a_hole_inside_a_replay_can_be_asked_for_again() -> None:
    sequence = Sequence(replay=True)
    sequence.replay_begin(0)
    assert [sequence.replayed(0), sequence.replayed(2)] == [APPLY, gap(1)]
    sequence.replay_begin(1)
    assert [sequence.replayed(1), sequence.replayed(2)] == [APPLY, APPLY]
    sequence.replay_end(complete=True)
    assert sequence.certain
    assert (sequence.gaps, sequence.lost) == (1, 0)


def test_a_held_frame_behind_an_incomplete_replay_is_a_gap_again() -> None:
    sequence = attached(2)
    assert sequence.live(9) == gap(3)
    sequence.replay_begin(3)
    assert sequence.replayed(3) == APPLY
    sequence.replay_end(complete=False)
    assert sequence.held(9) == gap(4)
    assert sequence.held(10) == HOLD
    sequence.replay_begin(4)
    sequence.replay_end(complete=False)
    sequence.lose_before(9)
    assert sequence.held(9) == APPLY
    assert not sequence.certain
    assert sequence.lost == 5


def test_giving_up_what_is_applied_already_loses_nothing() -> None:
    sequence = attached(4)
    sequence.lose_before(3)
    assert (sequence.lost, sequence.certain, sequence.last_applied) == (0, True, 4)


def test_an_answer_to_a_replay_that_is_over_is_dropped() -> None:
    sequence = attached(4)
    assert [sequence.replayed(number) for number in (3, 5, 9)] == [DUPLICATE] * 3
    assert sequence.live(5) == APPLY


def test_a_live_frame_that_a_replay_overtook_is_a_duplicate() -> None:
    sequence = attached(4)
    assert sequence.live(6) == gap(5)
    sequence.replay_begin(5)
    assert [sequence.replayed(number) for number in range(5, 10)] == [APPLY] * 5
    sequence.replay_end(complete=True)
    assert [sequence.live(number) for number in (7, 8, 9, 10)] == [DUPLICATE, DUPLICATE, DUPLICATE, APPLY]


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_live_number_that_does_not_rise_is_a_new_engine(number: int, *, replay: bool) -> None:
    sequence = attached(4) if replay else followed(4)
    assert sequence.live(number) == RESTART
    assert (sequence.restarts, sequence.last_applied, sequence.last_live, sequence.certain) == (1, None, None, False)
    if number == 0:
        assert sequence.live(number) == APPLY
        assert sequence.certain
    else:
        assert sequence.live(number) == (gap(0) if replay else APPLY)
        assert not sequence.certain


def test_a_restart_is_seen_while_frames_are_held() -> None:
    sequence = attached(4)
    assert sequence.live(9) == gap(5)
    sequence.replay_begin(5)
    assert sequence.live(0) == RESTART
    assert sequence.missing() is None
    assert sequence.live(0) == APPLY


def test_a_first_live_frame_behind_a_finished_replay_is_taken_for_a_new_engine() -> None:
    sequence = Sequence(replay=True)
    sequence.replay_begin(0)
    for number in range(10):
        sequence.replayed(number)
    sequence.replay_end(complete=True)
    assert sequence.live(3) == RESTART
    assert sequence.live(3) == gap(0)


def test_a_restart_learnt_elsewhere_starts_anew() -> None:
    sequence = attached(4)
    sequence.restart()
    sequence.replay_begin(0)
    assert sequence.replayed(0) == APPLY


def test_a_replay_from_after_what_is_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="next batch 5"):
        attached(4).replay_begin(6)


def followed(last: int) -> Sequence:
    sequence = Sequence(replay=False)
    for number in range(last + 1):
        assert sequence.live(number) == APPLY
    return sequence


def test_without_replay_frames_from_the_first_on_are_certain() -> None:
    assert not Sequence(replay=False).certain
    assert followed(3).certain


def test_without_replay_a_gap_is_applied_and_counted() -> None:
    sequence = followed(3)
    assert sequence.live(6) == APPLY
    assert not sequence.certain
    assert (sequence.gaps, sequence.lost, sequence.missing()) == (1, 2, None)
    assert sequence.live(0) == RESTART
    assert sequence.live(0) == APPLY
    assert sequence.certain


def test_without_replay_a_late_attachment_is_uncertain() -> None:
    sequence = Sequence(replay=False)
    assert sequence.live(7) == APPLY
    assert not sequence.certain
    assert (sequence.gaps, sequence.lost) == (1, 7)


def test_without_replay_none_can_begin() -> None:
    with pytest.raises(ValueError, match="no replay"):
        Sequence(replay=False).replay_begin(0)


class Caller:
    """Drives a sequence as its module says, asking once per gap and then giving up."""

    def __init__(self, *, replay: bool, buffered: list[int]) -> None:
        self.sequence = Sequence(replay=replay)
        self.applied: list[int] = []
        self.kept: list[int] = []
        self.buffered = buffered

    def receive(self, number: int) -> None:
        self._obey(self.sequence.live(number), number)
        while self.sequence.missing() is not None:
            self._repair(number)

    def _repair(self, published: int) -> None:
        start = self.sequence.missing()
        assert start is not None
        self.sequence.replay_begin(start)
        for number in [number for number in self.buffered if start <= number <= published]:
            decision = self.sequence.replayed(number)
            if decision.action is Action.GAP:
                self.sequence.lose_before(number)
                decision = self.sequence.replayed(number)
            self._obey(decision, number)
        self.sequence.replay_end(complete=True)
        kept, self.kept = self.kept, []
        self.sequence.lose_before(kept[0])
        for number in kept:
            self._obey(self.sequence.held(number), number)

    def _obey(self, decision: Decision, number: int) -> None:
        assert decision != RESTART
        if decision == APPLY:
            self.applied.append(number)
        elif decision != DUPLICATE:
            self.kept.append(number)


numbers = st.sets(st.integers(0, 29)).map(sorted)


@settings(deadline=None)
@given(live=numbers, buffered=numbers, replay=st.booleans())
def test_batches_are_applied_once_and_in_order(*, live: list[int], buffered: list[int], replay: bool) -> None:
    caller = Caller(replay=replay, buffered=buffered)
    for number in live:
        caller.receive(number)
    applied = caller.applied
    assert applied == sorted(set(applied))
    assert set(live) <= set(applied)
    assert caller.sequence.lost == (applied[-1] + 1 - len(applied) if applied else 0)
    if caller.sequence.certain:
        assert applied == list(range(len(applied)))


def test_a_restored_record_goes_on_behind_its_position() -> None:
    sequence = Sequence(replay=True, position=41)
    assert (sequence.missing(), sequence.last_applied, sequence.certain) == (42, 41, False)
    sequence.replay_begin(42)
    assert sequence.replayed(41) == DUPLICATE
    assert sequence.replayed(42) == APPLY
    sequence.replay_end(complete=True)
    assert (sequence.last_applied, sequence.certain) == (42, True)
    assert sequence.live(43) == APPLY


def test_without_replay_a_restored_record_is_certain_when_the_very_next_batch_comes() -> None:
    sequence = Sequence(replay=False, position=41)
    assert sequence.live(42) == APPLY
    assert sequence.certain
    behind = Sequence(replay=False, position=41)
    assert behind.live(44) == APPLY
    assert (behind.certain, behind.lost, behind.gaps) == (False, 2, 1)
