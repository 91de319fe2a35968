"""Token ids made here are the engine's, for prompts of every kind, and an engine that is given them renders nothing."""

import copy
import json
import random
import statistics
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from gateway.tokens.chat import ChatFields
from gateway.tokens.chats import conversation_of
from gateway.tokens.local import LocalTokenizer
from gateway.tokens.model_files import find_model
from gateway.tokens.refusal import Refused
from tests.bench.clock import cpu_seconds
from tests.engine.front import Gateway, until
from tests.engine.pods import Pod
from tests.gateway.tokens.conversations import BODIES
from tests.gateway.tokens.converted import MESSAGES, RESPONSES

pytestmark = pytest.mark.engine

CHAT, TEXT, RESPONSE, MESSAGE = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
COUNTED_APART = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
RENDERED_TOKENS = 6000
ROUNDS = 15
MOST_ROUNDS = 60

TEXTS: dict[str, Any] = {
    "plain": "def main():",
    "unicode": "Zażółć gęślą jaźń 你好、世界 🙂👩‍💻 é",
    "white space": "  \n\n\t def  f( x ) :\r\n ",
    "special tokens": "<|user|>Hello<|end|><|assistant|><s>",
    "nearly special": "<|user <|end| |> <s",
    "numbers": "0123456789 3.14159 1e-9 0xdeadbeef",
    "one letter": "a",
    "control characters": "a\u0000b\u0007\u200b\ufeff",
    "combining": "e\u0301 é ﬁ Å Ǆ",
    "no special tokens": {"prompt": "def main():", "add_special_tokens": False},
    "long": "import os, sys, json\n" * 60,
    "a batch": ["import sys", "class A:", "  ", "déjà vu"],
}


class Case(NamedTuple):
    """A request; the other fields of its body are the test's."""

    path: str
    body: dict[str, Any]


def cases(words: list[str]) -> dict[str, Case]:
    """Each with a beginning of its own that is longer than some blocks, so that it is cached where it was computed."""
    found: dict[str, Case] = {}
    for name, given in BODIES.items():
        # To choose a tool itself, an engine needs a parser for it.
        body = {**given, "tool_choice": "none"} if "tools" in given else given
        rng = random.Random(name)
        long = {"role": "user", "content": " ".join(rng.choice(words) for _ in range(60))}
        messages = copy.deepcopy(body["messages"])
        at = sum(message.get("role") in ("system", "developer") for message in messages[:2])
        found[f"chat: {name}"] = Case(CHAT, {**body, "messages": [*messages[:at], long, *messages[at:]]})
        found[f"chat as it is: {name}"] = Case(CHAT, body)
    for name, prompt in TEXTS.items():
        found[f"text: {name}"] = Case(TEXT, prompt if isinstance(prompt, dict) else {"prompt": prompt})
    # What calling vLLM's own conversion by itself gets wrong: a server leaves template arguments out that are null.
    found["response: arguments that are null"] = Case(
        RESPONSE, {"input": "Hi", "chat_template_kwargs": {"enable_thinking": None, "thinking": "auto"}}
    )
    found |= {f"response: {name}": Case(RESPONSE, _without_choice(body)) for name, body in RESPONSES.items()}
    found |= {f"message: {name}": Case(MESSAGE, _without_choice(body)) for name, body in MESSAGES.items()}
    return found


def _without_choice(body: dict[str, Any]) -> dict[str, Any]:
    """To choose a tool itself, an engine needs a parser for it."""
    none: Any = {"type": "none"} if "messages" in body and "input" not in body else "none"
    return {**body, "tool_choice": none} if body.get("tools") else body


@pytest.fixture(scope="module")
def local(pods: tuple[Pod, ...]) -> LocalTokenizer:
    return LocalTokenizer(find_model(pods[0].model))


def asked(url: str, path: str, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of an answer."""
    sent = {"content-type": "application/json", **headers}
    request = urllib.request.Request(url + path, data=json.dumps(body).encode(), headers=sent)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, dict(answer.headers), json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), json.load(error)


def one_token(pod: Pod, case: Case, **more: Any) -> dict[str, Any]:
    limit = "max_output_tokens" if case.path == RESPONSE else "max_tokens"
    return {"model": pod.model, limit: 1, "temperature": 0, **case.body, **more}


def made_there(pod: Pod, case: Case) -> list[list[int]] | None:
    """A prompt's ids as the engine tells them: with its answer, or instead of one. None: it refuses the request."""
    if case.path in (RESPONSE, MESSAGE):
        status, _, answer = asked(pod.url, f"{case.path}/render", one_token(pod, case))
        return [answer["token_ids"]] if status == 200 else None
    status, _, answer = asked(pod.url, case.path, one_token(pod, case, return_token_ids=True))
    if status != 200:
        return None
    if case.path == CHAT:
        return [answer["prompt_token_ids"]]
    return [choice["prompt_token_ids"] for choice in answer["choices"]]


def made_here(local: LocalTokenizer, case: Case) -> list[list[int] | None]:
    if case.path != TEXT:
        kind: Any = case.path.removeprefix("/v1/")
        ids = local.encode_chat(conversation_of(kind, json.dumps(case.body).encode(), local.habits)).ids
        return [None if ids is None else ids.tolist()]
    prompt = case.body["prompt"]
    special = case.body.get("add_special_tokens", True)
    texts = [prompt] if isinstance(prompt, str) else prompt
    made = [local.encode_text(text, add_special_tokens=special).ids for text in texts]
    return [None if ids is None else ids.tolist() for ids in made]


def test_ids_made_here_are_the_engines(local: LocalTokenizer, pods: tuple[Pod, ...], words: list[str]) -> None:
    equal, differing, refused, unknown = Counter[str](), [], [], []
    for name, case in cases(words).items():
        there = made_there(pods[1], case)
        if there is None:
            refused.append(name)
            continue
        try:
            here = made_here(local, case)
        except Refused as why:
            unknown.append(f"{name} ({why})")
            continue
        if here == there:
            equal[case.path] += 1
        else:
            differing.append(name)
    print(f"\nprompts with the engine's ids: {dict(equal)}; it refuses {refused}; not known here: {unknown}")
    assert differing == []
    assert equal.total() >= 150
    assert min(equal[path] for path in (CHAT, TEXT, RESPONSE, MESSAGE)) >= 12
    assert len(unknown) <= equal.total() / 10


def test_what_is_predicted_of_prompts_made_here_is_reported(
    gateway: Gateway, pods: tuple[Pod, ...], words: list[str]
) -> None:
    until(lambda: gateway.get("/ready")["tokens"] == {pods[0].model: "local"}, 30, "the model is tokenized here")
    counters = ("p2p_gateway_mispredicted_requests_total", "p2p_gateway_token_mismatches_total")
    by_url = {pod.url: pod for pod in pods}
    reported = gateway.metric("p2p_gateway_reported_cached_tokens_total")
    compared, unknown, wrong = 0, [], []
    for name, case in cases(words).items():
        if isinstance(case.body.get("prompt"), list):
            continue  # of a batch the engine reports one
        body = one_token(pods[0], case)
        status, headers, answer = asked(gateway.url, case.path, body)
        if status != 200:
            continue
        explained = gateway.explain(body, case.path)
        if explained["tokens_from"] != "local":
            unknown.append(name)
            continue
        usage = answer["usage"]
        prompt = usage.get("prompt_tokens") or sum(usage.get(name, 0) for name in COUNTED_APART)
        assert explained["tokens"] == prompt, name
        kept = prompt // 32 * 32
        gateway.wait_until_cached(body, by_url[headers["x-gateway-pod"]], kept, case.path)
        # Only now is all known that the pods hold of it: what came before may have been announced since it was placed.
        before = [gateway.metric(name) for name in counters]
        _, headers, _ = asked(gateway.url, case.path, body)
        gateway.wait_until_cached(body, by_url[headers["x-gateway-pod"]], kept, case.path)
        compared += 1
        if [gateway.metric(name) for name in counters] != before:
            wrong.append(name)
    assert wrong == []
    reused = gateway.metric("p2p_gateway_reported_cached_tokens_total") - reported
    print(f"\n{compared} prompts compared, {reused:.0f} tokens reused as predicted; not made here: {unknown}")
    assert compared >= 130
    assert reused >= 5000


def first_token(url: str, body: dict[str, Any]) -> tuple[float, str]:
    """Seconds to the first event with content, and the text."""
    request = urllib.request.Request(
        url + CHAT, data=json.dumps({**body, "stream": True}).encode(), headers={"content-type": "application/json"}
    )
    began, first, said = time.monotonic(), 0.0, ""
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            delta = json.loads(line[6:])["choices"][0]["delta"]
            if delta.get("content"):
                first = first or time.monotonic()
                said += delta["content"]
    return first - began, said


def servers(pod: Pod) -> list[int]:
    """The processes that serve HTTP, render and tokenize: all but the engine's own."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            group = int((process / "stat").read_text().rpartition(")")[2].split()[2])
            if group == pod.process_group and b"EngineCore" not in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_an_engine_that_is_given_the_ids_does_not_render(
    local: LocalTokenizer, gateway: Gateway, pods: tuple[Pod, ...], words: list[str]
) -> None:
    """The same warm prompt in turn with and without ids: what is left of its time is the server's work before it."""
    pod, rng = pods[0], random.Random(11)
    turns = [
        {"role": "assistant" if number % 2 else "user", "content": " ".join(rng.choice(words) for _ in range(130))}
        for number in range(2 * RENDERED_TOKENS // 600 + 1)
    ]
    chat = {"model": pod.model, "messages": turns, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    ids = local.encode_chat(msgspec.convert({"messages": turns}, ChatFields)).ids
    assert ids is not None
    assert 0.9 * RENDERED_TOKENS < len(ids) < 1.2 * RENDERED_TOKENS
    ways = {"rendered": chat, "given": {**chat, "kv_transfer_params": {"prompt_token_ids": ids.tolist()}}}
    _, expected = first_token(pod.url, chat)
    times: dict[str, list[float]] = {way: [] for way in ways}
    used: dict[str, list[float]] = {way: [] for way in ways}
    serving = servers(pod)
    ttft: dict[str, float] = {}
    cpu: dict[str, float] = {}
    while len(times["given"]) < MOST_ROUNDS:
        for way, body in [*ways.items()] * ROUNDS:
            before = cpu_seconds(serving)
            seconds, said = first_token(pod.url, body)
            used[way].append(cpu_seconds(serving) - before)
            times[way].append(seconds)
            assert said == expected
        ttft = {way: statistics.median(values) for way, values in times.items()}
        cpu = {way: statistics.median(values) for way, values in used.items()}
        if ttft["given"] <= ttft["rendered"] and cpu["given"] < cpu["rendered"]:
            break  # what shares the machine moves single times by a factor: if in doubt, more of them
    print(f"\n{len(ids)} tokens, first token in ms: {ttft}; the server's CPU: {cpu}")
    assert ttft["given"] <= 1.1 * ttft["rendered"]
    assert cpu["given"] < cpu["rendered"]

    until(lambda: gateway.pod(pod)["takes_token_ids"], 30, "the pod is known to take ids")
    sent = gateway.metric("p2p_gateway_rendered_once_total")
    said = [first_token(gateway.url, chat)[1] for _ in range(4)]
    assert said == [expected] * 4
    assert gateway.metric("p2p_gateway_rendered_once_total") - sent >= 2
