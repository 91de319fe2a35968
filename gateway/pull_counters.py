"""What a pod's /metrics says of its pulls, of its load and of its cache: pure.

`prompt_tokens_cached_by_source_total{source="p2p"}` and `kv_offload_tiering_read_bytes_total{tier="N:p2p"}` are the
ground truth of a pull: counted by the consumer, whatever anybody predicted. Ranks are added up.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_NUMBER: Final = rb"(\d+(?:\.\d+)?(?:[eE][+-]?\d{1,2})?)(?=\s|\Z)"
_SUMMED: Final = (
    "num_requests_running",
    "num_requests_waiting",
    "prompt_tokens_total",
    "prompt_tokens_cached_by_source_total",
    "kv_offload_tiering_read_bytes_total",
    "kv_offload_tiering_read_time_total",
)
_SAMPLE: Final = re.compile(rb"^vllm:(%b)(?:\{([^}\n]*)\})? %b" % ("|".join(_SUMMED).encode(), _NUMBER), re.MULTILINE)
# Only these series of a counter speak of pulls. The number is the tier's place behind the CPU tier.
_OF_PULLS: Final = {
    b"prompt_tokens_cached_by_source_total": re.compile(rb'\bsource="p2p"'),
    b"kv_offload_tiering_read_bytes_total": re.compile(rb'\btier="\d+:[^"]*(?i:p2p)[^"]*"'),
    b"kv_offload_tiering_read_time_total": re.compile(rb'\btier="\d+:[^"]*(?i:p2p)[^"]*"'),
}
_CACHE: Final = re.compile(rb"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_BLOCK_SIZE: Final = re.compile(rb'\bblock_size="(\d{1,9})"')
_GPU_BLOCKS: Final = re.compile(rb'\bnum_gpu_blocks="(\d{1,12})"')


class Counters(NamedTuple):
    """Of a pod, all ranks together; None: the page has no such series, which may come with the first pull."""

    running: int = 0
    waiting: int = 0
    prompt_tokens: float | None = None
    pulled_tokens: float | None = None
    pulled_bytes: float | None = None
    pull_seconds: float | None = None


class CacheInfo(NamedTuple):
    """Of the first rank: tokens per block, and blocks of its GPU tier; None: not told."""

    block_size: int | None = None
    gpu_blocks: int | None = None


class Moved(NamedTuple):
    """What pulls brought a pod between two looks; None: it does not count that."""

    tokens: float | None
    bytes: float | None
    seconds: float | None

    @property
    def anything(self) -> bool:
        """Whether a counter moved."""
        return bool(self.tokens or self.bytes)

    @property
    def counted(self) -> bool:
        """Whether the pod counts pulls at all."""
        return self.tokens is not None or self.bytes is not None


def parse_counters(page: bytes) -> Counters:
    """O(len(page))."""
    found: dict[bytes, float] = {}
    for name, labels, value in _SAMPLE.findall(page):
        of_pulls = _OF_PULLS.get(name)
        if of_pulls is None or of_pulls.search(labels):
            found[name] = found.get(name, 0.0) + float(value)
    return Counters(
        int(found.get(b"num_requests_running", 0)),
        int(found.get(b"num_requests_waiting", 0)),
        found.get(b"prompt_tokens_total"),
        found.get(b"prompt_tokens_cached_by_source_total"),
        found.get(b"kv_offload_tiering_read_bytes_total"),
        found.get(b"kv_offload_tiering_read_time_total"),
    )


def parse_cache_info(page: bytes) -> CacheInfo:
    """O(len(page))."""
    labels = _CACHE.search(page)
    if labels is None:
        return CacheInfo()
    size, blocks = _BLOCK_SIZE.search(labels[1]), _GPU_BLOCKS.search(labels[1])
    return CacheInfo(int(size[1]) if size else None, int(blocks[1]) if blocks else None)


def moved(before: Counters, after: Counters) -> Moved:
    """What pulls brought between the two. A series that is new began at 0."""
    return Moved(
        _grown(before.pulled_tokens, after.pulled_tokens),
        _grown(before.pulled_bytes, after.pulled_bytes),
        _grown(before.pull_seconds, after.pull_seconds),
    )


def _grown(before: float | None, after: float | None) -> float | None:
    return None if after is None else after - (before or 0.0)
