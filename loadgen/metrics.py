"""What GET /metrics says, under vLLM's names: one series per rank, read from the engines when asked."""

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from loadgen.engine import Engine

_SOURCES: Final = ("device", "host", "p2p")
_FINISHED: Final = ("stop", "length", "abort", "error", "repetition")
# Counters by vLLM's name, and what the engines call them.
_COUNTERS: Final = {
    "vllm:prompt_tokens": "prompt tokens",
    "vllm:prompt_tokens_cached": "cached",
    "vllm:generation_tokens": "generation tokens",
    "vllm:num_preemptions": "preemptions",
}


class PodCollector:
    """Collects one pod's metrics."""

    def __init__(self, engines: Sequence[Engine], model: str, loras: Iterable[str], started: float) -> None:
        self._engines = engines
        self._model = model
        self._loras = list(loras)
        self._started = started

    def collect(self) -> Iterable[Metric]:
        """Yield every family."""
        yield GaugeMetricFamily("process_start_time_seconds", "Start time of the process.", self._started)
        yield from self._load()
        yield self._cache_config()
        for name, key in _COUNTERS.items():
            yield self._counter(name, [], {(): key})
        yield self._counter(
            "vllm:prompt_tokens_cached_by_source", ["source"], {(source,): f"cached {source}" for source in _SOURCES}
        )
        yield self._read_from_peers()
        yield self._counter(
            "vllm:request_success", ["finished_reason"], {(reason,): f"finished {reason}" for reason in _FINISHED}
        )
        if self._loras:
            labels = ["max_lora", "waiting_lora_adapters", "running_lora_adapters"]
            info = GaugeMetricFamily("vllm:lora_requests_info", "Running stats on lora requests.", labels=labels)
            info.add_metric([str(len(self._loras)), "", ",".join(self._loras)], self._started)
            yield info

    def _load(self) -> Iterable[Metric]:
        labels = ["engine", "model_name"]
        running = GaugeMetricFamily("vllm:num_requests_running", "Requests in execution batches.", labels=labels)
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Requests waiting to be processed.", labels=labels)
        by_reason = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Waiting requests by reason.", labels=[*labels, "reason"]
        )
        usage = GaugeMetricFamily("vllm:kv_cache_usage_perc", "KV-cache usage, 1 is full.", labels=labels)
        for rank, engine in enumerate(self._engines):
            values = [str(rank), self._model]
            running.add_metric(values, engine.running)
            waiting.add_metric(values, engine.waiting)
            by_reason.add_metric([*values, "capacity"], len(engine.scheduler.waiting))
            by_reason.add_metric([*values, "deferred"], len(engine.scheduler.loading))
            usage.add_metric(values, engine.scheduler.gpu.usage)
        return running, waiting, by_reason, usage

    def _cache_config(self) -> Metric:
        labels = ["block_size", "num_gpu_blocks", "enable_prefix_caching", "engine"]
        info = GaugeMetricFamily("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=labels)
        for rank, engine in enumerate(self._engines):
            info.add_metric([str(engine.profile.block_size), str(engine.profile.gpu_blocks), "True", str(rank)], 1.0)
        return info

    def _read_from_peers(self) -> Metric:
        """As vLLM's: a tier that nothing was read from has no series yet."""
        name = "vllm:kv_offload_tiering_read_bytes"
        read = CounterMetricFamily(name, "Bytes read from a tier.", labels=["engine", "model_name", "tier"])
        for rank, engine in enumerate(self._engines):
            if tokens := engine.scheduler.counts["cached p2p"]:
                read.add_metric([str(rank), self._model, "1:p2p"], tokens * engine.profile.kv_bytes_per_token)
        return read

    def _counter(self, name: str, labels: list[str], keys: dict[tuple[str, ...], str]) -> Metric:
        counter = CounterMetricFamily(name, name.partition(":")[2], labels=["engine", "model_name", *labels])
        for rank, engine in enumerate(self._engines):
            for values, key in keys.items():
                counter.add_metric([str(rank), self._model, *values], engine.scheduler.counts[key])
        return counter


def render(collector: PodCollector) -> bytes:
    """Return the collector's metrics in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
