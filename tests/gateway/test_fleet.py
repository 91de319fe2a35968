"""The tasks about pods: each pod's trouble is its own, and what is known of it ends with it."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

import gateway.fleet
from config.schema import P2P, Breaker, PodConfig, Poll
from gateway.fleet import Fleet
from gateway.metrics import Metrics
from gateway.pod import Pod
from gateway.pods import PodTable
from gateway.poller import EventSource, Poller
from gateway.pulling import Pulling
from gateway.upstream import PodApi
from index import RadixIndex
from tests.gateway.fleet import DEADLINE_S, client, completions, fleet, ids, name, serving, simulated, until, warm
from tests.gateway.scripted import METRICS, never, page, says, scripted


class Supervised(NamedTuple):
    table: PodTable
    metrics: Metrics
    subscribed: list[tuple[str, int]]
    faults: set[str]
    leaving: set[str]


@asynccontextmanager
async def supervised(*pods: Any, interval: float = 0.02) -> AsyncIterator[Supervised]:
    """A fleet whose subscriptions raise for the pods in `faults`, do nothing otherwise, and take a while to leave."""
    specs = [PodConfig(url=pod.url) for pod in pods]
    table = PodTable([Pod(spec, p2p=None, breaker=Breaker()) for spec in specs], max_load_age=10)
    index = RadixIndex()
    found = Supervised(table, Metrics(table, index), [], set(), set())

    async def subscribe(pod: Pod, source: EventSource) -> None:
        found.subscribed.append((pod.name, source.rank))
        if pod.name in found.faults:
            raise RuntimeError("a bug")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            found.leaving.add(pod.name)
            await asyncio.sleep(0.05)

    async with client() as http:
        poll, api = Poll(interval=interval, timeout=0.5), PodApi(http)
        poller = Poller(api, poll)
        parts = Fleet(
            pods=table,
            poller=poller,
            index=index,
            subscribe=subscribe,
            metrics=found.metrics,
            poll=poll,
            follow=lambda _: asyncio.sleep(0),
            pulling=Pulling(table, index, api, poller, found.metrics, P2P(probe=False)),
        )
        task = asyncio.create_task(parts.run())
        yield found
        task.cancel()
        await asyncio.wait([task], timeout=DEADLINE_S)
        assert task.cancelled()


def failures(found: Supervised, pod: Any) -> float:
    value = found.metrics.registry.get_sample_value("p2p_gateway_task_failures_total", {"pod": name(pod)})
    return value or 0.0


async def test_a_fault_in_one_pods_task_is_counted_restarted_and_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, log: list[MutableMapping[str, Any]]
) -> None:
    monkeypatch.setattr(gateway.fleet, "_RESTART_AFTER_FAULT_S", 0.02)
    async with simulated(2) as (bad, good), supervised(bad, good) as found:
        found.faults.add(name(bad))
        await until(lambda: failures(found, bad) >= 2)
        assert found.table[name(good)].state == "ready"
        assert found.subscribed.count((name(good), 0)) == 1
        assert failures(found, good) == 0
        found.faults.clear()
        await until(lambda: found.table[name(bad)].state == "ready")
        assert found.table[name(good)].state == "ready"
    faults = [entry for entry in log if entry["event"] == "pod task failed"]
    assert {entry["pod"] for entry in faults} == {name(bad)}
    for entry in faults:
        log.remove(entry)


async def test_a_fleet_that_ends_while_a_pod_is_leaving_ends_all_the_same() -> None:
    async with simulated() as (pod,), supervised(pod) as found:
        await until(lambda: found.table[name(pod)].state == "ready" and bool(found.subscribed))
        await pod.kill()
        await until(lambda: bool(found.leaving))


async def test_every_rank_is_subscribed_to() -> None:
    async with simulated(ranks=3) as (pod,), supervised(pod) as found:
        await until(lambda: len(found.subscribed) == 3)
        assert found.subscribed == [(name(pod), rank) for rank in range(3)]
        assert found.table[name(pod)].ranks == (0, 1, 2)


async def test_a_pod_is_down_after_failed_polls_in_a_row_and_not_before() -> None:
    poll = {"interval": 0.05, "timeout": 0.2, "failures": 3}
    async with scripted() as pod, serving([pod], poll=poll) as front:

        async def failed(count: int) -> bool:
            return await front.metric("polls_total", result="pod_unavailable") >= count

        pod.scripts["/health"] = says({}, 500)
        await until(lambda: failed(1))
        assert (await front.row(pod))["state"] == "ready"
        pod.scripts["/health"] = page(b"")
        polled = await front.metric("polls_total", result="ok")

        async def recovered() -> bool:
            return await front.metric("polls_total", result="ok") > polled

        await until(recovered)
        assert (await front.row(pod))["state"] == "ready"
        pod.scripts["/health"] = says({}, 500)

        async def down() -> bool:
            return bool((await front.row(pod))["state"] == "down")

        await until(down)
        row = await front.row(pod)
        assert "answered 500" in row["reason"]
        assert (row["waiting"], row["kv_usage"]) == (None, None)
        ready = await front.get("/ready")
        assert (ready.status, ready.json["pods"]) == (503, {name(pod): f"down: {row['reason']}"})
        assert await front.metric("pod_ready") == 0
        pod.scripts["/health"] = page(b"")
        await front.until_ready(1)


async def test_a_pod_that_hangs_is_down_after_its_deadlines() -> None:
    poll = {"interval": 0.02, "timeout": 0.05, "failures": 2}
    async with scripted() as pod, serving([pod], poll=poll) as front:
        pod.scripts["/metrics"] = never

        async def down() -> bool:
            return bool((await front.row(pod))["state"] == "down")

        await until(down)
        assert await front.metric("polls_total", result="pod_timeout") >= 2


async def test_another_process_behind_the_same_address_is_another_pod() -> None:
    async with scripted() as pod, serving([pod], poll={"interval": 0.02}) as front:
        incarnation = front.parts.pods[name(pod)]
        before = incarnation.in_flight[0]
        pod.scripts["/metrics"] = page(METRICS.replace(b"seconds 1.0", b"seconds 2.0"))
        await until(lambda: incarnation.in_flight.get(0) is not before)
        await front.until_ready(1)


async def test_a_suspicion_is_looked_into_at_once() -> None:
    async with fleet(2, poll={"interval": 60.0, "max_age": 60.0}) as (front, (pod, other)):
        await warm(pod, ids(100))
        await front.settled(pod)
        await pod.kill()

        async def down() -> bool:
            return bool((await front.row(pod))["state"] == "down")

        await until(down)
        assert (await front.row(other))["state"] == "ready"
        assert not completions(other)


async def test_a_pod_is_known_by_its_host_and_port_alone() -> None:
    async with simulated() as (pod,), serving([{"url": pod.url.upper().replace("HTTP", "http") + "/"}]) as front:
        await front.complete([1])
        assert await front.metric("requests_total", pod=name(pod)) == 1


async def test_leaving_while_a_pod_is_asked_its_first_question_leaves_nothing_behind() -> None:
    async with scripted(health=never) as pod, serving([pod], ready=0) as front:
        assert (await front.get("/ready")).json["pods"] == {name(pod): "starting: not polled yet"}


async def test_a_pod_without_events_is_served_and_the_operator_is_told(log: list[MutableMapping[str, Any]]) -> None:
    async with fleet(pod={"event_sources": False}) as (front, (pod,)):
        assert (await front.complete(ids(20))).pod == pod.url
    told = [entry for entry in log if "no KV events" in entry["event"]]
    assert [(entry["log_level"], entry["pod"]) for entry in told] == [("warning", pod.url.removeprefix("http://"))]
