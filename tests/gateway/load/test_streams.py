"""`make streams` in small: readers that leave, a pod that is killed, readers that are slow, all at once."""

from pathlib import Path

from tests.gateway.load.run import Plan, run

SMALL = Plan(streams=300, seconds=4.0, ramp_s=0.5, pace=0.2, leaving=0.05, slow=8, pods=3, idle_timeout=1.5, late_s=1.0)


def test_every_stream_is_complete_broken_off_with_a_word_or_aborted_and_memory_stays_flat(tmp_path: Path) -> None:
    report = run(SMALL, tmp_path)
    assert report.wrong == []
