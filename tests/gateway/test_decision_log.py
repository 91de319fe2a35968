"""The decision log, and the decision that comes back with an answer: why a request went where it did."""

import json
import os
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from config.load import ConfigError
from config.schema import Config
from gateway import decision_log, explain_header, log_file
from gateway.decision import Ask, Decision
from gateway.decision_log import DecisionLog, open_file
from scorers import Candidate
from tests.gateway.fleet import (
    AFFINITY,
    MODEL,
    PREFIX_ONLY,
    Answer,
    Front,
    completions,
    configuration,
    fleet,
    ids,
    text_body,
    until,
    warm,
)

Entries = list[MutableMapping[str, Any]]
SCORERS = {"prefix", "queue", "kv-utilization"}  # of AFFINITY


def lines(file: Path) -> list[dict[str, Any]]:
    """What has been written so far."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def written(file: Path, count: int) -> list[dict[str, Any]]:
    await until(lambda: len(lines(file)) >= count)
    found = lines(file)
    assert len(found) == count
    return found


@asynccontextmanager
async def logging_to(file: Path, count: int = 1, **sections: Any) -> AsyncIterator[tuple[Front, list[Any]]]:
    sections["decision_log"] = {"enabled": True, "path": str(file), **sections.get("decision_log", {})}
    async with fleet(count, **{"placement": AFFINITY, **sections}) as (front, pods):
        yield front, pods


# --- the log


async def test_a_decision_leaves_one_line_that_says_where_to_and_why(tmp_path: Path) -> None:
    file = tmp_path / "decisions.log"
    async with logging_to(file, 2) as (front, (one, _)):
        await warm(one, ids(160))
        await front.settled(one)
        await front.complete(ids(170), headers={"x-request-id": "r-1"})
        (line,) = await written(file, 1)
    assert line.pop("timestamp").endswith("Z")
    assert line.pop("scores").keys() == SCORERS
    assert line.pop("total") > 0
    assert line.pop("predicted_ttft_s") > 0
    assert line == {
        "event": "decision",
        "level": "info",
        "request_id": "r-1",
        "attempt": 1,
        "model": MODEL,
        "tokens_from": "given",
        "prompt_tokens": 170,
        "candidates": 2,
        "pod": one.url,
        "rank": 0,
        "gpu_tokens": 160,
        "cpu_tokens": 160,
        "any_tokens": 160,
        "filters_skipped": [],
        "predicted_cached": 160,
        "source": None,
        "source_rank": None,
        "source_tokens": 0,
        "source_reason": "self",
    }


async def test_each_attempt_is_a_decision_and_has_a_line(tmp_path: Path) -> None:
    file = tmp_path / "decisions.log"
    async with logging_to(file, 2) as (front, pods):
        for pod in pods:
            pod.fail_next(503, 1)
        answer = await front.post("/v1/completions", text_body([1]), {"x-request-id": "r#1"})
        assert answer.status == 503
        first, second = await written(file, 2)
    assert [(line["request_id"], line["attempt"]) for line in (first, second)] == [("r#1", 1), ("r#1", 2)]
    assert {first["pod"], second["pod"]} == {pod.url for pod in pods}
    assert second["candidates"] == 1


async def test_a_share_has_all_that_the_decision_was_made_of(tmp_path: Path) -> None:
    file = tmp_path / "decisions.log"
    async with logging_to(file, 2, decision_log={"full_sample": 1.0}) as (front, pods):
        await front.complete(ids(40))
        await front.post("/v1/completions", text_body(ids(40), n=2))
        start, first, second = await written(file, 3)
    assert (start["event"], start["version"], start["placement"]["preset"]) == ("decision log", 1, "affinity")
    assert start["pods"].keys() == {pod.url for pod in pods}
    table = first["table"]
    assert first["level"] == "debug"
    assert tuple(table["columns"]) == Candidate.__struct_fields__
    assert [row[0] for row in table["candidates"]] == [pod.url for pod in pods]
    assert (table["request"]["prompt_tokens"], table["request"]["costs"]) == (40, None)
    assert 0 <= table["coordinate"] < 1
    assert [each["table"]["number"] for each in (first, second)] == [0, 1]
    assert [each["table"]["costs"]["whole"] for each in (first, second)] == [True, False]
    assert [each["table"]["no_pull"] for each in (first, second)] == [None, "batch"]


async def captured(front: Front) -> tuple[Ask, Decision]:
    """One decision as the log is told of it; the log is not."""
    seen: list[tuple[Ask, Decision]] = []
    log = front.parts.decision_log
    made = log.made
    log.made = lambda ask, decision, _: seen.append((ask, decision))  # type: ignore[method-assign]
    await front.complete(ids(40))
    log.made = made  # type: ignore[method-assign]
    return seen[0]


async def test_shares_are_about_what_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "decisions.log"
    async with logging_to(file, decision_log={"sample": 0.6, "full_sample": 0.2}) as (front, _):
        ask, decision = await captured(front)
        for _ in range(2000):
            front.parts.decision_log.made(ask, decision, 1)
    found = [line for line in lines(file) if line["event"] == "decision"]
    assert 1100 < len(found) < 1300
    assert 300 < sum("table" in line for line in found) < 500


async def test_off_it_is_told_nothing_and_nobody_follows_the_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(DecisionLog, "made", told)
    file = str(tmp_path / "decisions.log")
    async with fleet() as (front, pods):
        for section in ({}, {"enabled": False, "path": file}, {"enabled": True, "path": file, "sample": 0.0}):
            await front.parts.reconfigure(configuration(pods, decision_log=section))
            await front.complete([1])
            assert front.parts.pods.costs._noted is None


async def test_what_operators_explain_is_no_decision(tmp_path: Path) -> None:
    file = tmp_path / "decisions.log"
    async with logging_to(file) as (front, _):
        await front.explain(ids(40))
        await front.complete([1], headers={"x-request-id": "only"})
    assert [line["request_id"] for line in lines(file)] == ["only"]


async def _dropped(front: Front, count: int) -> bool:
    return await front.metric("decision_log_dropped_lines_total") == count


async def test_lines_that_were_lost_are_counted_and_the_next_table_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "decisions.log"
    section = {"enabled": True, "full_sample": 1.0}
    async with logging_to(file, decision_log={**section, "path": "/dev/full"}) as (front, pods):
        for _ in range(3):
            await front.complete([1])
        await until(lambda: _dropped(front, 4))  # a start, too
        # All costs of a large fleet are megabytes, so they are not told for every line that a disk loses.
        await front.complete([1])
        await until(lambda: _dropped(front, 5))
        changed = configuration(pods, decision_log={**section, "path": str(file)})
        await front.parts.reconfigure(changed)
        await front.complete([1])
        start, line = await written(file, 2)
    assert start["event"] == "decision log"
    assert (line["table"]["number"], line["table"]["costs"]["whole"]) == (0, True)


async def test_a_disk_that_hangs_drops_bytes_beyond_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "_QUEUED_BYTES", 10_000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writing = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    for size in (4096, 1):
        with suppress(BlockingIOError):  # it is full
            while True:
                os.write(writing, bytes(size))
    os.close(writing)
    async with logging_to(pipe, decision_log={"full_sample": 1.0}) as (front, _):
        ask, decision = await captured(front)
        while not await _dropped(front, 1):
            front.parts.decision_log.made(ask, decision, 1)
        assert (await front.complete(ids(40))).status == 200
        assert await _dropped(front, 2)
        os.close(reading)  # the writer gets an error, and ends


async def test_a_model_with_a_name_that_is_no_text_costs_its_line(tmp_path: Path) -> None:
    file = tmp_path / "decisions.log"
    async with logging_to(file, decision_log={"full_sample": 1.0}) as (front, _):
        ask, decision = await captured(front)
        front.parts.decision_log.made(msgspec.structs.replace(ask, model="\udcff"), decision, 1)
        assert await _dropped(front, 1)
        front.parts.decision_log.made(ask, decision, 1)
        await written(file, 2)


@pytest.mark.parametrize("share", ["sample", "full_sample"])
async def test_a_decision_that_cannot_be_written_down_costs_its_line_and_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: Entries, share: str
) -> None:
    file, line = tmp_path / "decisions.log", decision_log.line

    def fails(*_: object) -> None:
        raise TypeError("no such type in JSON")

    async with logging_to(file, decision_log={share: 1.0}) as (front, _):
        monkeypatch.setattr(decision_log, "line", fails)
        for _ in range(2):
            assert (await front.complete([1])).status == 200
        assert await _dropped(front, 2)
        monkeypatch.setattr(decision_log, "line", line)
        assert (await front.complete([1])).status == 200
        await until(lambda: bool(lines(file)))
    (fault,) = (entry for entry in log if entry["log_level"] == "error")
    assert (fault["event"], fault["exc_info"]) == ("decision not logged", True)
    log.remove(fault)


async def test_which_attempt_it_is_is_told_of_requests_that_go_round_as_well(tmp_path: Path) -> None:
    """Of a stored response that nobody has yet heard of, pod after pod is asked."""
    file = tmp_path / "decisions.log"
    async with logging_to(file, 3) as (front, pods):
        answer = await front.get("/v1/responses/resp_nobody", **{"x-request-id": "r-1"})
        assert answer.status == 404
        found = await written(file, len(pods))
    assert [line["attempt"] for line in found] == [1, 2, 3]


def test_a_path_that_cannot_be_opened_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    config: Config = configuration(
        [{"url": "http://127.0.0.1:1"}], decision_log={"enabled": True, "path": str(tmp_path)}
    )
    with pytest.raises(ConfigError, match=r"^\$\.decision_log\.path: .*: Is a directory$"):
        open_file(config.decision_log)


async def test_a_reload_with_such_a_path_changes_nothing_and_leaves_nothing_open(tmp_path: Path) -> None:
    file = tmp_path / "decisions.log"
    async with logging_to(file, access_log={"path": str(tmp_path / "access.log")}) as (front, pods):
        bad = {"enabled": True, "path": str(tmp_path)}
        with pytest.raises(ConfigError):
            await front.parts.reconfigure(configuration(pods, decision_log=bad, access_log={"path": str(file)}))
        await front.complete([1])
        await written(file, 1)


# --- the header

EXPLAIN = {"x-gateway-explain": "1"}
ALLOWED = {"header": True}


def comments(body: bytes) -> list[bytes]:
    return [line for line in body.split(b"\n") if line.startswith(b":")]


async def asked(front: Front, **fields: Any) -> Answer:
    return await front.complete(ids(170), headers=EXPLAIN, **fields)


async def test_a_request_that_asks_gets_its_decision_with_its_answer() -> None:
    async with fleet(2, explain=ALLOWED, placement=PREFIX_ONLY) as (front, (one, two)):
        await warm(one, ids(160))
        await front.settled(one)
        answer = await asked(front)
        told = json.loads(answer.headers["x-gateway-explain"])
        assert (told["chosen"], told["source_reason"], told["tokens"]) == (one.url, "self", 170)
        assert [(each["pod"], each["any"]) for each in told["candidates"]] == [(one.url, 160), (two.url, 0)]
        assert told["candidates"][0]["scores"] == {"prefix": pytest.approx(160 / 170, abs=0.01)}
        assert told["left_out"] == 0
        (received,) = completions(one)[-1:]
        assert "x-gateway-explain" not in received.headers


@pytest.mark.parametrize("headers", [{}, {"x-gateway-explain": "0"}])
async def test_nobody_else_gets_it(headers: dict[str, str]) -> None:
    async with fleet(explain=ALLOWED) as (front, _):
        assert "x-gateway-explain" not in (await front.complete([1], headers=headers)).headers


async def test_where_it_is_not_allowed_nobody_gets_it_and_a_reload_may_allow_it() -> None:
    async with fleet() as (front, pods):
        assert "x-gateway-explain" not in (await front.complete([1], headers=EXPLAIN)).headers
        await front.parts.reconfigure(configuration(pods, explain=ALLOWED))
        assert "x-gateway-explain" in (await front.complete([1], headers=EXPLAIN)).headers


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> int:
    """So long is a header that has no room for three pods."""
    monkeypatch.setattr(explain_header, "_HEADER_BYTES", 500)
    return 500


async def test_what_is_too_long_for_a_header_is_a_comment_in_front_of_a_streams_events(short: int) -> None:
    async with fleet(3, explain=ALLOWED, placement=AFFINITY) as (front, pods):
        stream, plain = await asked(front, stream=True, max_tokens=3), await asked(front)
        silent = await front.complete(ids(170), stream=True, max_tokens=3)
    for answer in (stream, plain):
        header = answer.headers["x-gateway-explain"]
        told = json.loads(header)
        assert len(header) <= short
        assert len(told["candidates"]) + told["left_out"] == len(pods)
        assert told["left_out"] > 0
        assert told["candidates"][0]["pod"] == told["chosen"] == answer.pod
    (comment,) = comments(stream.body)
    whole = json.loads(comment.removeprefix(b": x-gateway-explain "))
    assert {each["pod"] for each in whole["candidates"]} == {pod.url for pod in pods}
    assert stream.body.startswith(comment + b"\n\n")
    assert comments(plain.body) == comments(silent.body) == []
    assert _shape(stream.body[len(comment) + 2 :]) == _shape(silent.body)
    assert plain.json["usage"]["prompt_tokens"] == 170


def _shape(stream: bytes) -> list[Any]:
    """Of each event the fields, as the pod makes them."""
    events = [event.removeprefix(b"data: ") for event in stream.split(b"\n\n") if event]
    return [event if event == b"[DONE]" else sorted(json.loads(event)) for event in events]


@pytest.mark.parametrize("most", [500, 2048, 65_536])
def test_however_many_candidates_there_are_it_stays_below_its_bound(most: int) -> None:
    candidates = [{"pod": f"http://10.0.{n}.1:8000", "scores": {"prefix": 1 / (n + 1)}} for n in range(2_000)]
    text = explain_header._within({"chosen": "http://10.0.0.1:8000", "candidates": candidates}, most)
    told = json.loads(text)
    assert most - 100 < len(text) <= most
    assert told["candidates"] == candidates[: len(told["candidates"])]
    assert told["left_out"] == 2_000 - len(told["candidates"])


async def test_a_decision_that_cannot_be_told_costs_the_header_and_no_request(
    monkeypatch: pytest.MonkeyPatch, log: Entries
) -> None:
    def fails(_: object) -> None:
        raise TypeError("no such type in JSON")

    async with fleet(explain=ALLOWED) as (front, _):
        monkeypatch.setattr(explain_header, "explanation", fails)
        for _ in range(2):
            answer = await asked(front)
            assert (answer.status, "x-gateway-explain" in answer.headers) == (200, False)
        assert await front.metric("explain_header_failures_total") == 2
    (fault,) = (entry for entry in log if entry["log_level"] == "error")
    assert (fault["event"], fault["exc_info"]) == ("decision not explained", True)
    log.remove(fault)


@pytest.mark.usefixtures("short")
async def test_through_the_other_way_in_as_well() -> None:
    async with fleet(3, explain=ALLOWED) as (front, _):
        headers = {**EXPLAIN, "connection": "close"}  # no plain request
        answer = await front.complete(ids(170), headers=headers, stream=True)
        assert json.loads(answer.headers["x-gateway-explain"])["left_out"] > 0
        assert len(comments(answer.body)) == 1


@pytest.mark.usefixtures("short")
async def test_a_comment_is_no_part_of_what_the_answer_reports(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    async with fleet(3, explain=ALLOWED, access_log={"path": str(file)}) as (front, _):
        await asked(front, stream=True, stream_options={"include_usage": True}, max_tokens=2)
        (line,) = await written(file, 1)
    assert (line["reported_cached"], line["completion_tokens"], line["broken"]) == (0, 2, None)
