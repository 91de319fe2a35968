"""A gateway that starts from another's index knows at once what that one knew, and nothing that is no longer so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from loadgen.pod import SimulatedPod
from tests.gateway.fleet import Front, client, fleet, ids, serving, simulated, spec, until, warm


async def saved(front: Front, directory: Path) -> str:
    answer = await front.get("/index/snapshot")
    assert answer.status == 200
    path = directory / "index.snapshot"
    path.write_bytes(answer.body)
    return str(path)


async def predicted(front: Front, prompts: int) -> list[int]:
    """What the gateway expects to be reused of each of so many prompts, on each pod."""
    told = [await front.explain(ids(100, salt=salt)) for salt in range(prompts)]
    return [candidate["cached_tokens"]["any"] for each in told for candidate in each["candidates"]]


async def used(front: Front, pods: list[SimulatedPod], prompts: int, *, first: int = 0) -> None:
    for salt in range(first, first + prompts):
        await warm(pods[salt % len(pods)], ids(100, salt=salt))
    await front.settled(*pods)


@pytest.mark.parametrize("way", ["file", "url"])
async def test_a_restored_gateway_decides_as_the_one_that_never_stopped(tmp_path: Path, way: str) -> None:
    async with fleet(2) as (front, pods):
        await used(front, pods, 40)
        restore = await saved(front, tmp_path) if way == "file" else front.url
        async with serving(pods, restore=restore) as warmed:
            assert await predicted(warmed, 40) == await predicted(front, 40)
            assert await warmed.metric("restores_total", result="ok") == 1
            await warmed.settled(*pods)


async def test_events_since_the_snapshot_are_asked_for_and_no_others(tmp_path: Path) -> None:
    async with fleet() as (front, pods):
        await used(front, pods, 10)
        restore = await saved(front, tmp_path)
        await used(front, pods, 10, first=10)
        async with serving(pods, restore=restore) as warmed:
            await warmed.settled(*pods)
            assert await predicted(warmed, 20) == await predicted(front, 20)
            # Had the replay begun at 0, all that was known would have come again.
            assert await warmed.metric("kv_event_effects_total", effect="copies") == 0
            assert await warmed.metric("kv_events_total", outcome="applied") < await front.metric(
                "kv_events_total", outcome="applied"
            )


async def test_a_pod_that_restarted_meanwhile_is_not_believed(tmp_path: Path) -> None:
    async with fleet(2) as (front, pods):
        await used(front, pods, 10)
        restore = await saved(front, tmp_path)
        await pods[0].restart()
        async with serving(pods, restore=restore) as warmed:
            await warmed.settled(pods[1])
            rows = await warmed.pods()
            assert rows[pods[0].url]["cached_blocks"] == {"gpu": 0, "cpu": 0}
            assert rows[pods[1].url]["cached_blocks"]["gpu"] > 0


@asynccontextmanager
async def heard_from_the_first() -> AsyncIterator[tuple[Front, SimulatedPod]]:
    """A pod without replay of which the gateway knows everything: what comes before a subscription stands is lost."""
    salts = count(1000)
    while True:
        async with fleet(pod={"replay": False}) as (front, (pod,)):

            async def heard(front: Front = front, pod: SimulatedPod = pod) -> bool:
                await warm(pod, ids(100, salt=next(salts)))
                return (await front.row(pod))["last_seq"] is not None

            await until(heard)
            if (await front.row(pod))["certain"]:
                yield front, pod
                return


async def test_without_replay_a_restored_record_is_kept_and_goes_on(tmp_path: Path) -> None:
    async with heard_from_the_first() as (front, pod):
        await used(front, [pod], 10)
        restore = await saved(front, tmp_path)
        async with serving([pod], restore=restore) as warmed:
            assert await predicted(warmed, 10) == [96] * 10
            await warm(pod, ids(100, salt=50))
            await warmed.settled(pod)


async def test_without_replay_what_happened_since_makes_a_restored_record_uncertain(tmp_path: Path) -> None:
    async with heard_from_the_first() as (front, pod):
        await warm(pod, ids(100))
        await front.settled(pod)
        restore = await saved(front, tmp_path)
        await warm(pod, ids(100, salt=1))
        async with serving([pod], restore=restore) as warmed:
            salts = count(2)

            async def doubted() -> bool:
                await warm(pod, ids(100, salt=next(salts)))  # what comes before the subscription stands is not heard
                row = await warmed.row(pod)
                return bool(row["gaps"] == 1 and not row["certain"] and row["credit"] < 1.0)

            await until(doubted)
            assert (await predicted(warmed, 1)) == [96]


async def test_a_record_with_holes_is_rebuilt_where_there_is_a_replay(tmp_path: Path) -> None:
    async with fleet() as (front, pods):
        await used(front, pods, 5)
        front.parts.pods[pods[0].url.removeprefix("http://")].streams[0].certain = False
        restore = await saved(front, tmp_path)
        async with serving(pods, restore=restore) as warmed:
            await warmed.settled(*pods)
            assert await warmed.metric("kv_events_total", outcome="applied") == pods[0].next_seq()


async def test_pods_that_are_not_configured_are_left_out(tmp_path: Path) -> None:
    async with fleet(2) as (front, pods):
        await used(front, pods, 10)
        restore = await saved(front, tmp_path)
        async with serving(pods[:1], restore=restore) as warmed:
            await warmed.settled(pods[0])
            assert warmed.parts.index.stats().publishers == 1


def damaged(data: bytes, how: str) -> bytes:
    head, _, rest = data.partition(b"\n")
    return {
        "truncated": data[: len(data) // 2],
        "flipped": data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
        "no head": rest,
        "head only": head + b"\n",
        "empty": b"",
        "something else": b"# a configuration\n" * 100,
        "an endless line": b"x" * (2 << 20),
    }[how]


HARMS = ["truncated", "flipped", "no head", "head only", "empty", "something else", "an endless line"]


@pytest.mark.parametrize("how", HARMS)
async def test_a_damaged_snapshot_means_a_cold_start(tmp_path: Path, how: str) -> None:
    async with fleet(2) as (front, pods):
        await used(front, pods, 10)
        path = Path(await saved(front, tmp_path))
        path.write_bytes(damaged(path.read_bytes(), how))
        async with serving(pods, restore=str(path)) as cold:
            assert await cold.metric("restores_total", result="failed") == 1
            await cold.settled(*pods)  # from the replay
            assert (await cold.complete(ids(100))).status == 200


@pytest.mark.parametrize("source", ["/nowhere/at/all", "http://127.0.0.1:9"])
async def test_no_snapshot_means_a_cold_start(source: str) -> None:
    async with simulated() as pods, serving(pods, restore=source) as cold:
        assert await cold.metric("restores_total", result="failed") == 1
        assert (await cold.complete(ids(20))).status == 200


async def test_a_snapshot_is_served_whole_while_events_come(tmp_path: Path) -> None:
    async with fleet(2) as (front, pods):
        ended = asyncio.Event()

        async def traffic(pod: SimulatedPod, first: int) -> None:
            for salt in range(first, first + 1000):
                if ended.is_set():
                    return
                await warm(pod, ids(100, salt=salt))

        async with asyncio.TaskGroup() as group:
            for number, pod in enumerate(pods):
                group.create_task(traffic(pod, 1000 * number))
            for _ in range(5):
                restore = await saved(front, tmp_path)
            ended.set()
        async with serving(pods, restore=restore) as warmed:
            await warmed.settled(*pods)
            warmed.parts.index.check_invariants()


async def test_a_pod_that_is_down_at_the_start_is_judged_when_it_comes(tmp_path: Path) -> None:
    async with fleet() as (front, pods):
        await used(front, pods, 3)
        restore = await saved(front, tmp_path)
        await pods[0].kill()
        entries: list[Any] = [spec(pods[0])]
        async with client(), serving(entries, ready=0, restore=restore) as warmed:
            assert warmed.parts.index.stats().publishers == 1
            await pods[0].restart()
            await warmed.until_ready(1)
            assert (await warmed.row(pods[0]))["cached_blocks"] == {"gpu": 0, "cpu": 0}
