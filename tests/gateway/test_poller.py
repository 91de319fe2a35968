from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from config.schema import PodConfig, Poll
from gateway.errors import PodRejected, PodTimeout, PodUnavailable, PodUnreachable
from gateway.pod import Adapters, Load
from gateway.poller import EventSource, Poller, parse_metrics
from gateway.progress import Work
from gateway.upstream import PodApi
from tests.gateway.fleet import client
from tests.gateway.scripted import ScriptedPod, models, never, page, says, scripted

# A page as vLLM 0.32 writes it under data parallelism, shortened.
PAGE = b"""\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 11324.0
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.76444311e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta/llama"} 3.0
vllm:num_requests_running{engine="1",model_name="meta/llama"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta/llama"} 1.2e+01
vllm:num_requests_waiting{engine="1",model_name="meta/llama"} 0.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="meta/llama",reason="capacity"} 99.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta/llama"} 0.8571428571428572
vllm:kv_cache_usage_perc{engine="1",model_name="meta/llama"} 9.1e-05
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="meta/llama"} 7.0
"""


def test_the_load_of_each_engine_is_read_off_a_page() -> None:
    read = parse_metrics(PAGE)
    assert read.load == {0: Load(12, 3, 0.8571428571428572, deferred=0), 1: Load(0, 0, 9.1e-05)}
    assert read.started == 1764443110.0


def test_for_how_many_tokens_there_are_blocks_is_told_of_all_engines_at_once() -> None:
    cache = b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="%b"} 1.0\n'
    assert [load.kv_tokens for load in parse_metrics(PAGE + cache % b"4096").load.values()] == [65_536, 65_536]
    assert [load.kv_tokens for load in parse_metrics(PAGE + cache % b"None").load.values()] == [0, 0]


def test_a_page_without_labels_speaks_of_rank_0() -> None:
    page = b"vllm:num_requests_waiting 4\nvllm:num_requests_running 5.0\nvllm:kv_cache_usage_perc 1.0"
    assert parse_metrics(page).load == {0: Load(4, 5, 1.0)}


def test_the_order_and_number_of_labels_is_the_pods() -> None:
    page = b'vllm:num_requests_waiting{model_name="a b",engine="17",x=""} 2.0 1764443110\n'
    assert parse_metrics(page).load == {17: Load(2)}


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"# nothing here\n",
        b"vllm:num_requests_waiting_total 3.0\n",
        b"my:vllm:num_requests_waiting 3.0\n",
        b"vllm:num_requests_waiting NaN\n",
        b"vllm:num_requests_waiting +Inf\n",
        b"vllm:num_requests_waiting 1e999\n",
        b"vllm:num_requests_waiting 1.2.3\n",
        b"vllm:num_requests_waiting -1.0\nprocess_start_time_seconds e\n",
        b'vllm:num_requests_waiting{engine="0"}\n',
        b"\xff\xfe\x00",
    ],
)
def test_what_a_page_does_not_say_is_unknown(page: bytes) -> None:
    assert parse_metrics(page) == ({}, None, {}, {}, {})


def test_what_a_page_says_of_progress_is_read_per_rank() -> None:
    page = b"""vllm:num_requests_running{engine="0"} 2.0
vllm:generation_tokens_total{engine="0"} 1e3
vllm:prompt_tokens_total{engine="0"} 64.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:generation_tokens_total{engine="1"} 7.0
"""
    assert parse_metrics(page).work == {0: Work(2, 1000.0, 64.0, 0.5), 1: Work(generated=7.0)}


def test_who_waits_for_blocks_and_what_came_from_peers_is_read_per_rank() -> None:
    page = b"""vllm:num_requests_waiting{engine="0"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 2.0
vllm:num_requests_waiting{engine="1"} 1.0
vllm:num_requests_waiting_by_reason{engine="1",reason="capacity"} 1.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="device"} 7.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="p2p"} 640.0
vllm:prompt_tokens_cached_by_source_total{engine="1",source="host"} 16.0
vllm:kv_offload_tiering_read_bytes_total{engine="0",tier="1:p2p"} 1e9
vllm:kv_offload_tiering_read_bytes_total{engine="2",tier="1:p2p"} 1e6
vllm:kv_offload_tiering_read_bytes_total{engine="2",tier="2:BoundedP2PTier"} 1e6
vllm:kv_offload_tiering_read_bytes_total{engine="2",tier="3:fs"} 5.0
"""
    read = parse_metrics(page)
    assert [read.load[rank].deferred for rank in (0, 1)] == [2, 0]
    assert [read.load[rank].waiting for rank in (0, 1)] == [3, 1]
    assert read.pulled == {0: 640.0, 1: 0.0, 2: 2e6}


def test_a_series_that_is_missing_leaves_the_others() -> None:
    assert parse_metrics(b'vllm:num_requests_running{engine="0"} 2.0\n').load == {0: Load(None, 2, None)}


LORAS = """vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql",waiting_lora_adapters=""} 1.7e9
vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql,poet",waiting_lora_adapters="chess"} 1.8e9
vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""} 1.76444311e+09
"""


def test_of_adapters_the_newest_series_counts_on_every_rank() -> None:
    newest = Adapters(2, frozenset({"sql", "poet"}), frozenset({"chess"}))
    assert [load.adapters for load in parse_metrics(PAGE + LORAS.encode()).load.values()] == [newest, newest]


def test_labels_come_in_any_order_and_names_in_any_script() -> None:
    page = 'vllm:num_requests_running 1.0\nvllm:lora_requests_info{waiting_lora_adapters="",engine="0",'
    page += 'running_lora_adapters="poète",model_name="m",max_lora="4"} 1.0\n'
    assert parse_metrics(page.encode()).load[0].adapters == Adapters(4, frozenset({"poète"}), frozenset())


@pytest.mark.parametrize("slots", ["", "many", "1234567890", "-1"])
def test_adapters_without_a_number_of_slots_are_unknown(slots: str) -> None:
    page = PAGE + LORAS.replace('max_lora="2"', f'max_lora="{slots}"').encode()
    assert [load.adapters for load in parse_metrics(page).load.values()] == [None, None]


@pytest.mark.parametrize(
    ("page", "counted"),
    [
        # 0.32
        (
            b"""vllm:prompt_tokens_total 100.0
vllm:prompt_tokens_cached_total 64.0
vllm:prefix_cache_queries_total 999.0
vllm:prefix_cache_hits_total 998.0
vllm:prompt_tokens_cached_by_source_total{source="host"} 7.0
vllm:prompt_tokens_created 1.7e9
vllm:prompt_tokens_cached_created 1.7e9
""",
            (100, 64),
        ),
        # older, with a connector, without one, and the oldest names
        (
            b"""vllm:prompt_tokens_total 1.0
vllm:prefix_cache_queries_total 100.0
vllm:prefix_cache_hits_total 32.0
vllm:external_prefix_cache_queries_total 68.0
vllm:external_prefix_cache_hits_total 16.0
""",
            (100, 48),
        ),
        (b"vllm:prefix_cache_queries_total 1.00003e+05\nvllm:prefix_cache_hits_total 32.0\n", (100_003, 32)),
        (b"vllm:gpu_prefix_cache_queries_total 100.0\nvllm:gpu_prefix_cache_hits_total 32.0\n", (100, 32)),
        (b"vllm:prompt_tokens_total 100.0\n", None),
    ],
)
def test_what_was_cached_is_read_as_each_version_counts_it(page: bytes, counted: tuple[int, int] | None) -> None:
    assert parse_metrics(page).counted.get(0) == counted
    assert parse_metrics(page).load == {}


def test_counters_are_told_apart_by_engine() -> None:
    page = b"".join(
        b'vllm:%b_total{engine="%d",model_name="m"} %d.0\n' % (name, engine, 100 * engine + number)
        for engine in (0, 3)
        for number, name in enumerate((b"prompt_tokens", b"prompt_tokens_cached"), start=1)
    )
    assert parse_metrics(page).counted == {0: (1, 2), 3: (301, 302)}


def test_windows_line_ends_are_read_too() -> None:
    assert parse_metrics(b"vllm:num_requests_waiting 3.0\r\nvllm:num_requests_running 1.0\r\n").load == {0: Load(3, 1)}


@asynccontextmanager
async def polling(**scripts: Any) -> AsyncIterator[tuple[Poller, ScriptedPod]]:
    async with scripted(**scripts) as pod, client() as http:
        yield Poller(PodApi(http), Poll(timeout=0.3)), pod


async def sources(told: Any, **fields: Any) -> list[EventSource]:
    """What a poller makes of what a pod tells of its event sources."""
    async with polling(sources=says(told)) as (poller, pod):
        return await poller.event_sources(PodConfig(url=pod.url, **fields))


@pytest.mark.parametrize("bound", ["*", "0.0.0.0", "[::]", "127.0.0.1"])
async def test_an_endpoint_bound_to_any_address_is_at_the_pods_host(bound: str) -> None:
    told = {"0": {"endpoint": f"tcp://{bound}:5557", "replay_endpoint": f"tcp://{bound}:5558", "topic": "kv"}}
    assert await sources(told) == [EventSource(0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558", "kv")]


async def test_an_endpoint_at_another_host_stays_there() -> None:
    told = {"0": {"endpoint": "tcp://events.local:1", "replay_endpoint": "tcp://[fd00::7]:2"}}
    assert await sources(told) == [EventSource(0, "tcp://events.local:1", "tcp://[fd00::7]:2")]


async def test_ranks_are_told_one_by_one_in_any_order() -> None:
    told: dict[str, Any] = {str(rank): {"endpoint": f"tcp://*:{6000 + rank}"} for rank in (10, 2, 0)}
    assert await sources(told) == [EventSource(rank, f"tcp://127.0.0.1:{6000 + rank}", None) for rank in (0, 2, 10)]


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"0": {}},
        {"0": {"endpoint": None, "replay_endpoint": "tcp://*:1"}},
        {"0": {"endpoint": "ipc:///tmp/events"}},
        {"0": {"endpoint": "inproc://events"}},
        {"0": {"endpoint": "tcp://*:*"}},
        {"0": {"endpoint": ""}},
        [],
        {"zero": {"endpoint": "tcp://*:1"}},
        "disabled",
    ],
)
async def test_a_pod_without_an_endpoint_that_can_be_reached_has_no_stream(told: Any) -> None:
    assert await sources(told) == []


async def test_a_replay_endpoint_that_cannot_be_reached_leaves_the_stream() -> None:
    told = {"0": {"endpoint": "tcp://*:1", "replay_endpoint": "ipc:///tmp/replay"}}
    assert await sources(told) == [EventSource(0, "tcp://127.0.0.1:1", None)]


async def test_what_is_configured_is_not_asked_for() -> None:
    configured = {"kv_events": "tcp://*:100", "kv_replay": "tcp://10.0.0.9:200", "data_parallel_size": 2}
    assert await sources({"0": {"endpoint": "tcp://*:1"}}, **configured) == [
        EventSource(0, "tcp://127.0.0.1:100", "tcp://10.0.0.9:200"),
        EventSource(1, "tcp://127.0.0.1:101", "tcp://10.0.0.9:201"),
    ]
    assert await sources({}, kv_events="tcp://h:100") == [EventSource(0, "tcp://h:100", None)]


async def test_the_host_of_an_ipv6_pod_keeps_its_brackets() -> None:
    async with client() as http:
        poller = Poller(PodApi(http), Poll())
        spec = PodConfig(url="http://[fd00::1]:8000", kv_events="tcp://*:5557", kv_replay="tcp://[::]:5558")
        assert await poller.event_sources(spec) == [EventSource(0, "tcp://[fd00::1]:5557", "tcp://[fd00::1]:5558")]


async def test_a_pod_that_cannot_tell_its_sources_has_none() -> None:
    async with polling() as (poller, pod):
        assert await poller.event_sources(PodConfig(url=pod.url)) == []


async def test_a_pod_that_fails_while_it_tells_its_sources_is_asked_again_later() -> None:
    async with polling(sources=says({}, 503)) as (poller, pod):
        with pytest.raises(PodUnavailable):
            await poller.event_sources(PodConfig(url=pod.url))


async def test_base_models_are_aliases_and_adapters_are_not() -> None:
    cards = models(
        {"id": "org/base", "parent": None}, {"id": "base"}, {"id": "poet", "parent": "org/base", "root": "/x"}
    )
    async with polling(models=says(cards)) as (poller, pod):
        found = await poller.models(pod.url)
    assert {name: (model.namespace, model.adapter) for name, model in found.items()} == {
        "org/base": ("org/base", False),
        "base": ("org/base", False),
        "poet": ("poet", True),
    }
    assert b'"root": "/x"' in found["poet"].card


@pytest.mark.parametrize("body", ["text", {"data": 1}, {"data": [{}]}, {"data": [5]}, {}])
async def test_a_list_of_models_that_is_none_is_refused(body: Any) -> None:
    async with polling(models=says(body)) as (poller, pod):
        with pytest.raises(PodRejected, match="unexpected answer"):
            await poller.models(pod.url)


async def test_a_pod_that_serves_no_model_is_possible() -> None:
    async with polling(models=says(models())) as (poller, pod):
        assert await poller.models(pod.url) == {}


async def test_health_is_what_the_pod_says() -> None:
    async with polling() as (poller, pod):
        await poller.health(pod.url)
        pod.scripts["/health"] = says({}, 503)
        with pytest.raises(PodUnavailable, match="answered 503"):
            await poller.health(pod.url)
        pod.scripts["/health"] = says({}, 404)
        with pytest.raises(PodRejected, match="answered 404"):
            await poller.health(pod.url)
        pod.scripts["/health"] = never
        with pytest.raises(PodTimeout, match="no answer within the deadline"):
            await poller.health(pod.url)
    async with client() as http:
        with pytest.raises(PodUnreachable):
            await Poller(PodApi(http), Poll()).health(pod.url)


async def test_metrics_are_polled_under_the_deadline() -> None:
    async with polling(metrics=page(PAGE)) as (poller, pod):
        assert (await poller.metrics(pod.url)).load[0].waiting == 12
        pod.scripts["/metrics"] = never
        with pytest.raises(PodTimeout):
            await poller.metrics(pod.url)
