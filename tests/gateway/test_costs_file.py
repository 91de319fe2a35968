"""What was learned of the pods' speed outlives the gateway that learned it."""

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

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
        assert await files(front, "save", "ok") > 0
    assert list(tmp_path.iterdir()) == [path]


async def test_without_a_path_nothing_is_written_or_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with fleet(2, costs={"save_interval": 0.01}) as (front, (one, two)):
        taught(front, one, two)
        await asyncio.sleep(0.1)
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


class Slow:
    """A disk that takes as long as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[dict[str, Any]] = []
        self.ended: list[dict[str, Any]] = []
        self.goes_on = asyncio.Event()
        monkeypatch.setattr(costs_file.asyncio, "to_thread", self._write)

    async def _write(self, _: Any, __: str, state: dict[str, Any]) -> str | None:
        self.begun.append(state)
        await self.goes_on.wait()
        self.ended.append(state)
        return None


async def test_what_is_under_way_at_the_end_does_not_overwrite_what_is_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Slow(monkeypatch)
    table = PodTable([], max_load_age=10.0)
    settings = costs_file.Settings(path=str(tmp_path / "costs.json"), save_interval=0.001)
    task = asyncio.create_task(CostsFile(settings, table, Metrics(table, RadixIndex())).run())
    await until(lambda: len(disk.begun) == 1)
    task.cancel()
    await asyncio.sleep(0)
    assert len(disk.begun) == 1
    disk.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert disk.begun == disk.ended
    assert len(disk.ended) == 2


async def test_a_disk_that_hangs_does_not_keep_the_gateway_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs_file, "_LAST_S", 0.02)
    disk = Slow(monkeypatch)
    table = PodTable([], max_load_age=10.0)
    settings = costs_file.Settings(path=str(tmp_path / "costs.json"), save_interval=0.001)
    task = asyncio.create_task(CostsFile(settings, table, Metrics(table, RadixIndex())).run())
    await until(lambda: len(disk.begun) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert len(disk.begun) == 1
    disk.goes_on.set()
    await until(lambda: bool(disk.ended))
