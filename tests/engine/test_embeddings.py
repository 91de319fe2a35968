"""What is to be embedded has here the ids that a real pooling pod has: its own events and counters say so."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.environment import EngineEnvironment
from tests.engine.front import Gateway, in_front_of, metric, until
from tests.engine.pods import Pod
from tests.engine.test_tokens import asked

pytestmark = pytest.mark.engine

PATH = "/v1/embeddings"
BLOCK = 32
LONG = "import os, sys, json\n" * 40
TURNS = [{"role": "system", "content": LONG}, {"role": "user", "content": "Zażółć gęślą jaźń 你好 🙂"}]
ASKS: dict[str, dict[str, Any]] = {
    "a text": {"input": "def main():\n    pass\n" * 30},
    "unicode": {"input": "Zażółć gęślą jaźń 你好、世界 🙂👩‍💻 é\n" * 8},
    "special tokens in a text": {"input": "<|user|>Hello there<|end|>" * 20},
    "without special tokens": {"input": "class A:\n" * 40, "add_special_tokens": False},
    "ids": {"input": list(range(300, 400))},
    "a conversation": {"messages": TURNS},
    "a conversation that goes on": {"messages": TURNS, "add_generation_prompt": True},
    "a conversation as the input": {"input": [{"role": "user", "content": LONG + "x"}]},
    "arguments of the template": {"messages": TURNS[::-1], "chat_template_kwargs": {"enable_thinking": False}},
}


@pytest.fixture(scope="module")
def pooling(engine: EngineEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    with Pod(engine, tmp_path_factory.mktemp("pooling"), extra=("--runner", "pooling", "--convert", "embed")) as pod:
        yield pod


@pytest.fixture(scope="module")
def served(pooling: Pod, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with in_front_of([pooling], tmp_path_factory.mktemp("gateway")) as gateway:
        until(lambda: gateway.get("/ready")["tokens"] == {pooling.model: "local"}, 30, "the model is tokenized here")
        yield gateway


def hits(pod: Pod) -> float:
    """Prompt tokens that it did not compute: found on the device, and from there on in the CPU tier."""
    return metric(pod.url, "vllm:prefix_cache_hits_total{") + metric(pod.url, "vllm:external_prefix_cache_hits_total{")


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_what_is_embedded_is_found_again_where_it_was(served: Gateway, pooling: Pod, ask: dict[str, Any]) -> None:
    body = {"model": pooling.model, **ask}
    status, headers, answer = asked(served.url, PATH, body)
    assert status == 200, answer
    explained = served.explain(body, PATH)
    assert explained["tokens"] == answer["usage"]["prompt_tokens"] > 2 * BLOCK
    assert explained["tokens_from"] == ("given" if ask.get("input") == ASKS["ids"]["input"] else "local")
    assert explained["source_reason"] == "endpoint"
    assert "x-gateway-kv-source" not in headers
    # The pod's events name the ids of what it computed: all full blocks are found only if ours are the same.
    served.wait_until_cached(body, pooling, explained["tokens"] // BLOCK * BLOCK, PATH)
    predicted = served.explain(body, PATH)["predicted_cached_tokens"]
    before = hits(pooling)
    asked(served.url, PATH, body)
    assert hits(pooling) - before == predicted >= 2 * BLOCK
    assert metric(served.url, "p2p_gateway_token_mismatches_total") == 0


def test_a_batch_is_counted_as_its_prompts(served: Gateway, pooling: Pod) -> None:
    body = {"model": pooling.model, "input": ["one", "two texts", "three"]}
    _, _, answer = asked(served.url, PATH, body)
    assert served.explain(body, PATH)["tokens"] == answer["usage"]["prompt_tokens"]
