"""From an OpenAI client to two real vLLM pods: the pull happens, is right, is quicker, and is known beforehand."""

import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from openai import OpenAI

from tests.engine.front import Gateway, metric, until
from tests.engine.pods import Pod

pytestmark = pytest.mark.engine

PROMPT_TOKENS = 4000
TIMED_TOKENS = 8000  # computing grows faster than pulling does, and machines differ in what 4,000 cost
ROUNDS = 9  # at least, of each: what shares the machine moves single times by a factor
MAX_DRAWS = 60
PROBE_TOKENS = 272  # what the gateway has a pod compute that comes up


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def a(pods: tuple[Pod, ...]) -> Pod:
    return pods[0]


@pytest.fixture
def b(pods: tuple[Pod, ...]) -> Pod:
    return pods[1]


@contextmanager
def direct(pod: Pod) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{pod.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@contextmanager
def busy(pod: Pod, gateway: Gateway) -> Iterator[None]:
    """Keep one long generation running on the pod, past the gateway, so that load-first placement avoids it."""
    ended = threading.Event()

    def keep_running() -> None:
        with direct(pod) as engine:
            while not ended.is_set():
                stream = engine.completions.create(
                    model=pod.model, prompt=[7] * 64, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
                )
                with stream:
                    for _ in stream:
                        if ended.is_set():
                            break

    thread = threading.Thread(target=keep_running)
    thread.start()
    try:
        until(lambda: (gateway.pod(pod)["kv_usage"] or 0) > 0, 20, "load of the busy pod seen")
        yield
    finally:
        ended.set()
        thread.join()
        until(lambda: gateway.pod(pod)["running"] == 0, 20, "end of the busy pod's load seen")


def fresh_ids(seed: object, length: int = PROMPT_TOKENS) -> list[int]:
    rng = random.Random(repr(seed))
    return [rng.randrange(300, 4000) for _ in range(length)]


def pulled_tokens(pod: Pod) -> float:
    """What the pod's engine counted as pulled from peers."""
    return metric(pod.url, "vllm:prompt_tokens_cached_by_source_total{", 'source="p2p"')


def timed(client: OpenAI, model: str, prompt: list[int]) -> tuple[float, dict[str, str], str, int]:
    """One streamed completion: TTFT in seconds, headers, text, cached tokens as reported."""
    began, first, text, cached = time.monotonic(), 0.0, "", -1
    answer = client.completions.with_raw_response.create(
        model=model,
        prompt=prompt,
        max_tokens=16,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    with answer.parse() as stream:
        for chunk in stream:
            first = first or time.monotonic()
            text += "".join(choice.text for choice in chunk.choices)
            if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
                cached = chunk.usage.prompt_tokens_details.cached_tokens or 0
    return first - began, dict(answer.headers), text, cached


def timed_on(pod: Pod, gateway: Gateway, client: OpenAI, prompt: list[int]) -> tuple[float, dict[str, str], str, int]:
    """As `timed`, of a request that the load sends to the pod.

    The generation that keeps the other one busy ends now and then, and the next begins: a request that falls into the
    moment between may go to either. It changes nothing on this pod, so it is sent again.
    """
    for _ in range(MAX_DRAWS):
        gateway.wait_until_preferred({"model": pod.model, "prompt": prompt}, pod)
        answer = timed(client, pod.model, prompt)
        if answer[1]["x-gateway-pod"] == pod.url:
            return answer
    raise AssertionError(f"no request went to {pod.url}")


def compute_on(pod: Pod, prompt: list[int]) -> str:
    """Greedy answer of a pod, asked past the gateway."""
    with direct(pod) as engine:
        answer = engine.completions.create(
            model=pod.model, prompt=prompt, max_tokens=16, temperature=0, extra_body={"ignore_eos": True}
        )
    return answer.choices[0].text


def computed_at(pod: Pod, gateway: Gateway, prompt: list[int]) -> str:
    """Have a pod compute a prompt, past the gateway, until its events have told so; returns its greedy answer."""
    answer = compute_on(pod, prompt)
    gateway.wait_until_cached({"model": pod.model, "prompt": prompt}, pod, len(prompt) // 32 * 32)
    return answer


def test_a_prompt_of_a_busy_pod_is_placed_on_its_peer_which_pulls(
    client: OpenAI, gateway: Gateway, a: Pod, b: Pod
) -> None:
    prompt = fresh_ids("busy")
    body = {"model": a.model, "prompt": prompt}
    expected = computed_at(a, gateway, prompt)
    with busy(a, gateway):
        explained = gateway.wait_until_preferred(body, b)
        before = pulled_tokens(b)
        _, headers, text, cached = timed_on(b, gateway, client, prompt)
    assert (explained["chosen"], explained["source"]["pod"]) == (b.url, a.url)
    assert (headers["x-gateway-pod"], headers["x-gateway-kv-source"]) == (b.url, a.url)
    assert pulled_tokens(b) - before >= 3900
    assert text == expected
    assert cached == explained["predicted_cached_tokens"] >= 3900


def test_a_pull_is_at_least_twice_as_quick_as_computing(client: OpenAI, gateway: Gateway, a: Pod, b: Pod) -> None:
    """Between equally idle pods the draw decides who gets a request; what fell to A is not what is measured."""
    pulls: list[float] = []
    recomputes: list[float] = []
    named = gateway.metric('p2p_gateway_pulls_total{outcome="named"}')
    for number in range(MAX_DRAWS):
        prompt = fresh_ids(("pull", number), TIMED_TOKENS)
        expected = computed_at(a, gateway, prompt)
        ttft, headers, text, cached = timed(client, a.model, prompt)
        assert text == expected
        if headers["x-gateway-pod"] == b.url:
            assert headers["x-gateway-kv-source"] == a.url
            assert cached >= TIMED_TOKENS - 100
            pulls.append(ttft)
        ttft, headers, _, cached = timed(client, a.model, fresh_ids(("control", number), TIMED_TOKENS))
        assert "x-gateway-kv-source" not in headers
        assert cached == 0
        if headers["x-gateway-pod"] == b.url:
            recomputes.append(ttft)
        if min(len(pulls), len(recomputes)) >= ROUNDS:
            break
    pull, recompute = statistics.median(pulls), statistics.median(recomputes)
    print(f"\n{TIMED_TOKENS} tokens: pull {pull:.3f} s, computed {recompute:.3f} s")
    assert min(len(pulls), len(recomputes)) >= ROUNDS
    assert pull <= recompute / 2
    assert gateway.metric('p2p_gateway_pulls_total{outcome="named"}') - named == len(pulls)
    assert gateway.metric("p2p_gateway_mispredicted_requests_total") == 0


def test_the_next_turn_pulls_what_was_generated_too(client: OpenAI, gateway: Gateway, a: Pod, b: Pod) -> None:
    prompt = fresh_ids("first turn", 1000)
    generated = 200
    with direct(a) as engine:
        first = engine.completions.create(
            model=a.model,
            prompt=prompt,
            max_tokens=generated,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
    ids = first.choices[0].token_ids  # type: ignore[attr-defined]  # vLLM's extension
    assert len(ids) == generated
    turn = [*prompt, *ids, *fresh_ids("question", 50)]
    # The last generated token was never input, so its KV does not exist; neither does a part of a block.
    pullable = (len(prompt) + generated - 1) // 32 * 32
    body = {"model": a.model, "prompt": turn}
    gateway.wait_until_cached(body, a, pullable)
    expected = compute_on(a, turn)
    with busy(a, gateway):
        before = pulled_tokens(b)
        _, headers, text, cached = timed_on(b, gateway, client, turn)
    assert headers["x-gateway-kv-source"] == a.url
    assert cached >= pullable > len(prompt)
    assert pulled_tokens(b) - before >= pullable
    assert text == expected


@pytest.mark.parametrize("stream", [False, True], ids=["json", "streamed"])
@pytest.mark.parametrize("kind", ["chat", "completion", "ids", "batch"])
def test_the_openai_client_is_served(client: OpenAI, a: Pod, kind: str, stream: bool) -> None:
    asked: dict[str, Any] = {"model": a.model, "max_tokens": 8, "temperature": 0, "stream": stream}
    if stream:
        asked["stream_options"] = {"include_usage": True}
    asked["extra_body"] = {"ignore_eos": True}
    if kind == "chat":
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "import os"}]
        answer: Any = client.chat.completions.create(messages=messages, **asked)
    else:
        prompts = {"completion": "def main():", "ids": fresh_ids("ids", 40), "batch": ["import sys", "class A:"]}
        answer = client.completions.create(prompt=prompts[kind], **asked)
    chunks = list(answer) if stream else [answer]
    assert chunks[-1].usage.completion_tokens == (16 if kind == "batch" else 8)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert {choice.index for choice in choices} == ({0, 1} if kind == "batch" else {0})
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"] * len(
        {choice.index for choice in choices}
    )


def test_a_chat_is_tokenized_as_the_engine_does(client: OpenAI, gateway: Gateway, a: Pod, words: list[str]) -> None:
    until(lambda: gateway.get("/ready")["tokens"] == {a.model: "local"}, 30, "the model is tokenized here")
    rng = random.Random(5)
    messages = [{"role": "user", "content": " ".join(rng.choice(words) for _ in range(600))}]
    tool = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
    before = gateway.metric("p2p_gateway_mispredicted_requests_total")
    for extra in ({}, {"tools": [tool], "tool_choice": "none"}):
        body: dict[str, Any] = {"model": a.model, "messages": messages, "max_tokens": 4, "temperature": 0, **extra}
        answer: Any = client.chat.completions.create(**body)
        explained = gateway.explain(body)
        assert explained["tokens_from"] == "local"
        assert explained["tokens"] == answer.usage.prompt_tokens
    assert gateway.metric("p2p_gateway_mispredicted_requests_total") == before


def test_the_pods_are_found_to_agree(gateway: Gateway, a: Pod, b: Pod) -> None:
    until(lambda: gateway.metric("p2p_gateway_probes_total") >= 2, 30, "probes answered")
    for pod in (a, b):
        until(lambda pod=pod: gateway.pod(pod)["cached_blocks"]["gpu"] >= PROBE_TOKENS // 32, 30, "probe announced")  # type: ignore[misc]
    assert gateway.metric("p2p_gateway_pod_disagreements") == 0


def test_a_killed_source_costs_nothing_and_comes_back(client: OpenAI, gateway: Gateway, a: Pod, b: Pod) -> None:
    prompt = fresh_ids("kill")
    recompute, _, _, _ = timed(client, a.model, fresh_ids("second control"))
    expected = computed_at(a, gateway, prompt)
    assert gateway.pod(a)["cached_blocks"]["cpu"] > 0

    a.kill()
    ttft, headers, text, cached = timed(client, a.model, prompt)

    assert headers["x-gateway-pod"] == b.url
    assert "x-gateway-kv-source" not in headers
    assert text == expected
    assert cached == 0
    assert ttft <= recompute + 1.0
    gone = gateway.pod(a)
    assert gone["state"] == "down"
    assert gone["cached_blocks"] == {"gpu": 0, "cpu": 0}

    a.start()
    a.wait_ready()
    until(lambda: gateway.pod(a)["state"] == "ready", 30, "the returned pod is ready")
    assert gateway.cached({"model": a.model, "prompt": prompt}, a) == {"gpu": 0, "cpu": 0, "any": 0}
    assert gateway.pod(a)["cached_blocks"]["gpu"] <= PROBE_TOKENS // 32
    computed_at(a, gateway, prompt)
    back = gateway.pod(a)
    assert back["certain"]
    assert back["last_seq"] is not None
    assert back["last_seq"] < 100
    assert metric(gateway.url, f'p2p_gateway_pod_ready{{pod="127.0.0.1:{a.parameters.port}"}}') == 1
