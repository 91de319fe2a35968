import asyncio
import time
from typing import Any

import aiohttp
import msgspec
import pytest

from loadgen import faults
from loadgen.pod import SimulatedPod
from loadgen.profile import PodProfile
from tests.loadgen.clients import DEADLINE_S, cached, complete, next_batch, replayed, subscribed, until
from tests.loadgen.virtual import in_virtual_time, now

FAST = PodProfile(speed=1000)
PROMPTS = [list(range(start, start + 320)) for start in range(1000, 6000, 1000)]


async def inject(http: aiohttp.ClientSession, pod: SimulatedPod, **fault: Any) -> dict[str, Any]:
    async with http.post(f"{pod.url}/fault", json=fault) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def status(http: aiohttp.ClientSession, pod: SimulatedPod) -> int:
    async with http.post(f"{pod.url}/v1/completions", json={"prompt": [7], "max_tokens": 1}) as response:
        return response.status


async def test_faults_are_taken_only_where_they_are_allowed(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod() as pod, http.post(f"{pod.url}/fault", json={"kind": "stall"}) as response:
        assert response.status == 404


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"stall", "JSON is malformed"),
        (b'{"kind": "melt"}', "Invalid value 'melt' - at `$.kind`"),
        (b'{"kind": "stall", "second": 1}', "unknown field `second`"),
        (b'{"kind": "stall", "seconds": 0}', "Expected `float` > 0.0 - at `$.seconds`"),
        (b'{"kind": "slow_link"}', "missing required field `factor`"),
        (b'{"kind": "drop_events", "rank": 1}', "there is no rank 1"),
        (b'{"kind": "fail_next", "status": 599}', "599 is not a valid HTTPStatus"),
    ],
)
async def test_what_is_no_fault_is_refused(http: aiohttp.ClientSession, body: bytes, reason: str) -> None:
    async with SimulatedPod(faults=True) as pod, http.post(f"{pod.url}/fault", data=body) as response:
        assert response.status == 400
        assert reason in (await response.json())["error"]["message"]
        assert not pod.requests


async def test_a_fault_is_answered_with_its_defaults(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(faults=True) as pod:
        assert await inject(http, pod, kind="drop_events") == {"kind": "drop_events", "count": 1, "rank": 0}


def test_every_fault_is_described_by_what_can_be_posted() -> None:
    described = list(faults.described())
    assert [msgspec.json.decode(shown)["kind"] for shown, _ in described] == [
        "stall",
        "resume",
        "kill",
        "drop_events",
        "slow_link",
        "stale_session",
        "fail_next",
    ]
    for shown, does in described:
        faults.decode(shown.replace('"…"', "2").encode())
        assert does


async def test_a_stall_lasts_until_it_is_over(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST, faults=True) as pod:
        await inject(http, pod, kind="stall")
        request = asyncio.create_task(complete(http, pod, [7]))
        await until(lambda: pod.engines[0].waiting == 1)
        await inject(http, pod, kind="resume")
        await request

        began = time.monotonic()
        await inject(http, pod, kind="stall", seconds=0.2)
        await complete(http, pod, [8])
        assert 0.2 <= time.monotonic() - began < DEADLINE_S


def test_a_stall_is_extended_by_a_longer_one() -> None:
    async def waited() -> float:
        async with SimulatedPod(profile=FAST, faults=True) as pod, aiohttp.ClientSession() as http:
            await inject(http, pod, kind="stall", seconds=5)
            await inject(http, pod, kind="stall", seconds=60)
            await complete(http, pod, [7])
            return now()

    assert in_virtual_time(waited()) == pytest.approx(60, abs=0.1)


async def test_a_kill_resets_every_connection(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST, faults=True) as pod:
        pod.stall()
        request = asyncio.create_task(complete(http, pod, PROMPTS[0]))
        await until(lambda: pod.engines[0].waiting == 1)
        assert await inject(http, pod, kind="kill") == {"kind": "kill", "seconds": None}
        with pytest.raises(aiohttp.ClientConnectionError):
            await request
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(f"{pod.url}/health")
        assert not pod.alive


async def test_a_killed_pod_comes_back_empty_when_its_time_is_over(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST, faults=True) as pod:
        await complete(http, pod, PROMPTS[0])
        url, before = pod.url, pod.engines[0]
        await inject(http, pod, kind="kill", seconds=0.05)
        await until(lambda: pod.alive and pod.engines and pod.engines[0] is not before)
        async with aiohttp.ClientSession() as fresh:
            assert cached(await complete(fresh, pod, PROMPTS[0])) == 0
        assert pod.url == url


@pytest.mark.parametrize("way", ["stop", "kill", "restart"])
async def test_who_ends_a_pod_that_is_out_for_a_while_ends_the_outage(way: str) -> None:
    async with SimulatedPod(profile=FAST) as pod:
        pod.inject(faults.Kill(seconds=60))
        await until(lambda: not pod.alive)
        await getattr(pod, way)()
        assert pod.alive == (way == "restart")


async def test_a_pod_is_killed_once_at_a_time() -> None:
    async with SimulatedPod(profile=FAST) as pod:
        pod.inject(faults.Kill(seconds=60))
        with pytest.raises(ValueError, match="already"):
            pod.inject(faults.Kill())


async def test_dropped_events_are_lost_on_the_way_only(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST, faults=True) as pod, subscribed(pod) as sub:
        first = pod.next_seq()
        await inject(http, pod, kind="drop_events", count=2)
        for prompt in PROMPTS:
            await complete(http, pod, prompt)
        seq, _ = await next_batch(sub)
        assert seq == first + 2
        assert len(await replayed(pod.replays[0], first)) == pod.next_seq() - first + 1


def test_a_slow_link_over_http_slows_pulls() -> None:
    profile = PodProfile(pull_us_per_token=1000.0)

    async def took(factor: float) -> float:
        async with (
            SimulatedPod(profile=profile, faults=True) as source,
            SimulatedPod(profile=profile) as consumer,
            aiohttp.ClientSession() as http,
        ):
            await complete(http, source, PROMPTS[0])
            await inject(http, source, kind="slow_link", factor=factor)
            began = now()
            assert cached(await complete(http, consumer, PROMPTS[0], kv_transfer_params=source.kv_source("id"))) == 320
            return now() - began

    usual, slow = (in_virtual_time(took(factor)) for factor in (1, 10))
    assert slow - usual == pytest.approx(9 * 0.32, rel=0.01)


def test_a_stale_session_costs_every_pull_its_deadline_until_somebody_restarts() -> None:
    async def times() -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        async with (
            SimulatedPod(profile=FAST, faults=True) as source,
            SimulatedPod(profile=FAST) as consumer,
            aiohttp.ClientSession() as http,
        ):

            async def pull(pod: SimulatedPod, prompt: list[int]) -> None:
                async with aiohttp.ClientSession() as fresh:
                    await complete(fresh, source, prompt)
                    began = now()
                    answer = await complete(fresh, pod, prompt, kv_transfer_params=source.kv_source("id"))
                seen.append((cached(answer), round(now() - began)))

            await pull(consumer, PROMPTS[0])
            await inject(http, source, kind="stale_session")
            await pull(consumer, PROMPTS[1])
            await pull(consumer, PROMPTS[2])
            async with SimulatedPod(profile=FAST) as stranger:
                await pull(stranger, PROMPTS[2])
            await consumer.restart()
            await pull(consumer, PROMPTS[3])
            await inject(http, source, kind="stale_session")
            await source.restart()
            await pull(consumer, PROMPTS[4])
        return seen

    deadline = round(FAST.pull_lookup_deadline_s)
    assert in_virtual_time(times()) == [(320, 0), (0, deadline), (0, deadline), (320, 0), (320, 0), (320, 0)]


def test_stale_sessions_heal_when_their_time_is_over() -> None:
    async def reused() -> list[int]:
        async with (
            SimulatedPod(profile=FAST) as source,
            SimulatedPod(profile=FAST) as consumer,
            aiohttp.ClientSession() as http,
        ):

            async def pull(prompt: list[int]) -> int:
                await complete(http, source, prompt)
                return cached(await complete(http, consumer, prompt, kv_transfer_params=source.kv_source("id")))

            seen = [await pull(PROMPTS[0])]
            source.stale_session(seconds=1.5 * FAST.pull_lookup_deadline_s)
            return seen + [await pull(prompt) for prompt in PROMPTS[1:4]]

    # The second lookup was sent, and lost, before they healed.
    assert in_virtual_time(reused()) == [320, 0, 0, 320]


async def test_failures_are_counted_down(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(profile=FAST, faults=True) as pod:
        await inject(http, pod, kind="fail_next", status=503, count=2)
        assert [await status(http, pod) for _ in range(3)] == [503, 503, 200]


async def test_a_pod_that_is_down_takes_no_faults() -> None:
    async with SimulatedPod() as pod:
        await pod.stop()
        for fault in (faults.Stall(), faults.Kill(), faults.SlowLink(factor=2.0)):
            with pytest.raises(RuntimeError, match="not running"):
                pod.inject(fault)
