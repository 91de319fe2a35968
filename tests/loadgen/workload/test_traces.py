import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from loadgen.workload import Piece
from loadgen.workload.seeds import answer_piece
from loadgen.workload.traces import TRACES, aiperf, azure, mooncake, trace
from tests.loadgen.workload.prefixes import prefixes

MOONCAKE = [
    {"timestamp": 3000, "input_length": 1100, "output_length": 20, "hash_ids": [0, 1, 2]},
    {"timestamp": 3000, "input_length": 1024, "output_length": 0, "hash_ids": [0, 1]},
    {"timestamp": 6000, "input_length": 1300, "output_length": 9, "hash_ids": [0, 3, 4]},
    {"timestamp": 9000, "input_length": 1, "output_length": 9, "hash_ids": [5]},
]
AIPERF = [
    {"session_id": "a", "input_length": 600, "output_length": 10, "hash_ids": [0, 1], "timestamp": 0.0, "group_id": 4},
    {"session_id": "a", "input_length": 30, "output_length": 40, "hash_ids": [7], "delay": 1500.0},
    {"session_id": "b", "input_length": 700, "output_length": 20, "hash_ids": [0, 2], "timestamp": 2000.0},
    {"session_id": "a", "input_length": 50, "output_length": 60, "hash_ids": [8], "timestamp": 9000.0},
    {"session_id": "b", "input_length": 90, "output_length": 20, "hash_ids": [9], "delay": 500},
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8

2023-11-16 18:17:05.0000000,110,0
"""


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[Iterable[Any]], Path]:
    def write(rows: Iterable[Any]) -> Path:
        path = tmp_path / "trace.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return write


Lines = Callable[[Iterable[Any]], Path]


def test_a_hash_id_is_a_block_and_the_last_one_is_cut(lines: Lines) -> None:
    made = list(mooncake(lines(MOONCAKE)))
    assert [[piece.tokens for piece in request.prompt] for request in made] == [
        [512, 512, 76],
        [512, 512],
        [512, 512, 276],
        [1],
    ]
    assert [request.output_tokens for request in made] == [20, 1, 9, 9]
    assert [request.at for request in made] == [0.0, 0.0, 3.0, 6.0]
    assert len({request.session for request in made}) == 4


def test_prompts_agree_as_far_as_their_hash_ids(lines: Lines) -> None:
    one, other, third, last = (prefixes(request.prompt, 64) for request in mooncake(lines(MOONCAKE)))
    assert one[:16] == other
    assert one[:8] == third[:8]
    assert not set(one[8:]) & set(third[8:])
    assert last == []


def test_another_seed_is_other_texts_of_the_same_shape(lines: Lines) -> None:
    for read, rows in ((mooncake, MOONCAKE), (aiperf, AIPERF)):
        path = lines(rows)
        one, other = list(read(path)), list(read(path, seed=1))
        assert one == list(read(path))
        assert [request.prompt_tokens for request in one] == [request.prompt_tokens for request in other]
        assert all(first.prompt[0].seed != second.prompt[0].seed for first, second in zip(one, other, strict=True))


def test_blocks_may_have_another_size(lines: Lines) -> None:
    row = {"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [1, 2]}
    (made,) = mooncake(lines([row]), block_tokens=16)
    assert [piece.tokens for piece in made.prompt] == [16, 4]


def test_a_turn_says_again_what_its_session_said(lines: Lines) -> None:
    one, two, other, three, last = aiperf(lines(AIPERF))
    assert two.prompt[:3] == (*one.prompt, answer_piece(0, 10))
    assert three.prompt[:5] == (*two.prompt, answer_piece(1, 40))
    assert last.prompt[:3] == (*other.prompt, answer_piece(2, 20))
    assert [request.prompt_tokens for request in (one, two, other, three, last)] == [600, 640, 700, 730, 810]
    assert one.prompt[0] == other.prompt[0]
    assert one.prompt[1].seed != other.prompt[1].seed


def test_turns_come_after_an_answer_and_a_delay_or_at_their_time(lines: Lines) -> None:
    made = list(aiperf(lines(AIPERF)))
    assert [request.after for request in made] == [None, 0, None, 1, 2]
    assert [request.pause for request in made] == [0.0, 1.5, 0.0, 0.0, 0.5]
    assert [request.at for request in made] == [0.0, 0.0, 2.0, 9.0, 0.0]
    assert [request.session for request in made] == ["a", "a", "b", "a", "b"]
    assert [request.phase for request in made] == ["first", "next", "first", "next", "next"]


def test_an_azure_trace_has_times_and_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    made = list(azure(path))
    assert [request.at for request in made] == pytest.approx([0.0, 0.052, 1.02004])
    assert [(request.prompt_tokens, request.output_tokens) for request in made] == [(4808, 10), (3180, 8), (110, 1)]
    assert len({request.prompt[0].seed for request in made}) == 3
    assert next(azure(path, seed=1)).prompt != made[0].prompt


def test_an_azure_time_may_name_its_zone(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = ("ContextTokens,GeneratedTokens,TIMESTAMP", "1,2,2024-05-10 00:00:00+00:00", "1,2,2024-05-10 02:00:01+02:00")
    path.write_text("\ufeff" + "\r\n".join(rows))
    assert [request.at for request in azure(path)] == [0.0, 1.0]


def test_speed_limit_and_duration(lines: Lines) -> None:
    path = lines(MOONCAKE)
    assert [request.at for request in mooncake(path, speed=3.0)] == [0.0, 0.0, 1.0, 2.0]
    assert len(list(mooncake(path, limit=3))) == 3
    assert len(list(mooncake(path, duration_s=6.0))) == 3
    assert len(list(mooncake(path, duration_s=6.0, speed=3.0))) == 4
    assert [request.pause for request in aiperf(lines(AIPERF), speed=0.5)] == [0.0, 3.0, 0.0, 0.0, 1.0]


def test_a_duration_leaves_out_late_turns(lines: Lines) -> None:
    assert [request.number for request in aiperf(lines(AIPERF), duration_s=5.0)] == [0, 1, 2, 4]


@pytest.mark.parametrize("option", [{"speed": 0.0}, {"limit": 0}, {"duration_s": -1.0}])
def test_options_are_checked_at_once(option: dict[str, Any]) -> None:
    for read in TRACES.values():
        with pytest.raises(ValueError, match=f"{next(iter(option))} must be"):
            read(Path("nowhere"), **option)


@pytest.mark.parametrize("read", [mooncake, aiperf])
def test_a_block_has_at_least_a_token(read: Any) -> None:
    with pytest.raises(ValueError, match="block_tokens must be at least 1, not 0"):
        read(Path("nowhere"), block_tokens=0)


def test_a_trace_is_read_by_its_form_and_parameters(lines: Lines) -> None:
    path = lines(MOONCAKE)
    parameters = {"path": str(path), "speed": 2, "limit": 3, "seed": 5}
    assert list(trace("mooncake", parameters)) == list(mooncake(path, speed=2.0, limit=3, seed=5))
    assert list(trace("aiperf", {"path": str(lines(AIPERF))})) == list(aiperf(lines(AIPERF)))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("nothing", {}, "no trace format 'nothing'; there are mooncake, aiperf, azure"),
        ("aiperf", {}, "trace aiperf: .*missing required field `path`"),
        ("azure", {"path": "x", "block_tokens": 512}, "trace azure: .*unknown field `block_tokens`"),
        ("mooncake", {"path": "x", "speed": "fast"}, r"trace mooncake: .*`\$.speed`"),
        ("mooncake", {"path": "x", "speed": -1}, "speed must be above 0 and finite, not -1"),
    ],
)
def test_parameters_of_a_trace_are_checked(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trace(name, parameters)


def test_a_file_is_opened_when_it_is_read() -> None:
    requests = mooncake(Path("nowhere"))
    with pytest.raises(FileNotFoundError):
        next(requests)


def test_no_more_is_read_than_is_asked_for(lines: Lines) -> None:
    requests = mooncake(lines([*MOONCAKE, "broken"]))
    for _ in MOONCAKE:
        next(requests)
    with pytest.raises(ValueError, match=r"trace\.jsonl:5: JSON is malformed"):
        next(requests)


GOOD = {"session_id": "a", "timestamp": 5, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({**GOOD, "input_length": 0}, "Expected `int` >= 1"),
        ({**GOOD, "output_length": "9"}, "Expected `int`, got `str`"),
        ({**GOOD, "hash_ids": [1]}, "1 hash ids do not fit 600 tokens in blocks of 512"),
        ({**GOOD, "hash_ids": [1, -2]}, "Expected `int` >= 0"),
        ({**GOOD, "timestamp": -1}, "Expected `float` >= 0"),
        ({**GOOD, "session_id": "b", "timestamp": 4}, "it is due before a line above it"),
        ({"timestamp": 6, "session_id": "c"}, "missing required field `input_length`"),
        ("[]", "Expected `object`, got `array`"),
    ],
)
def test_a_broken_line_is_named(lines: Lines, broken: Any, message: str) -> None:
    for read in (mooncake, aiperf):
        requests = read(lines([GOOD, " ", broken]))
        next(requests)
        with pytest.raises(ValueError, match=rf"trace\.jsonl:3: .*{message}"):
            next(requests)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("2023-11-16 18:17:03,many,1", "ContextTokens"),
        ("2023-11-16 18:17:03,5", "GeneratedTokens"),
        ("yesterday,5,5", "TIMESTAMP"),
        ("2023-11-16 18:17:01,5,5", "it is due before a line above it"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, broken: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:02,5,5\n{broken}\n")
    requests = azure(path)
    next(requests)
    with pytest.raises(ValueError, match=rf"trace\.csv:3: .*{message}"):
        next(requests)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,Context\n2023-11-16 18:17:02,5\n")
    with pytest.raises(ValueError, match=r"trace\.csv:2: .*missing required field `ContextTokens`"):
        next(azure(path))


def test_texts_of_traces_are_no_answers(lines: Lines) -> None:
    pieces: set[Piece] = {piece for request in mooncake(lines(MOONCAKE)) for piece in request.prompt}
    assert not {piece.seed for piece in pieces} & {answer_piece(number, 1).seed for number in range(10)}
