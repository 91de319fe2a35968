"""A gateway's decision log replayed: by its own rules nothing changes, by others it is told what does."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import yaml

from gateway import decision_log
from loadgen.cli import main
from loadgen.sim.logged import Reader
from loadgen.sim.redecide import redecided
from loadgen.sim.replay_command import Replay
from tests.gateway.fleet import (
    SMALL,
    Front,
    configuration,
    fleet,
    ids,
    serving,
    simulated,
    spec,
    text_body,
    until,
    warm,
)

# Computing is dear beside pulling, so that pulls pay; all in all quick.
QUICK = msgspec.structs.replace(
    SMALL, speed=5, prefill_us_per_token=200.0, pull_fixed_ms=5.0, pull_us_per_token=2.0, gpu_blocks=2048
)
AS_SHIPPED = {"min_cached_token_delta": "auto", "source": {"type": "expected-ttft"}}
REQUESTS = 1_000
AT_ONCE = 24


async def load(front: Front, requests: int = REQUESTS) -> None:
    """Streams over shared prefixes, some of which come at the same moment."""
    rng, gate = Random(1), asyncio.Semaphore(AT_ONCE)

    async def ask(number: int) -> None:
        prefix = rng.randrange(40)
        tokens = [*ids(640 + 16 * prefix, salt=prefix), *range(number, number + rng.randrange(1, 60))]
        body = text_body(tokens, stream=True, max_tokens=rng.randrange(1, 4))
        async with gate:
            answer = await front.post("/v1/completions", body, {"x-request-id": f"r-{number}"})
            assert answer.status == 200, answer.body

    await asyncio.gather(*(ask(number) for number in range(requests)))


async def logged(file: Path, requests: int, count: int = 3, **sections: Any) -> list[dict[str, Any]]:
    """What a fleet's gateway wrote into `file` under load."""
    told = {"path": str(file), "enabled": True, "full_sample": 1.0}
    async with fleet(count, pod={"profile": QUICK}, decision_log=told, access_log={"enabled": False}, **sections) as (
        front,
        _,
    ):
        await load(front, requests)
    return lines(file)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def replayed(file: Path, *options: str) -> dict[str, Any]:
    figures = file.with_suffix(".json")
    assert main(["replay-decisions", str(file), *options, "--json", str(figures)]) == 0
    row: dict[str, Any] = json.loads(figures.read_text())
    return row


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run of 1,000 requests in which pulls happened and costs were learned."""
    file = tmp_path_factory.mktemp("log") / "decisions.log"
    asyncio.run(logged(file, REQUESTS, p2p=AS_SHIPPED, placement={"preset": "load"}))
    return file


def test_all_decisions_of_a_run_with_pulls_and_learning_replay_to_the_last_bit(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = replayed(log)
    assert (row["decisions"], row["replayed"], row["same"], row["changes"]) == (REQUESTS, REQUESTS, REQUESTS, [])
    assert row["as_logged"] == row["as_replayed"]
    assert f"as logged, to the last bit: {REQUESTS} of {REQUESTS}" in capsys.readouterr().out
    decisions = [line for line in lines(log) if line["event"] == "decision"]
    learned = [line for line in decisions[1:] if line["table"]["costs"]["ranks"] or line["table"]["costs"]["links"]]
    assert len(learned) > REQUESTS / 10
    assert row["as_logged"]["pulls"] == sum(line["source"] is not None for line in decisions) > 0
    assert row["as_logged"]["pods"] == Counter(line["pod"] for line in decisions)
    assert len(row["as_logged"]["pods"]) == 3


def test_another_preset_is_told_apart(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = replayed(log, "--preset", "expected-ttft", "--show", "2")
    assert row["replayed"] == REQUESTS
    assert row["same"] + row["other_pod"] + row["other_source"] <= REQUESTS
    assert row["other_pod"] > REQUESTS / 4
    assert row["as_replayed"]["pods"] != row["as_logged"]["pods"]
    assert row["as_replayed"]["predicted_ttft"]["mean_ms"] < row["as_logged"]["predicted_ttft"]["mean_ms"]
    assert len(row["changes"]) == REQUESTS - row["same"]
    told = capsys.readouterr().out
    assert "preset expected-ttft" in told
    assert f"on another pod: {row['other_pod']} of {REQUESTS}" in told
    assert told.count("→") == 2


def test_a_preset_goes_with_the_filters_and_pulls_that_were_in_force_at_each_moment(log: Path, tmp_path: Path) -> None:
    """The same log twice, the second time with pulls switched off."""
    written = lines(log)
    start = written[0]
    assert sum(line["event"] == "decision log" for line in written) == 1
    without = {**start, "p2p": {**start["p2p"], "enabled": False}}
    file = tmp_path / "twice.log"
    file.write_text("".join(json.dumps(line) + "\n" for line in (*written, without, *written[1:])))
    row = replayed(file, "--preset", "load")
    once = replayed(log, "--preset", "load")["as_replayed"]
    assert row["as_replayed"]["source_reasons"]["disabled"] == REQUESTS
    assert row["as_replayed"]["pulls"] == once["pulls"] > 0


def test_figures_that_cannot_be_written_are_told_in_one_line(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay-decisions", str(log), "--json", str(log.parent)]) == 3
    (told,) = capsys.readouterr().err.splitlines()
    assert str(log.parent) in told


def test_the_rules_of_a_configuration_file_may_turn_pulls_off(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"pods": [{"url": "http://10.0.0.1:8000"}], "p2p": {"enabled": False}}))
    row = replayed(log, "--config", str(file))
    assert row["as_replayed"]["pulls"] == 0
    assert row["as_replayed"]["source_reasons"] == {"disabled": REQUESTS}
    assert row["as_logged"]["pulls"] > 0


def test_a_column_that_nothing_read_at_the_time_is_named(log: Path, tmp_path: Path) -> None:
    scorers = [
        {"type": "session-affinity"},
        {"type": "latency"},
        {"type": "label-affinity", "key": "k", "values": ["v"]},
    ]
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump({"pods": [{"url": "http://10.0.0.1:8000"}], "placement": {"scorers": scorers}}))
    assert replayed(log, "--config", str(file))["columns_not_logged"] == ["session"]


def test_a_log_that_is_not_as_it_was_written_does_not_replay(log: Path, tmp_path: Path) -> None:
    changed = lines(log)
    number = next(n for n, line in enumerate(changed) if line["event"] == "decision" and line["source"] is not None)
    other = next(row[0] for row in changed[number]["table"]["candidates"] if row[0] != changed[number]["pod"])
    changed[number]["pod"] = other
    file = tmp_path / "changed.log"
    file.write_text("".join(json.dumps(line) + "\n" for line in changed))
    assert main(["replay-decisions", str(file)]) == 1


def test_what_follows_a_lost_line_is_left_out_until_there_is_a_start(log: Path) -> None:
    written = log.read_bytes().splitlines(keepends=True)
    start, first, second, *rest = written[:20]
    cut = [start, first, *rest, b"not json\n", start, first, second, b'{"event": "request"}\n']
    replay = Replay(None)
    replay.run(cut, keep=0)
    assert (replay.count, replay.same) == (3, 3)
    assert (replay.reader.without_start, replay.reader.unreadable) == (len(rest), 1)


def test_filters_columns_and_other_sources_replay_as_well(tmp_path: Path) -> None:
    file = tmp_path / "decisions.log"
    names = ("prefix", "queue", "kv-utilization", "token-load", "no-hit-lru", "session-affinity", "latency")
    placement = {
        "scorers": [{"type": name} for name in names],
        "picker": {"type": "weighted-random"},
        "filters": [{"type": "role", "roles": ["both"]}, {"type": "prefix-affinity"}],
    }
    asyncio.run(logged(file, 120, placement=placement))
    row = replayed(file)
    assert (row["replayed"], row["same"]) == (120, 120)
    assert replayed(file, "--preset", "token-load")["replayed"] == 120


async def test_files_that_are_rotated_and_rules_that_change_replay_each_by_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "_MOST_COSTS", 1)  # so that the first tables of a file do not tell all of them
    file, old = tmp_path / "decisions.log", tmp_path / "decisions.log.1"
    section = {"path": str(file), "enabled": True, "full_sample": 1.0}
    async with fleet(2, pod={"profile": QUICK}, decision_log=section) as (front, pods):
        await load(front, 30)
        await until(lambda: len(lines(file)) == 31)
        file.rename(old)
        front.parts.decision_log.reopen()
        await load(front, 30)
        await front.parts.reconfigure(configuration(pods, decision_log=section, placement={"preset": "load"}))
        await load(front, 30)
    for files, count in (([old, file], 90), ([file], 60)):
        replay = Replay(None)
        replay.run(_all(files), keep=0)
        begun = replay.reader.beginning
        assert 0 < begun < count / 2
        assert replay.count == replay.same == count - begun
    presets = [logged.rules.placement.preset for logged in Reader().read(_all([file]))]
    assert [*dict.fromkeys(presets)] == [None, "load"]


async def test_pulls_that_must_not_be_named_are_in_the_log_and_replay(tmp_path: Path) -> None:
    file = tmp_path / "decisions.log"
    only = {"filters": [{"type": "label", "key": "computes", "values": ["yes"]}]}
    section = {"path": str(file), "enabled": True, "full_sample": 1.0}
    async with simulated(2, profile=QUICK) as (consumer, holder):
        pods = [spec(consumer, labels={"computes": "yes"}), spec(holder)]
        async with serving(pods, placement=only, decision_log=section) as front:
            pairs, pair = front.parts.pods.pairs, ((holder.url, 0), (consumer.url, 0))
            for number, happens in enumerate((None, "fails", None, "works")):
                if happens == "fails":
                    pairs.failed(*pair, "late", front.parts.pods.clock())
                elif happens == "works":
                    pairs.succeeded(*pair)
                await warm(holder, ids(640, salt=number))
                await front.settled(holder)
                await front.complete(ids(640, salt=number))
    written = [line for line in lines(file) if line["event"] == "decision"]
    assert [line["source_reason"] for line in written] == ["named", "breaker", "breaker", "named"]
    assert ["barred" in line["table"] for line in written] == [True, True, False, True]
    row = replayed(file)
    assert (row["replayed"], row["same"]) == (4, 4)


def _all(files: Iterable[Path]) -> Iterable[bytes]:
    return (line for file in files for line in file.read_bytes().splitlines())


def test_replaying_by_the_rules_in_force_is_the_same_as_replaying_by_equal_ones(log: Path) -> None:
    for number, logged in enumerate(Reader().read(_all([log]))):
        equal = msgspec.structs.replace(logged.rules)
        assert redecided(logged, equal) == redecided(logged, logged.rules)
        if number == 50:
            break


_START = '{"event":"decision log","timestamp":"2026-01-01T00:00:00Z","version":%s,"placement":%s,"p2p":{},"pods":{}}\n'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "no decisions"),
        ('{"event": "request"}\n', "no decisions"),
        (
            _START % ("7", "{}"),
            "version 7",
        ),
        (
            _START % ("1", '{"scorers":[{"type":"module:Class","path":"nobody.has:This"}]}'),
            "nobody.has:This",
        ),
    ],
)
def test_what_cannot_be_replayed_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, reason: str
) -> None:
    file = tmp_path / "decisions.log"
    file.write_text(content)
    assert main(["replay-decisions", str(file)]) == 3
    (told,) = capsys.readouterr().err.splitlines()
    assert reason in told


def test_a_file_that_is_not_there_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay-decisions", str(tmp_path / "none.log"), "--preset", "load"]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
