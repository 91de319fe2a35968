"""The access log: a line per request, and never in a request's way."""

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from errno import ENOSPC
from pathlib import Path
from typing import Any

import msgspec
import pytest

from config.load import ConfigError
from config.schema import AccessLog as Settings
from gateway import log_file
from gateway.access_log import AccessLog, Line, open_file
from tests.gateway.fleet import MODEL, Front, completions, connection, fleet, ids, posted, text_body, until
from tests.gateway.keyring import ALICE, ENTRIES, bearer, write


def lines(file: Path) -> list[dict[str, Any]]:
    """What has been written so far, each line by itself an object."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def the_line(file: Path) -> dict[str, Any]:
    await until(lambda: bool(lines(file)))
    (line,) = lines(file)
    return line


@asynccontextmanager
async def logging_to(file: Path, count: int = 1, **sections: Any) -> AsyncIterator[tuple[Front, list[Any]]]:
    sections["access_log"] = {"path": str(file), **sections.get("access_log", {})}
    async with fleet(count, **sections) as (front, pods):
        yield front, pods


async def test_a_request_leaves_one_line_that_tells_its_story(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    async with logging_to(file) as (front, (pod,)):
        answer = await front.complete(ids(100), headers={"x-request-id": "r-1"}, max_tokens=3)
        line = await the_line(file)
    assert 0 < line.pop("ttft_s") <= line.pop("duration_s")
    assert line.pop("timestamp").endswith("Z")
    assert line.pop("bytes") > len(answer.body)
    assert line == {
        "event": "request",
        "level": "info",
        "request_id": "r-1",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "key": None,
        "model": MODEL,
        "pod": pod.url.removeprefix("http://"),
        "source": None,
        "source_reason": "no-holder",
        "attempts": 1,
        "tokens_from": "given",
        "tokens_reason": None,
        "prompt_tokens": 100,
        "predicted_cached": 0,
        "reported_cached": 0,
        "completion_tokens": 3,
        "broken": None,
        "client": None,
        "queued_s": None,
        "late_source": None,
        "predicted_ttft_s": None,
    }


async def test_it_names_the_key_the_retries_and_where_asked_for_the_client(tmp_path: Path) -> None:
    file, keys = tmp_path / "access.log", tmp_path / "keys.yaml"
    write(keys, ENTRIES)
    sections: dict[str, Any] = {
        "auth": {"keys": str(keys)},
        "access_log": {"path": str(file), "client_address": True},
        "admin": {"port": 0},
    }
    async with fleet(2, **sections) as (front, pods):
        for pod in pods:
            pod.fail_next(503, 1)
        answer = await front.post("/v1/completions", text_body([1]), bearer(ALICE))
        assert answer.status == 503
        line = await the_line(file)
        assert (line["key"], line["attempts"], line["client"]) == ("alice", 2, "127.0.0.1")
        assert ALICE not in file.read_text()


async def test_a_client_that_left_and_a_broken_answer_are_on_record(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    async with logging_to(file) as (front, (pod,)):
        pod.stall()
        async with connection(front) as (_, writer):
            writer.write(posted(text_body([1])))
            await until(lambda: bool(completions(pod)))
        assert (await the_line(file))["status"] == 499


async def test_a_share_of_the_requests_gets_a_line_and_every_failed_one(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    async with logging_to(file, access_log={"sample": 0.0}) as (front, _):
        await front.complete([1])
        await front.post("/v1/completions", b"{")
        assert (await the_line(file))["status"] == 400


async def test_without_always_errors_failed_ones_are_sampled_like_all(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    async with logging_to(file, access_log={"sample": 0.0, "always_errors": False}) as (front, _):
        await front.post("/v1/completions", b"{")
        front.parts.access_log.write(a_line("last"))
        assert (await the_line(file))["request_id"] == "last"


@pytest.mark.parametrize("sample", [0.25, 0.75])
def test_the_share_is_about_what_was_asked_for(sample: float) -> None:
    log = AccessLog(lambda _: None)
    log.reconfigure(Settings(sample=sample), None)
    taken = sum(log.wants(failed=False) for _ in range(4000)) / 4000
    assert sample - 0.05 < taken < sample + 0.05
    assert all(log.wants(failed=True) for _ in range(100))


async def test_switched_off_nothing_is_written(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    async with logging_to(file, access_log={"enabled": False}) as (front, _):
        await front.complete([1])
        front.parts.access_log.write(a_line("ignored"))
    assert not file.exists()


async def test_lines_that_were_taken_are_written_when_the_gateway_ends(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    async with logging_to(file) as (front, _):
        await asyncio.gather(*(front.complete([n + 1]) for n in range(20)))
    assert len(lines(file)) == 20


# --- the writer


def a_line(request_id: str) -> Line:
    return msgspec.convert(
        {
            "request_id": request_id,
            **dict.fromkeys(("method", "path", "model", "pod", "source_reason", "tokens_from"), ""),
            **dict.fromkeys(("status", "attempts", "duration_s", "bytes"), 0),
            **dict.fromkeys(
                ("key", "source", "prompt_tokens", "predicted_cached", "reported_cached", "completion_tokens"), None
            ),
            **dict.fromkeys(("ttft_s", "predicted_ttft_s", "broken", "tokens_reason"), None),
        },
        Line,
    )


class Losses:
    """Counts dropped lines."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, count: int) -> None:
        self.count += count


def begun(settings: Settings, losses: Losses) -> AccessLog:
    log = AccessLog(losses)
    log.reconfigure(settings, open_file(settings))
    return log


async def test_a_disk_that_hangs_drops_lines_beyond_a_bound_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "_QUEUED_LINES", 10)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    losses = Losses()
    log = begun(Settings(path=str(pipe)), losses)
    try:
        while losses.count == 0:  # until the pipe is full, and the bound reached behind it
            log.write(a_line("x" * 1000))
            await asyncio.sleep(0)
        log.write(a_line("one more"))
        assert losses.count == 2
    finally:
        os.set_blocking(reading, True)
        drained = threading.Thread(target=lambda: all(iter(lambda: os.read(reading, 1 << 16), b"")))
        drained.start()
        await log.close()
        drained.join()
        os.close(reading)


async def test_a_file_that_was_moved_goes_on_under_its_name_when_opened_again(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    log = begun(Settings(path=str(file)), Losses())
    log.write(a_line("before"))
    await until(lambda: len(lines(file)) == 1)
    file.rename(tmp_path / "access.log.1")
    log.write(a_line("on the way"))
    log.reopen()
    log.write(a_line("after"))
    await log.close()
    assert [line["request_id"] for line in lines(tmp_path / "access.log.1")] == ["before", "on the way"]
    assert [line["request_id"] for line in lines(file)] == ["after"]


async def test_a_file_that_cannot_be_opened_again_stays_in_use(tmp_path: Path, log: list[Any]) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file = folder / "access.log"
    kept = begun(Settings(path=str(file)), Losses())
    folder.rename(tmp_path / "moved")
    kept.reopen()
    kept.write(a_line("still here"))
    await kept.close()
    assert [line["request_id"] for line in lines(tmp_path / "moved" / "access.log")] == ["still here"]
    assert [entry["event"] for entry in log] == ["access log not opened again: it goes on where it was"]


async def test_lines_that_cannot_be_written_are_counted_and_told_of_once(log: list[Any]) -> None:
    losses = Losses()
    full = begun(Settings(path="/dev/full"), losses)
    for n in range(2):
        full.write(a_line(str(n)))
        full.reopen()  # also sends off what has gathered
    await full.close()
    assert losses.count == 2
    assert [entry["event"] for entry in log] == ["access log cannot be written: its lines are lost"]


async def test_another_path_takes_over_between_two_lines(tmp_path: Path) -> None:
    first, second = (Settings(path=str(tmp_path / name)) for name in ("first", "second"))
    log = begun(first, Losses())
    log.write(a_line("1"))
    log.reconfigure(second, open_file(second))
    log.write(a_line("2"))
    log.reconfigure(Settings(enabled=False), None)
    log.write(a_line("3"))
    log.reconfigure(first, open_file(first))
    log.write(a_line("4"))
    await log.close()
    await until(lambda: [line["request_id"] for line in lines(tmp_path / "second")] == ["2"])
    assert sorted(line["request_id"] for line in lines(tmp_path / "first")) == ["1", "4"]


def test_a_path_that_cannot_be_opened_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^\$\.access_log\.path: .*: Is a directory$"):
        open_file(Settings(path=str(tmp_path)))


def test_to_a_pipe_go_whole_lines_at_once() -> None:
    written = [b"x" * 1500 + b"\n" for _ in range(5)]
    pieces = list(log_file.pieces(written))
    assert b"".join(pieces) == b"".join(written)
    assert all(len(piece) <= 4096 and piece.endswith(b"\n") for piece in pieces)


# --- the rest of the log

_LOGS = """
import logging, sys, warnings
import structlog
from config.schema import Log
from gateway import logs
logs.configure(Log(format="{format}", level="{level}"))
structlog.get_logger("x").info("ours", a=1)
logging.getLogger("aiohttp.server").info("theirs %d", 2)
try:
    raise ValueError("why")
except ValueError:
    logging.getLogger("asyncio").exception("bad")
warnings.warn("careful")
"""


def logged(**settings: str) -> list[str]:
    """What comes out on standard error."""
    told = subprocess.run([sys.executable, "-c", _LOGS.format(**settings)], capture_output=True, check=True, text=True)
    assert told.stdout == ""
    return told.stderr.splitlines()


def test_as_json_every_line_is_an_object_whoever_logs() -> None:
    ours, theirs, bad, careful = map(json.loads, logged(format="json", level="info"))
    assert (ours["event"], ours["a"], ours["level"]) == ("ours", 1, "info")
    assert (theirs["event"], theirs["logger"], theirs["level"]) == ("theirs 2", "aiohttp.server", "info")
    assert bad["event"] == "bad"
    assert bad["exception"].endswith("ValueError: why")
    assert "careful" in careful["event"]
    assert all(entry["timestamp"].endswith("Z") for entry in (ours, theirs, bad, careful))


def test_the_level_goes_for_all_who_log() -> None:
    bad, *_ = logged(format="json", level="error")
    assert json.loads(bad)["event"] == "bad"


def test_as_text_it_is_for_a_person_and_shows_no_variables() -> None:
    told = "\n".join(logged(format="text", level="info"))
    assert "ours" in told
    assert "theirs 2" in told
    assert "ValueError: why" in told
    assert "locals" not in told
    assert logging.getLogger("gateway").handlers == []


class FullDisk(io.RawIOBase):
    """A file on a disk that has so much room, until some is made."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.content = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        taken = bytes(data)[: self.room]
        self.room -= len(taken)
        self.content += taken
        return len(taken)


async def test_a_line_that_a_full_disk_tore_spoils_no_other() -> None:
    disk, lost = FullDisk(14), list[int]()
    log = log_file.LogFile("test log", lost.append)
    log.reconfigure("nowhere", disk)
    for line in (b'{"n": 1}\n', b'{"n": 2}\n'):
        log.write(line)
        log._flush()
    await until(lambda: lost == [1])
    disk.room = 1000
    log.write(b'{"n": 3}\n')
    await log.close()
    assert disk.content.split(b"\n") == [b'{"n": 1}', b'{"n":', b'{"n": 3}', b""]
