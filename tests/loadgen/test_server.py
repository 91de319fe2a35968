import asyncio

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadgen.pod import SimulatedPod
from tests.loadgen.clients import cached, complete, until


async def test_the_pod_describes_itself(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(loras={"sql": "/loras/sql"}, ranks=2) as pod:
        answers = []
        for path in ("/v1/models", "/version", "/kv_event_sources"):
            async with http.get(pod.url + path) as response:
                answers.append(await response.json())
        async with http.get(f"{pod.url}/health") as response:
            assert (response.status, await response.text()) == (200, "")
        models, version, sources = answers
        ports = [int(address.rpartition(":")[2]) for address in pod.events]
        replays = [int(address.rpartition(":")[2]) for address in pod.replays]
    assert [(m["id"], m["root"], m["max_model_len"]) for m in models["data"]] == [
        ("demo-model", "/models/demo-model", 32768),
        ("sql", "/loras/sql", None),
    ]
    assert version == {"version": "0.32.0"}
    assert [sources[rank]["endpoint"] for rank in ("0", "1")] == [f"tcp://*:{port}" for port in ports]
    assert [sources[rank]["replay_endpoint"] for rank in ("0", "1")] == [f"tcp://*:{port}" for port in replays]
    assert ports[1] == ports[0] + 1


async def test_an_older_pod_does_not_tell_where_its_events_are(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(event_sources=False) as pod, http.get(f"{pod.url}/kv_event_sources") as response:
        assert response.status == 404


async def metrics(http: aiohttp.ClientSession, pod: SimulatedPod) -> dict[tuple[str, str, str], float]:
    """Return the samples by name, engine, and source or reason."""
    async with http.get(f"{pod.url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    return {
        (s.name, s.labels.get("engine", ""), s.labels.get("source") or s.labels.get("finished_reason") or ""): s.value
        for family in families
        for s in family.samples
    }


async def test_metrics_count_what_was_done(http: aiohttp.ClientSession) -> None:
    prompt = list(range(1000, 1033))
    async with SimulatedPod(speed=1000) as pod:
        for _ in range(2):
            await complete(http, pod, prompt, max_tokens=4)
        got = await metrics(http, pod)
    assert got["vllm:prompt_tokens_total", "0", ""] == 66
    assert got["vllm:generation_tokens_total", "0", ""] == 8
    assert got["vllm:prompt_tokens_cached_by_source_total", "0", "device"] == 32
    assert got["vllm:request_success_total", "0", "length"] == 2
    assert got["vllm:cache_config_info", "0", ""] == 1
    assert got["process_start_time_seconds", "", ""] > 0


async def test_metrics_name_the_adapters(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(loras={"sql": "/loras/sql"}) as pod, http.get(f"{pod.url}/metrics") as response:
        assert 'running_lora_adapters="sql"' in await response.text()


async def test_metrics_show_the_load(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod() as pod:
        pod.stall()
        async with asyncio.TaskGroup() as tasks:
            for start in range(3):
                tasks.create_task(complete(http, pod, [start] * 160))
            await until(lambda: pod.engines[0].waiting == 3)
            assert (await metrics(http, pod))["vllm:num_requests_waiting", "0", ""] == 3
            pod.resume()
            await until(lambda: pod.engines[0].running == 3)
            got = await metrics(http, pod)
            assert got["vllm:num_requests_running", "0", ""] == 3
            assert got["vllm:kv_cache_usage_perc", "0", ""] == pytest.approx(30 / 4096)


async def test_ranks_cache_separately_and_are_chosen_by_header(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(ranks=2, speed=1000) as pod:
        prompt = list(range(1000, 1040))

        async def ask(rank: str) -> int:
            body = {"prompt": prompt, "max_tokens": 1}
            headers = {"x-data-parallel-rank": rank}
            async with http.post(f"{pod.url}/v1/completions", json=body, headers=headers) as response:
                return cached(await response.json()) if response.status == 200 else -response.status

        assert [await ask(rank) for rank in ("1", "0", "1", "2")] == [0, 0, 32, -400]
        assert [received.rank for received in pod.requests] == [1, 0, 1, None]
        assert len(pod.cached_blocks(1)["GPU"]) == 2


async def test_without_a_header_the_least_loaded_rank_serves(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(ranks=2) as pod:
        pod.stall()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(complete(http, pod, [7, 8, 9]))
            await until(lambda: [engine.waiting for engine in pod.engines] == [2, 2])
            pod.resume()
