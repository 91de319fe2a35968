"""`p2p_gateway_*`: what an operator graphs.

Counters and histograms are moved where things happen; everything that is a state (pods, index, streams) is read when
the page is scraped, so it costs nothing in between. Label values come from the configuration and from what pods serve,
never from a client, so their number is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version

from msgspec import Struct
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as LockedCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.labelled import Counter, Histogram
from gateway.pods import PodTable
from index import Publisher, RadixIndex, Tier

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
_PREDICTED_TO_ACTUAL = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
_TOKENIZATION_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_DECISION_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05)
_VERSION = version("p2p-gateway")  # read from disk, so not when a page is scraped
TIER_NAMES = {Tier.GPU: "gpu", Tier.CPU: "cpu"}


class Record(Struct):
    """What one request came to; filled while it is served, counted once when it ends."""

    started: float
    endpoint: str = "other"
    model: str = ""
    pod: str = ""
    status: int = 500
    first_byte: float | None = None
    placed: float = 0.0
    predicted_ttft: float | None = None
    attempts: int = 0
    source: str = ""
    source_reason: str = ""
    tokens_from: str = "none"
    tokens_reason: str = ""
    prompt_tokens: int | None = None
    predicted_cached: int | None = None
    reported_prompt: int | None = None
    reported_cached: int | None = None
    reported_completion: int | None = None
    broken: str = ""
    engine_error: str = ""
    rendered_once: bool = False
    key: str = ""
    queued: float | None = None


class Metrics:
    """All collectors of one gateway, in a registry of its own."""

    def __init__(self, pods: PodTable, index: RadixIndex) -> None:
        self.registry = r = CollectorRegistry()
        ns = "p2p_gateway"
        self.requests = Counter(
            f"{ns}_requests", "Requests by answer", ["endpoint", "model", "pod", "status"], registry=r
        )
        self.ttft = Histogram(
            f"{ns}_ttft_seconds",
            "From the request's arrival to the answer's first byte",
            ["model", "pull"],
            buckets=_LATENCY_S,
            registry=r,
        )
        self.ttft_error = Histogram(
            f"{ns}_ttft_error_ratio",
            "Predicted time to first token as a multiple of what it then took, both from the placement on",
            ["pull"],
            buckets=_PREDICTED_TO_ACTUAL,
            registry=r,
        )
        self.duration = Histogram(
            f"{ns}_request_duration_seconds",
            "From arrival to the answer's end",
            ["model"],
            buckets=_LATENCY_S,
            registry=r,
        )
        self.decision = Histogram(
            f"{ns}_decision_seconds", "Match, placement and source choice", buckets=_DECISION_S, registry=r
        )
        self.tokenized = Counter(
            f"{ns}_prompts", "Prompts by where their token ids came from", ["tokens_from", "reason"], registry=r
        )
        self.tokenization = Histogram(
            f"{ns}_tokenization_seconds",
            "From a prompt to its token ids",
            ["tokens_from"],
            buckets=_TOKENIZATION_S,
            registry=r,
        )
        self.reused_tokens = Counter(
            f"{ns}_reused_tokens", "Prompt tokens that came out of memory", ["tokens_from"], registry=r
        )
        self.token_mismatches = Counter(
            f"{ns}_token_mismatches",
            "Answers whose count of prompt tokens differs from what this gateway made",
            ["model", "tokens_from"],
            registry=r,
        )
        self.rendered_once = Counter(
            f"{ns}_rendered_once", "Attempts that brought their pod the prompt's token ids", ["pod"], registry=r
        )
        self.prompt_tokens = Counter(
            f"{ns}_prompt_tokens", "Prompt tokens of requests with known ids", ["pod"], registry=r
        )
        self.completion_tokens = Counter(
            f"{ns}_completion_tokens", "Completion tokens as pods reported them", ["pod"], registry=r
        )
        self.predicted = Counter(
            f"{ns}_predicted_cached_tokens",
            "Cached tokens this gateway predicted, of answers that also reported them",
            ["pod"],
            registry=r,
        )
        self.reported = Counter(
            f"{ns}_reported_cached_tokens",
            "Cached tokens pods reported, of answers with a prediction",
            ["pod"],
            registry=r,
        )
        self.mispredicted = Counter(
            f"{ns}_mispredicted_requests",
            "Answers whose reported cached tokens differ from the prediction",
            ["pod", "direction"],
            registry=r,
        )
        self.audits = Counter(
            f"{ns}_audits",
            "Spans of requests whose prediction was held against the pod's counters, by result",
            ["pod", "result"],
            registry=r,
        )
        self.filters_skipped = Counter(
            f"{ns}_filters_skipped", "Placements for which a filter would have left no pod", ["filter"], registry=r
        )
        self.scorer_faults = Counter(
            f"{ns}_scorer_faults", "Placements for which a scorer failed and counted as neutral", ["scorer"], registry=r
        )
        self.pulls = Counter(f"{ns}_pulls", "Source choice by outcome", ["outcome"], registry=r)
        self.pulled_tokens = Counter(f"{ns}_pulled_tokens", "Tokens that a named source led by", ["source"], registry=r)
        self.key_requests = Counter(
            f"{ns}_key_requests", "Requests by API key and answer", ["key", "status"], registry=r
        )
        self.refused = Counter(f"{ns}_refused", "What this gateway refused, by reason", ["reason"], registry=r)
        self.admission_waited = Histogram(
            f"{ns}_admission_waited_seconds",
            "How long requests waited that were held back and then let go",
            buckets=_LATENCY_S,
            registry=r,
        )
        self.admission_rejected = Counter(
            f"{ns}_admission_rejected",
            "Requests that could not wait, or not until pods took them",
            ["reason"],
            registry=r,
        )
        self.reloads = Counter(
            f"{ns}_file_reloads", "Changed files that were read again, by result", ["file", "result"], registry=r
        )
        self.retries = Counter(f"{ns}_retries", "Attempts that went to another pod", ["reason"], registry=r)
        self.retries_refused = Counter(
            f"{ns}_retries_refused", "Failed attempts after which no other pod was asked", ["reason"], registry=r
        )
        self.engine_errors = Counter(
            f"{ns}_engine_errors",
            "Answers with status 200 that were an engine's failure",
            ["pod", "reason"],
            registry=r,
        )
        self.broken = Counter(
            f"{ns}_broken_answers", "Answers that broke after their first byte", ["pod", "reason"], registry=r
        )
        self.events = Counter(
            f"{ns}_kv_events", "KV-cache event batches by what became of them", ["pod", "outcome"], registry=r
        )
        self.event_effects = Counter(
            f"{ns}_kv_event_effects", "Blocks and events by effect on the index", ["pod", "effect"], registry=r
        )
        self.replays = Counter(f"{ns}_kv_replays", "Replays of missed events by result", ["pod", "result"], registry=r)
        self.polls = Counter(f"{ns}_polls", "Polls of pods by result", ["pod", "result"], registry=r)
        self.task_failures = Counter(
            f"{ns}_task_failures", "Background tasks that failed unexpectedly and were restarted", ["pod"], registry=r
        )
        self.restores = Counter(
            f"{ns}_restores", "Starts from a snapshot of the index, by result", ["result"], registry=r
        )
        self.probes = Counter(
            f"{ns}_probes",
            "Probes of new pods for agreement with their peers, by result",
            ["pod", "result"],
            registry=r,
        )
        self.costs_file = Counter(
            f"{ns}_costs_file",
            "Reads and writes of the file in costs.path, by result",
            ["action", "result"],
            registry=r,
        )
        self.config_reloads = Counter(
            f"{ns}_config_reloads", "SIGHUPs, by what became of the configuration", ["result"], registry=r
        )
        self.config_loaded = Gauge(
            f"{ns}_config_loaded_timestamp_seconds", "When the configuration in force was read", registry=r
        )
        self.access_log_dropped = LockedCounter(  # counts in a thread as well
            f"{ns}_access_log_dropped_lines", "Requests whose line could not be written", registry=r
        )
        self.states = _State(pods, index)
        r.register(self.states)

    def forget(self, pod: str) -> None:
        """End every series of a pod that is not configured any more. O(series)."""
        for counter in (each for each in vars(self).values() if isinstance(each, Counter)):
            for family in counter.collect():
                for labels in [sample.labels for sample in family.samples if sample.name.endswith("_total")]:
                    if pod in (labels.get("pod"), labels.get("source")):
                        counter.remove(*(labels[name] for name in counter.names))

    def completed(self, record: Record, now: float) -> None:
        """Count a request that has ended."""
        model = record.model or "unknown"
        self.requests.labels(record.endpoint, model, record.pod, record.status).inc()
        if record.pod:
            self.duration.labels(model).observe(now - record.started)
        if record.key:
            self.key_requests.labels(record.key, record.status).inc()
        if record.first_byte is not None and record.status == 200:
            self._began(record, model, record.first_byte)
        if not record.pod:
            return
        if record.prompt_tokens is not None:
            self.prompt_tokens.labels(record.pod).inc(record.prompt_tokens)
        if record.reported_completion is not None:
            self.completion_tokens.labels(record.pod).inc(record.reported_completion)
        if record.broken:
            self.broken.labels(record.pod, record.broken).inc()
        if record.engine_error:
            self.engine_errors.labels(record.pod, record.engine_error).inc()
        if record.predicted_cached is not None and record.reported_cached is not None:
            self._compare(record.pod, record.predicted_cached, record.reported_cached)

    def _began(self, record: Record, model: str, first_byte: float) -> None:
        pull = "named" if record.source else "none"
        self.ttft.labels(model, pull).observe(first_byte - record.started)
        taken = first_byte - record.placed
        if record.predicted_ttft is not None and taken > 0 and not record.engine_error:
            self.ttft_error.labels(pull).observe(record.predicted_ttft / taken)

    def _compare(self, pod: str, predicted: int, reported: int) -> None:
        self.predicted.labels(pod).inc(predicted)
        self.reported.labels(pod).inc(reported)
        if predicted != reported:
            self.mispredicted.labels(pod, "over" if predicted > reported else "under").inc()


class _State(Collector):
    """Gauges read at scrape time. O(pods)."""

    def __init__(self, pods: PodTable, index: RadixIndex) -> None:
        self._pods = pods
        self._index = index
        self.resent: Callable[[], int] = int  # who counts them; until then nobody, 0
        self.lost_lines: Callable[[], int] = int
        self.waiting: Callable[[], int] = int
        self.slow_links: Callable[[], int] = int
        self.local_models: Callable[[], Iterable[tuple[str, bool]]] = tuple
        self.asks_for_tokens: Callable[[str], bool] = lambda _: True

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("p2p_gateway_build_info", "Always 1", labels=["version"])
        build.add_metric([_VERSION], 1)
        yield build
        yield from self._per_pod()
        yield from self._per_stream()
        here = GaugeMetricFamily(
            "p2p_gateway_model_tokenized_here", "1 while a model's prompts are tokenized here", labels=["model"]
        )
        for model, is_here in self.local_models():
            here.add_metric([model], is_here)
        yield here
        stats = self._index.stats()
        for name, text, value in (
            ("nodes", "Runs of blocks in the radix tree", stats.nodes),
            ("orphans", "Blocks put aside until their parent is known", stats.orphans),
            ("placeholders", "Blocks put aside until their content is known", stats.placeholders),
        ):
            yield GaugeMetricFamily(f"p2p_gateway_index_{name}", text, value=value)
        yield CounterMetricFamily(
            "p2p_gateway_resent_requests",
            "Requests sent again to their pod since it closed the idle connection they went out on",
            value=self.resent(),
        )
        yield GaugeMetricFamily(
            "p2p_gateway_admission_queue", "Requests held back until pods take them", value=self.waiting()
        )
        yield GaugeMetricFamily(
            "p2p_gateway_slow_links", "Pairs whose pulls take much longer than they did", value=self.slow_links()
        )
        yield CounterMetricFamily(
            "p2p_gateway_log_lost_lines", "Lines of the log that could not be written", value=self.lost_lines()
        )
        yield CounterMetricFamily(
            "p2p_gateway_index_evicted_blocks", "Blocks forgotten to stay within index.max_blocks", value=stats.evicted
        )

    def _per_pod(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("p2p_gateway_pod_ready", "1 while the pod can serve", labels=["pod"])
        breaker = GaugeMetricFamily(
            "p2p_gateway_pod_breaker_open", "1 while the pod is left out for failed requests", labels=["pod"]
        )
        stalled = GaugeMetricFamily(
            "p2p_gateway_pod_stalled", "1 while the pod computes without progress, as it says", labels=["pod"]
        )
        strangers = GaugeMetricFamily(
            "p2p_gateway_pod_disagreements", "Peers that the pod can never pull from, nor they from it", labels=["pod"]
        )
        silent = GaugeMetricFamily(
            "p2p_gateway_pod_tokenizer_breaker_open", "1 while the pod is not asked for token ids", labels=["pod"]
        )
        takes = GaugeMetricFamily(
            "p2p_gateway_pod_takes_token_ids", "1 while the pod takes a chat's token ids", labels=["pod"]
        )
        requests = GaugeMetricFamily("p2p_gateway_in_flight_requests", "Requests under way", labels=["pod", "rank"])
        tokens = GaugeMetricFamily(
            "p2p_gateway_in_flight_tokens", "Uncached prompt tokens that have not answered yet", labels=["pod", "rank"]
        )
        pulls = GaugeMetricFamily(
            "p2p_gateway_in_flight_pulls",
            "Requests that have not answered yet and pull: to the pod (in), from it (out)",
            labels=["pod", "rank", "direction"],
        )
        now = self._pods.clock()
        for pod in self._pods:
            up.add_metric([pod.name], pod.state == "ready")
            stalled.add_metric([pod.name], pod.stalled)
            silent.add_metric([pod.name], not self.asks_for_tokens(pod.name))
            takes.add_metric([pod.name], pod.takes_token_ids)
            strangers.add_metric([pod.name], len(self._pods.agreement.of(pod.name)))
            breaker.add_metric([pod.name], pod.breaker.state(now) != "closed")
            for rank, counts in pod.in_flight.items():
                requests.add_metric([pod.name, str(rank)], counts.requests)
                tokens.add_metric([pod.name, str(rank)], counts.tokens)
                pulls.add_metric([pod.name, str(rank), "in"], counts.pulls)
                pulls.add_metric([pod.name, str(rank), "out"], counts.serving)
        yield from (up, breaker, stalled, strangers, silent, takes, requests, tokens, pulls)

    def _per_stream(self) -> Iterator[Metric]:
        blocks = GaugeMetricFamily("p2p_gateway_index_blocks", "Blocks held, by tier", labels=["pod", "rank", "tier"])
        prefill = GaugeMetricFamily(
            "p2p_gateway_prefill_seconds_per_token",
            "What a token of a prompt is believed to take, by what prompts there took",
            labels=["pod", "rank"],
        )
        age = GaugeMetricFamily("p2p_gateway_kv_event_age_seconds", "Since the last event", labels=["pod", "rank"])
        certain = GaugeMetricFamily(
            "p2p_gateway_kv_stream_certain", "1 while no event is known to be missing", labels=["pod", "rank"]
        )
        credit = GaugeMetricFamily(
            "p2p_gateway_pod_credit", "Factor at which what the pod is said to hold counts", labels=["pod", "rank"]
        )
        gaps = CounterMetricFamily("p2p_gateway_kv_gaps", "Gaps in the sequence of events", labels=["pod", "rank"])
        restarts = CounterMetricFamily(
            "p2p_gateway_kv_restarts", "Engine restarts seen in the sequence", labels=["pod", "rank"]
        )
        now = time.monotonic()
        for pod in self._pods:
            for rank in pod.ranks:
                for tier, count in self._index.blocks(Publisher(pod.name, rank)).items():
                    blocks.add_metric([pod.name, str(rank), TIER_NAMES[tier]], count)
                prefill.add_metric([pod.name, str(rank)], self._pods.costs.prefill((pod.url, rank)).token)
            for rank, stream in pod.streams.items():
                labels = [pod.name, str(rank)]
                if stream.last_event_at is not None:
                    age.add_metric(labels, now - stream.last_event_at)
                certain.add_metric(labels, stream.certain)
                credit.add_metric(labels, stream.trust.credit(now))
                gaps.add_metric(labels, stream.gaps)
                restarts.add_metric(labels, stream.restarts)
        yield from (blocks, prefill, age, certain, credit, gaps, restarts)
