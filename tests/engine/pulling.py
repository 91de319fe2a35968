"""Pulls between two real pods, asked for directly: what a gateway names on a request, without a gateway."""

import json
import random
import statistics
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.engine.front import metric, until
from tests.engine.pods import Pod

BLOCK_TOKENS = 32
TOKEN_BYTES = 4 * 2 * 2 * 64 * 2
"""Of KV cache, with the model of model.py: layers, keys and values, heads, head size, bytes of a bfloat16."""

_PATIENCE_S = 60.0


class Answer(NamedTuple):
    """A streamed completion: seconds to the first token, text, cached tokens as reported."""

    ttft: float
    text: str
    cached: int


def fresh_ids(seed: object, length: int) -> list[int]:
    rng = random.Random(repr(seed))
    return [rng.randrange(300, 4000) for _ in range(length)]


def ask(pod: Pod, prompt: list[int], source: tuple[str, int] | Pod | None = None, **source_fields: object) -> Answer:
    """Complete the prompt, greedily, with the source named on the request."""
    if source is None:
        return complete(pod, prompt, {})
    host, port = (source.parameters.host, source.parameters.p2p_port) if isinstance(source, Pod) else source
    named = {"kv_request_id": str(uuid.uuid4()), "remote_host": host, "remote_port": port, **source_fields}
    return complete(pod, prompt, {"kv_transfer_params": {"remote_kv_source": named}})


def complete(pod: Pod, prompt: list[int], more: dict[str, object]) -> Answer:
    """Complete the prompt, greedily, with further fields in the body."""
    body: dict[str, Any] = {
        "model": pod.model,
        "prompt": prompt,
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    request = urllib.request.Request(
        f"{pod.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    began, first, text, cached = time.monotonic(), 0.0, "", 0
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as lines:
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            first = first or time.monotonic()
            chunk = json.loads(line.removeprefix(b"data: "))
            assert "error" not in chunk, chunk
            text += "".join(choice["text"] for choice in chunk["choices"])
            if chunk.get("usage"):
                cached = (chunk["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    assert first, "no token came"
    return Answer(first - began, text, cached)


def computed(pod: Pod, prompt: list[int]) -> str:
    """Have a pod compute a prompt and keep it in its CPU tier; returns its answer."""
    stored = _stored_bytes(pod)
    size = len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS * TOKEN_BYTES
    answer = ask(pod, prompt)
    assert answer.cached == 0, "the prompt is not fresh"
    until(lambda: _stored_bytes(pod) - stored >= size, 10, "the prompt in the CPU tier")
    return answer.text


def recompute_s(pod: Pod, seed: object, length: int, rounds: int = 3) -> float:
    """What a prompt of this length costs the pod now: the median of fresh ones."""
    return statistics.median(ask(pod, fresh_ids(("recompute", seed, number), length)).ttft for number in range(rounds))


def counted(pod: Pod, name: str, label: str = "") -> float:
    """A number of the pod's metrics page, summed over its series."""
    return metric(pod.url, name + "{", label)


def _stored_bytes(pod: Pod) -> float:
    return metric(pod.url, "vllm:kv_offload_store_bytes_total{")


@contextmanager
def stopped_at(where: str, source: Pod, stop_at: Path) -> Iterator[None]:
    """A source with a stopping tier (see `stopping_tier`) stops there, for as long as the block lasts."""
    stop_at.write_text(where)
    try:
        yield
        assert not stop_at.exists(), f"the source never came to {where}"
    finally:
        stop_at.unlink(missing_ok=True)
        source.resume()
