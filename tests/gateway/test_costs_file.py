"""What was learned of the pods' speed outlives the gateway that learned it."""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from config.schema import Costs as Settings
from gateway import costs_file
from gateway.costs_file import CostsFile
from gateway.metrics import Metrics
from gateway.pods import PodTable
from index import RadixIndex
from scorers import Costs, Prefill, Pull
from tests.gateway.fleet import Front, fleet, serving, simulated, until
from tests.gateway.reloading import reloadable

US_PER_TOKEN = 400.0


def taught(front: Front, pod: Any, other: Any) -> None:
    """The gateway has seen the pod compute, and pull from the other one."""
    table = front.parts.pods
    for tokens in (500.0, 1000.0, 2000.0, 4000.0):
        now = table.clock()
        table.costs.computed((pod.url, 0), Prefill(1.0, tokens, 0.0, 0.0), US_PER_TOKEN * tokens * 1e-6, now)
        table.costs.pulled((other.url, 0), (pod.url, 0), Pull(1.0, tokens, 0.0, 0.0), 1e-5 * tokens, now)


async def shown(front: Front, pod: Any) -> tuple[Any, Any]:
    """What /pods says of the pod's costs, and of links, but for how much is known."""
    told = (await front.get("/pods")).json
    (row,) = [row for row in told["pods"] if row["url"] == pod.url]
    links = [{name: value for name, value in link.items() if name != "samples"} for link in told["links"]]
    return {name: value for name, value in row["ranks"][0]["costs"].items() if name != "samples"}, links


def warned(log: list[MutableMapping[str, Any]]) -> list[str]:
    return [entry["event"] for entry in log if entry["log_level"] == "warning" and "costs" in entry["event"]]


async def files(front: Front, action: str, result: str) -> float:
    return await front.metric("costs_file_total", action=action, result=result)


async def test_a_gateway_goes_on_with_what_the_one_before_it_learned(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    async with simulated(2) as (one, two):
        async with serving([one, two], costs={"path": str(path)}) as front:
            assert await files(front, "load", "missing") == 1
            unknowing = await shown(front, one)
            taught(front, one, two)
            before = await shown(front, one)
            assert not path.exists()
        assert before != unknowing
        async with serving([one, two], costs={"path": str(path)}) as front:
            assert await files(front, "load", "ok") == 1
            assert await shown(front, one) == before
            assert (await front.row(one))["ranks"][0]["costs"]["samples"] == 0  # of its own


async def test_pods_that_are_not_configured_any_more_are_not_taken_over(tmp_path: Path) -> None:
    costs = {"path": str(tmp_path / "costs.json")}
    async with simulated(2) as (one, two):
        async with serving([one, two], costs=costs) as front:
            taught(front, one, two)
        async with serving([one], costs=costs) as front:
            assert (await shown(front, one))[1] == []


async def test_it_is_written_every_so_often_as_a_whole_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    async with fleet(2, costs={"path": str(path), "save_interval": 0.02}) as (front, (one, two)):
        taught(front, one, two)

        def known() -> bool:
            return path.exists() and bool(json.loads(path.read_bytes())["costs"]["ranks"])

        await until(known)
        assert json.loads(path.read_bytes())["format"] == "p2p-gateway costs"

        async def told() -> bool:
            return await files(front, "save", "ok") > 0

        await until(told)
    assert list(tmp_path.iterdir()) == [path]


async def test_without_a_path_nothing_is_written_or_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saves: list[float] = []
    save = CostsFile._save

    async def noted(file: CostsFile, seconds: float) -> None:
        saves.append(seconds)
        await save(file, seconds)

    monkeypatch.setattr(CostsFile, "_save", noted)
    async with fleet(2, costs={"save_interval": 0.01}) as (front, (one, two)):
        taught(front, one, two)
        learned_at = len(saves)
        await until(lambda: len(saves) > learned_at + 3)
        assert await front.metric("costs_file_total") == 0
    assert list(tmp_path.iterdir()) == []


KEPT = {"format": "p2p-gateway costs", "version": 1, "saved": 0.0, "costs": {}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff\xfe",
        b"[" * 100_000,
        b'{"format": "p2p-gateway costs"',
        b'{"pods": [{"url": "http://10.0.0.1:8000"}]}',
        json.dumps(KEPT | {"version": 2}).encode(),
        json.dumps(KEPT).encode(),
        json.dumps(KEPT | {"costs": {"prefill": [[1, 2], 3], "pull": 1, "answer": 1}}).encode(),
        json.dumps(KEPT | {"costs": {name: [[1e300] * 4, 1] for name in ("prefill", "pull", "answer")}}).encode(),
    ],
    ids=["empty", "binary", "deep", "cut off", "foreign", "newer", "hollow", "malformed", "absurd"],
)
async def test_a_file_that_cannot_be_used_is_told_of_and_put_aside(
    content: bytes, tmp_path: Path, log: list[MutableMapping[str, Any]]
) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(content)
    async with fleet(costs={"path": str(path)}) as (front, (pod,)):
        assert await files(front, "load", "failed") == 1
        assert warned(log) == ["costs not restored: they are learned anew"]
        assert front.parts.pods.costs.prefill((pod.url, 0)) == Costs().prefill((pod.url, 0))
        assert (await front.complete([1, 2, 3])).pod == pod.url
    assert json.loads(path.read_bytes())["version"] == 1
    assert (tmp_path / "costs.json.unusable").read_bytes() == content


async def test_a_file_that_cannot_be_read_is_told_of(tmp_path: Path, log: list[MutableMapping[str, Any]]) -> None:
    async with fleet(costs={"path": str(tmp_path)}) as (front, _):
        assert await files(front, "load", "failed") == 1
    told = [entry for entry in log if entry["event"].startswith("costs not restored")]
    assert [(entry["path"], entry["error"]) for entry in told] == [(str(tmp_path), "Is a directory")]


async def test_a_file_that_cannot_be_put_aside_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(b"{")
    (tmp_path / "costs.json.unusable").mkdir()
    async with fleet(costs={"path": str(path)}) as (front, _):
        assert await files(front, "load", "failed") == 1
    assert json.loads(path.read_bytes())["version"] == 1


async def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_file, "_MAX_BYTES", 10)
    (tmp_path / "costs.json").write_bytes(b"{" * 11)
    async with fleet(costs={"path": str(tmp_path / "costs.json")}) as (front, _):
        assert await files(front, "load", "failed") == 1


@pytest.mark.parametrize("where", ["nowhere/costs.json", ""], ids=["no directory", "a directory"])
async def test_what_cannot_be_written_is_counted_and_told_of_once(
    where: str, tmp_path: Path, log: list[MutableMapping[str, Any]]
) -> None:
    path = tmp_path / "into" / where
    (tmp_path / "into").mkdir()
    async with fleet(costs={"path": str(path), "save_interval": 0.01}) as (front, _):

        async def tried() -> bool:
            return await files(front, "save", "failed") > 2

        await until(tried)
        assert await files(front, "save", "ok") == 0
    assert warned(log).count("costs cannot be written: a restart will not know them") == 1
    assert [entry for entry in tmp_path.rglob("*") if entry.is_file()] == []


async def test_a_changed_path_is_written_to_without_a_restart(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    async with simulated() as (pod,), reloadable([pod], tmp_path / "gateway.yaml") as gateway:
        assert await gateway.reload([pod], costs={"path": str(first), "save_interval": 0.01}) == "ok"
        await until(first.exists)
        assert await gateway.reload([pod], costs={"path": str(second)}) == "ok"
        first.unlink(missing_ok=True)
    assert second.exists()


class Disk:
    """One whose writes, in their threads, take until it is told to go on. What was begun, and what was then written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.written: list[str] = []
        self.goes_on = threading.Event()
        monkeypatch.setattr(costs_file, "_write", self._write)

    def _write(self, path: str, state: dict[str, Any], *, aside: bool) -> str | None:
        del state, aside
        self.begun.append(path)
        assert self.goes_on.wait(60)
        self.written.append(path)
        return None


@contextlib.asynccontextmanager
async def kept(path: str) -> AsyncIterator[tuple[CostsFile, Metrics]]:
    """A file's keeper at work, one save after the other."""
    table = PodTable([], max_load_age=10.0)
    metrics = Metrics(table, RadixIndex())
    file = CostsFile(Settings(path=path, save_interval=0.001), table, metrics)
    task = asyncio.create_task(file.run())
    yield file, metrics
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)


def saved(metrics: Metrics, result: str) -> float:
    return metrics.costs_file.labels("save", result).value


async def test_what_is_under_way_at_the_end_does_not_overwrite_what_is_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    begun: list[int] = []

    def go_on() -> None:
        begun.append(len(disk.begun))
        disk.goes_on.set()

    async with kept("costs.json") as (_, metrics):
        await until(lambda: len(disk.begun) == 1)
        asyncio.get_running_loop().call_later(0.05, go_on)  # when it has been cancelled
    assert begun == [1]
    assert disk.begun == disk.written == ["costs.json"] * 2
    assert (saved(metrics, "ok"), saved(metrics, "failed")) == (2, 0)


async def test_a_disk_that_hangs_does_not_keep_the_gateway_from_ending(
    monkeypatch: pytest.MonkeyPatch, log: list[MutableMapping[str, Any]]
) -> None:
    monkeypatch.setattr(costs_file, "_LAST_S", 0.02)
    disk = Disk(monkeypatch)
    async with kept("costs.json") as (_, metrics):
        await until(lambda: len(disk.begun) == 1)
    assert len(disk.begun) == 1
    assert saved(metrics, "failed") == 1
    assert [entry["error"] for entry in log if "costs" in entry["event"]] == ["the disk does not answer"]
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "write costs")
    disk.goes_on.set()
    await until(lambda: bool(disk.written))


async def test_a_write_that_hangs_is_counted_each_time_and_waited_for_before_the_next(
    monkeypatch: pytest.MonkeyPatch, log: list[MutableMapping[str, Any]]
) -> None:
    monkeypatch.setattr(costs_file, "_SAVE_S", 0.01)
    disk = Disk(monkeypatch)
    async with kept("costs.json") as (_, metrics):
        await until(lambda: saved(metrics, "failed") >= 3)
        assert len(disk.begun) == 1
        assert len(warned(log)) == 1
        disk.goes_on.set()
        await until(lambda: saved(metrics, "ok") >= 2)
    assert disk.begun == disk.written


async def test_one_disk_that_hangs_does_not_hold_up_another_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs_file, "_SAVE_S", 0.01)
    disk = Disk(monkeypatch)
    async with kept("hangs.json") as (file, metrics):
        await until(lambda: saved(metrics, "failed") >= 1)
        file.reconfigure(Settings(path="other.json", save_interval=0.001))
        await until(lambda: disk.begun == ["hangs.json", "other.json"])
        disk.goes_on.set()


async def test_a_disk_that_does_not_answer_is_not_waited_for_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: list[MutableMapping[str, Any]]
) -> None:
    monkeypatch.setattr(costs_file, "_LOAD_S", 0.05)
    path = tmp_path / "costs.json"
    os.mkfifo(path)  # opening it to read lasts until somebody opens it to write
    async with fleet(costs={"path": str(path)}) as (front, (pod,)):
        assert await files(front, "load", "failed") == 1
        assert (await front.complete([1, 2, 3])).pod == pod.url
        with path.open("wb"):
            pass  # so that the thread ends
    assert path.is_fifo()
    assert warned(log) == [
        "costs not restored: they are learned anew",
        "costs cannot be written: a restart will not know them",
    ]
