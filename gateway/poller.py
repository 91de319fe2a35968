"""Watching one pod over HTTP: is it alive, what does it serve, where are its events, how loaded is it.

The exposition text is read with one regular expression for the few names used here: a vLLM pod's page is some 100 KB,
and a full parse of it once a second for a hundred pods would take cores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from config.addresses import join_address, tcp_address
from config.schema import PodConfig, Poll
from gateway.errors import PodRejected
from gateway.pod import Adapters, Load, Model
from gateway.progress import Work
from gateway.pull_counters import parse_cache_info
from gateway.upstream import PodApi, decoded
from index import Counted

_NUMBER = rb"(\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?)(?=\s|\Z)"  # finite and not negative; anything else says nothing
# Prompt tokens, and in one or two parts what of them was cached. vLLM counts both with the first token; older ones when
# the cache is asked; the oldest so too, under names that spoke of the GPU, and at first in blocks, which match nothing.
_COUNTERS = (
    ("prompt_tokens_total", "prompt_tokens_cached_total", ""),
    ("prefix_cache_queries_total", "prefix_cache_hits_total", "external_prefix_cache_hits_total"),
    ("gpu_prefix_cache_queries_total", "gpu_prefix_cache_hits_total", ""),
)
_GAUGES = ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc")
# Of these families one series is of interest, which may be missing while it would be 0: of those that wait, who waits
# for KV blocks; of what came from peers, tokens, and bytes where the pod does not count these.
_LABELLED = {
    b"num_requests_waiting_by_reason": (re.compile(rb'\breason="deferred"'), "deferred"),
    b"prompt_tokens_cached_by_source_total": (re.compile(rb'\bsource="p2p"'), "pulled_tokens"),
    b"kv_offload_tiering_read_bytes_total": (re.compile(rb'\btier="\d+:[^"]*(?i:p2p)[^"]*"'), "pulled_bytes"),
}
_ADAPTERS = b"lora_requests_info"  # its labels say it, a series for each state there was; its value is when that was
_READ = [*_GAUGES, "generation_tokens_total", *filter(None, chain(*_COUNTERS))]
_SAMPLE = re.compile(
    rb"^vllm:(%b|%b)(?:\{([^}\n]*)\})? %b" % ("|".join(_READ).encode(), b"|".join((*_LABELLED, _ADAPTERS)), _NUMBER),
    re.MULTILINE,
)
_RELEASE = re.compile(r"\d+\.\d+")
_ENGINE = re.compile(rb'engine="(\d{1,9})"')
_SLOTS = re.compile(rb'\bmax_lora="(\d{1,9})"')
_RUNNING, _WAITING = (re.compile(rb'\b%b_lora_adapters="([^"]*)"' % kind) for kind in (b"running", b"waiting"))
_STARTED = re.compile(rb"^process_start_time_seconds %b" % _NUMBER, re.MULTILINE)
# Ids any vocabulary has, enough of them for a block of any usual size.
_PROBE = [100 + i % 300 for i in range(272)]
_PROBE_S = 60.0  # a pod that has just started compiles first


class Metrics(NamedTuple):
    """What is used of a pod's /metrics."""

    load: dict[int, Load]
    started: float | None
    counted: dict[int, Counted]
    work: dict[int, Work]
    pulled: dict[int, float]
    """What came from peers so far, in tokens or in bytes."""


class EventSource(NamedTuple):
    """One rank's endpoints, as this gateway reaches them."""

    rank: int
    events: str
    replay: str | None
    topic: str = ""


class _Version(Struct):
    version: str = ""


class _ModelCard(Struct):
    id: str
    parent: str | None = None
    root: str | None = None


class _ModelList(Struct):
    data: list[Raw]


class _SourceInfo(Struct):
    endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: str = ""


class Poller:
    """Asks pods. Every call has the deadline `poll.timeout` and raises PodError."""

    def __init__(self, api: PodApi, poll: Poll) -> None:
        self._api = api
        self._timeout = poll.timeout

    def reconfigure(self, poll: Poll) -> None:
        """Calls from now on have this deadline."""
        self._timeout = poll.timeout

    async def health(self, url: str) -> None:
        """Return if the pod's engine is alive."""
        await self._get(url, "/health")

    async def metrics(self, url: str) -> Metrics:
        """The load and the counters per rank, and when the process started."""
        return parse_metrics(await self._get(url, "/metrics"))

    async def models(self, url: str) -> dict[str, Model]:
        """What the pod serves. An adapter's card names its base as parent; several base ids are aliases of one."""
        raw: list[Raw] = decoded(await self._get(url, "/v1/models"), _ModelList, url).data
        cards: list[_ModelCard] = [decoded(card, _ModelCard, url) for card in raw]
        base = next((card.id for card in cards if not card.parent), "")
        return {
            card.id: Model(card.id, card.id, bytes(json), adapter=True)
            if card.parent
            else Model(card.id, base, bytes(json), root=card.root or "")
            for card, json in zip(cards, raw, strict=True)
        }

    async def identity(self, url: str, models: Mapping[str, Model]) -> dict[str, object]:
        """What a pod says of itself that its peers must have in common with it to pull from it.

        That is all of `/kv/identity`, where it is there, each fact under its own name. Else nothing but what the pod
        was started with as its model, and the version, without what changes from one release of it to the next.
        """
        facts: dict[str, object] = {}
        root = next((model.root for model in models.values() if not model.adapter), "")
        if root:
            facts["model path"] = root
        try:
            version = decoded(await self._get(url, "/version"), _Version, url).version
            if found := _RELEASE.match(version):
                facts["version"] = found[0]
        except PodRejected:
            pass  # it is none of vLLM's
        try:
            told: dict[str, object] = decoded(await self._get(url, "/kv/identity"), dict[str, object], url)
            facts |= {name: value for name, value in told.items() if value is not None}
        except PodRejected:
            pass  # no pod has it without help
        return facts

    async def event_sources(self, spec: PodConfig) -> list[EventSource]:
        """Where the pod's events are: as configured, or as the pod says. Empty: it publishes none, or cannot tell."""
        host = spec.name.rpartition(":")[0]
        if spec.kv_events is not None:
            return [
                EventSource(r, _at(spec.kv_events, host, r), _at(spec.kv_replay, host, r) if spec.kv_replay else None)
                for r in range(spec.data_parallel_size)
            ]
        try:
            body = await self._get(spec.url.rstrip("/"), "/kv_event_sources")
            told: dict[int, _SourceInfo] = decoded(body, dict[int, _SourceInfo], spec.url)
        except PodRejected:
            return []  # before vLLM 0.32 a pod could not tell
        return [
            EventSource(rank, endpoint, _reachable(info.replay_endpoint, host), info.topic)
            for rank, info in sorted(told.items())
            if (endpoint := _reachable(info.endpoint, host))
        ]

    async def probe(self, url: str, model: str, rank: int | None) -> None:
        """Have the pod compute one small prompt, the same for every pod."""
        body = msgspec.json.encode({"model": model, "prompt": _PROBE, "max_tokens": 1, "temperature": 0})
        headers = {} if rank is None else {"x-data-parallel-rank": str(rank)}
        await self._api.post(url, "/v1/completions", body, timeout=_PROBE_S, headers=headers)

    async def _get(self, url: str, path: str) -> bytes:
        return await self._api.get(url, path, timeout=self._timeout)


def parse_metrics(page: bytes) -> Metrics:
    """O(len(page)). Ranks are vLLM's `engine` labels; a page without them speaks of rank 0."""
    values: dict[int, dict[str, float]] = {}
    told = 0.0, b""  # of adapters: when, and what
    for name, labels, value in _SAMPLE.findall(page):
        if name == _ADAPTERS:
            told = max(told, (float(value), labels))
            continue
        engine = _ENGINE.search(labels)
        of_rank = values.setdefault(int(engine[1]) if engine else 0, {})
        if name in _LABELLED:
            series, meant = _LABELLED[name]
            of_rank[meant] = of_rank.get(meant, 0.0) + (float(value) if series.search(labels) else 0.0)
            continue
        of_rank[name.decode()] = float(value)
    adapters = _adapters(told[1])
    started, cache = _STARTED.search(page), parse_cache_info(page)
    kv_tokens = (cache.block_size or 0) * (cache.gpu_blocks or 0)  # of the first rank, as large as the others
    return Metrics(
        {rank: load for rank, found in values.items() if (load := _load(found, adapters, kv_tokens)) != Load()},
        float(started[1]) if started else None,
        {rank: counted for rank, found in values.items() if (counted := _counted(found))},
        {rank: work for rank, found in values.items() if (work := _work(found)) != Work()},
        {
            rank: found.get("pulled_tokens", found.get("pulled_bytes", 0.0))
            for rank, found in values.items()
            if "pulled_tokens" in found or "pulled_bytes" in found
        },
    )


def _adapters(labels: bytes) -> Adapters | None:
    """What the labels of a series say; None where that is not how many slots there are."""
    slots = _SLOTS.search(labels)
    return None if slots is None else Adapters(int(slots[1]), _names(_RUNNING, labels), _names(_WAITING, labels))


def _names(label: re.Pattern[bytes], labels: bytes) -> frozenset[str]:
    found = label.search(labels)
    return frozenset(found[1].decode("utf-8", "replace").split(",") if found and found[1] else ())


def _load(found: Mapping[str, float], adapters: Adapters | None, kv_tokens: int) -> Load:
    waiting, running = found.get("num_requests_waiting"), found.get("num_requests_running")
    deferred = found.get("deferred")
    return Load(
        None if waiting is None else int(waiting),
        None if running is None else int(running),
        found.get("kv_cache_usage_perc"),
        adapters,
        None if deferred is None else int(deferred),
        kv_tokens,
    )


def _work(found: Mapping[str, float]) -> Work:
    running = found.get("num_requests_running")
    return Work(
        None if running is None else int(running),
        found.get("generation_tokens_total"),
        found.get("prompt_tokens_total"),
        found.get("kv_cache_usage_perc"),
    )


def _counted(found: Mapping[str, float]) -> Counted | None:
    """The first pair of counters that the page has."""
    for prompt, cached, more in _COUNTERS:
        if prompt in found and cached in found:
            return Counted(int(found[prompt]), int(found[cached] + found.get(more, 0)))
    return None


def _reachable(told: str | None, pod_host: str) -> str | None:
    """An endpoint as its pod told it → as reached; None where there is none, or none off the pod's machine (`ipc://`)."""
    try:
        return _at(told, pod_host) if told else None
    except ValueError:
        return None


def _at(endpoint: str, pod_host: str, rank: int = 0) -> str:
    """An endpoint as bound → as reached: `*` and unspecified addresses mean the pod's own host."""
    host, port = tcp_address(endpoint)
    if host in ("*", "0.0.0.0", "::"):
        host = pod_host.strip("[]")
    return f"tcp://{join_address(host, port + rank)}"
