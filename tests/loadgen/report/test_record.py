from pathlib import Path

import msgspec
import pytest

from loadgen.report.record import line, read
from tests.loadgen.report.records import failure, record


def test_latency_begins_when_a_request_was_due_and_is_told_from_its_sending_too() -> None:
    made = record(3)
    assert made.schedule_delay_ms == pytest.approx(1.0)
    assert made.e2el_ms == pytest.approx(150.0)
    assert made.e2el_sent_ms == pytest.approx(149.0)
    assert made.ttft_sent_ms == pytest.approx(100.0)
    assert made.tpot_ms == 10.0


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    assert record(output_tokens=1, itl_ms=[]).tpot_ms is None


def test_an_event_may_bring_several_tokens() -> None:
    assert record(output_tokens=9).tpot_ms == 5.0


def test_what_the_load_cut_off_did_not_fail() -> None:
    assert (record().completed, record().failed) == (True, False)
    assert (failure().completed, failure().failed) == (False, True)
    assert (failure(error="unfinished").completed, failure(error="unfinished").failed) == (False, False)


def test_a_line_has_all_of_it_and_can_be_read_back(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_bytes(line(record(1, itl_ms=[1.23456])) + line(failure(2)))
    first, second = read(file)
    assert (first.number, first.itl_ms, second.error) == (1, [1.235], "timeout")
    told = msgspec.json.decode(line(record(1)))
    assert (told["schedule_delay_ms"], told["ttft_sent_ms"], told["e2el_ms"], told["tpot_ms"]) == (
        1.0,
        100.0,
        150.0,
        10.0,
    )


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_bytes(line(record()) + b"{}\n")
    with pytest.raises(ValueError, match="line 2"):
        list(read(file))
