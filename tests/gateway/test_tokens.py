"""Where a prompt's token ids come from, and what happens when they do not come."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from gateway.tokens import TokenIds
from index import block_keys, root_key, salt_extra
from loadgen.tokens import TURN, render_chat, render_prompt
from tests.gateway.fleet import (
    AFFINITY,
    MODEL,
    PREFIX_ONLY,
    Front,
    completions,
    fleet,
    ids,
    serving,
    simulated,
    text_body,
    until,
    warm,
)
from tests.gateway.scripted import ScriptedPod, never, says, scripted

TURNS: Any = [{"role": "user", "content": "What is a prefix?"}]
TOOLS = [{"type": "function", "function": {"name": "look"}}]
OK = says({"ok": True})


def asked(pod: Any) -> list[Any]:
    """The bodies of the tokenizations that arrived at a pod."""
    return [json.loads(request.body) for request in pod.requests if request.path == "/tokenize"]


async def chat(front: Front, **fields: Any) -> Any:
    """Explain a chat."""
    answer = await front.post("/explain", {"model": MODEL, "messages": TURNS, **fields})
    assert answer.status == 200, answer.body
    return answer.json


async def from_none(front: Front, reason: str) -> float:
    return await front.metric("prompts_total", tokens_from="none", reason=reason)


CHATS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "tools": ({"tools": TOOLS}, {"tools": TOOLS}),
    "no generation prompt": ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
    "continued": (
        {"add_generation_prompt": False, "continue_final_message": True},
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
    "template arguments": ({"chat_template_kwargs": {"a": 1}}, {"settings": {"a": 1}}),
    "documents": ({"documents": [{"t": "x"}]}, {"settings": {"documents": [{"t": "x"}]}}),
    "reasoning effort": (
        {"reasoning_effort": "low"},
        {"settings": {"reasoning_effort": "low", "enable_thinking": True}},
    ),
    "no reasoning": (
        {"reasoning_effort": "none"},
        {"settings": {"reasoning_effort": "none", "enable_thinking": False}},
    ),
    "both": (
        {"chat_template_kwargs": {"enable_thinking": False, "a": 1}, "reasoning_effort": "high"},
        {"settings": {"enable_thinking": False, "a": 1, "reasoning_effort": "high"}},
    ),
    "nulls": ({"tools": None, "documents": None, "reasoning_effort": None, "chat_template_kwargs": None}, {}),
    "special tokens": ({"add_special_tokens": True}, {"add_special_tokens": True}),
}


@pytest.mark.parametrize(("fields", "rendered"), CHATS.values(), ids=CHATS)
async def test_what_changes_a_chats_prompt_changes_its_ids(fields: dict[str, Any], rendered: dict[str, Any]) -> None:
    async with fleet() as (front, (pod,)):
        told = await chat(front, **fields)
        assert (told["tokens_from"], told["tokens"]) == ("pod", len(render_chat(TURNS, **rendered)))
        # The prompt as ids, with one block more: all of the chat's blocks are found only if its ids are these.
        await warm(pod, [*render_chat(TURNS, **rendered), *ids(16)])
        await front.settled(pod)
        told = await chat(front, **fields)
        assert told["candidates"][0]["cached_tokens"]["any"] == told["tokens"] // 16 * 16 > 0


async def test_template_arguments_of_the_wrong_type_are_left_to_the_pod() -> None:
    async with fleet() as (front, _):
        body = {"model": MODEL, "messages": TURNS, "chat_template_kwargs": 5, "reasoning_effort": "low"}
        answer = await front.post("/v1/chat/completions", body)
        assert (answer.status, answer.json["error"]["param"]) == (400, "body.chat_template_kwargs")
        assert await from_none(front, "rejected") == 1


async def test_a_conversation_is_rendered_once() -> None:
    async with fleet(2) as (front, pods):
        body = {"model": MODEL, "messages": TURNS, "max_tokens": 1}
        for seed in range(4):
            answer = await front.post("/v1/chat/completions", {**body, "seed": seed, "user": str(seed)})
            assert answer.status == 200
        assert sum(len(asked(pod)) for pod in pods) == 1
        assert (await front.post("/v1/chat/completions", {**body, "messages": [*TURNS, *TURNS]})).status == 200
        assert sum(len(asked(pod)) for pod in pods) == 2
        assert await front.metric("prompts_total", tokens_from="pod") == 5


async def test_a_memo_of_nothing_asks_every_time() -> None:
    async with fleet(tokens={"memo_tokens": 0}) as (front, (pod,)):
        for _ in range(3):
            assert (await front.explain("some text"))["tokens"] == len(render_prompt("some text"))
        assert len(asked(pod)) == 3


async def test_given_ids_are_asked_of_nobody() -> None:
    async with fleet() as (front, (pod,)):
        for prompt, tokens in ((ids(20), 20), ([ids(20), ids(30)], 50)):
            told = await front.explain(prompt)
            assert (told["tokens"], told["tokens_from"]) == (tokens, "given")
        await front.complete(ids(20))
        assert await front.metric("prompts_total", tokens_from="given", reason="") == 1
    assert [request.path for request in pod.requests] == ["/v1/completions"]


async def test_a_batch_of_texts_is_asked_for_text_by_text() -> None:
    async with fleet() as (front, (pod,)):
        told = await front.explain(["one", "two!", "one"])
        assert (told["tokens"], told["tokens_from"]) == (
            sum(map(len, map(render_prompt, ("one", "two!", "one")))),
            "pod",
        )
        assert sorted(question["prompt"] for question in asked(pod)) in (["one", "one", "two!"], ["one", "two!"])


async def test_a_batch_of_texts_and_ids_keeps_their_order() -> None:
    async with fleet() as (front, (pod,)):
        await warm(pod, [*render_prompt("x" * 100), *ids(16)])
        await front.settled(pod)
        told = await front.explain([ids(40, salt=3), "x" * 100, ids(50, salt=4)])
        assert (told["tokens"], told["tokens_from"]) == (40 + 101 + 50, "pod")
        assert told["candidates"][0]["cached_tokens"]["any"] == 96
        assert [question["prompt"] for question in asked(pod)] == ["x" * 100]


async def test_a_large_batch_of_texts_is_not_asked_for() -> None:
    async with fleet(tokens={"max_batch": 2}) as (front, (pod,)):
        assert (await front.explain(["a", "b"]))["tokens_from"] == "pod"
        told = await front.explain(["a", "b", "c"])
        assert (told["tokens"], told["tokens_from"], told["tokens_reason"]) == (None, "none", "batch-too-large")
        assert (await front.complete(["a", "b", "c"])).status == 200
        assert await from_none(front, "batch-too-large") == 1
    assert len(asked(pod)) == 2


async def test_special_tokens_of_a_text_are_passed_on() -> None:
    async with fleet() as (front, _):
        assert (await front.explain("hello"))["tokens"] == 6
        assert (await front.explain("hello", add_special_tokens=False))["tokens"] == 5


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": "a text", "truncate_prompt_tokens": 5}, "truncated"),
        ({"prompt_embeds": "AAAA"}, "embeds"),
        ({"prompt": []}, "invalid"),
        ({"prompt": None}, "invalid"),
        ({"prompt": 5}, "invalid"),
        ({"prompt": [1, -1]}, "invalid"),
        ({"prompt": [1, "a", None]}, "invalid"),
        ({"prompt": [1.5]}, "invalid"),
        ({"prompt": [[1], {}]}, "invalid"),
        ({"prompt": [1 << 40]}, "invalid"),
        ({}, "invalid"),
    ],
)
async def test_a_prompt_that_cannot_be_known_is_forwarded_without(fields: dict[str, Any], reason: str) -> None:
    async with scripted(completions=OK) as pod, serving([pod]) as front:
        assert (await front.post("/v1/completions", {"model": MODEL, **fields})).status == 200
        assert await from_none(front, reason) == 1
    assert [request.path for request in pod.requests] == ["/v1/completions"]


async def test_a_chat_without_messages_is_forwarded_without_ids() -> None:
    async with scripted(chat=OK) as pod, serving([pod]) as front:
        for messages in ({}, {"messages": None}):
            assert (await front.post("/v1/chat/completions", {"model": MODEL, **messages})).status == 200
        assert await from_none(front, "invalid") == 2


async def refused(_: web.Request) -> web.Response:
    return web.json_response({"error": {"message": "no template"}}, status=400)


@pytest.mark.parametrize(
    ("tokenize", "reason"),
    [
        (never, "timeout"),
        (refused, "rejected"),
        (says({"tokens": "none"}), "rejected"),
        (says({"tokens": [1 << 40]}), "rejected"),
        (says({}, 500), "unreachable"),
    ],
    ids=["silent", "refused", "nonsense", "ids out of range", "failing"],
)
async def test_a_tokenizer_that_fails_costs_the_prefix_term_and_not_the_request(
    tokenize: Callable[[web.Request], Awaitable[web.StreamResponse]], reason: str
) -> None:
    async with (
        scripted(completions=OK, tokenize=tokenize) as pod,
        serving([pod], tokens={"timeout": 0.2}, placement=AFFINITY) as front,
    ):
        answer = await front.post("/v1/completions", text_body("some text"))
        assert (answer.status, answer.pod) == (200, pod.url)
        assert await from_none(front, reason) == 1
        told = await front.explain("some text")
        assert (told["tokens"], told["tokens_from"], told["tokens_reason"]) == (None, "none", reason)
        assert told["candidates"][0]["scores"]["prefix"] == 0
        assert told["predicted_cached_tokens"] is None


async def test_the_deadline_for_ids_is_kept() -> None:
    async with scripted(completions=OK, tokenize=never) as pod, serving([pod], tokens={"timeout": 0.3}) as front:
        clock = asyncio.get_running_loop().time
        began = clock()
        assert (await front.post("/v1/completions", text_body(["a", "b", "c"]))).status == 200
        assert 0.3 <= clock() - began < 5


async def test_one_text_of_a_batch_that_is_refused_costs_the_batch_its_ids() -> None:
    async def picky(request: web.Request) -> web.Response:
        question = await request.json()
        return web.json_response({"tokens": [1, 2]}, status=400 if question["prompt"] == "bad" else 200)

    async with scripted(completions=OK, tokenize=picky) as pod, serving([pod]) as front:
        assert (await front.explain(["good", "fine", [5]]))["tokens"] == 5
        told = await front.explain(["good", "bad", [5]])
        assert (told["tokens"], told["tokens_reason"]) == (None, "rejected")
        assert (await front.post("/v1/completions", text_body(["good", "bad", [5]]))).status == 200


async def test_a_silent_tokenizer_is_asked_again_the_next_time() -> None:
    async with scripted(completions=OK, tokenize=never) as pod, serving([pod], tokens={"timeout": 0.1}) as front:
        assert (await front.explain("text"))["tokens_from"] == "none"
        pod.scripts["/tokenize"] = says({"tokens": [1, 2, 3]})
        assert (await front.explain("text"))["tokens"] == 3


async def test_a_second_pod_is_asked_when_the_first_is_dead() -> None:
    async def hangs_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with (
        scripted(completions=OK, tokenize=hangs_up) as dead,
        scripted(completions=OK, tokenize=says({"tokens": [7, 8]})) as alive,
        serving([dead, alive]) as front,
    ):
        told = await front.explain("text")
        assert (told["tokens"], told["tokens_from"]) == (2, "pod")
        assert (len(asked(dead)), len(asked(alive))) == (1, 1)


async def test_no_third_pod_is_asked() -> None:
    async def pods(stack: list[ScriptedPod]) -> int:
        return sum(len(asked(pod)) for pod in stack)

    failing = says({}, 503)
    async with (
        scripted(completions=OK, tokenize=failing) as one,
        scripted(completions=OK, tokenize=failing) as two,
        scripted(completions=OK, tokenize=failing) as three,
        serving([one, two, three]) as front,
    ):
        assert (await front.explain("text"))["tokens_reason"] == "unreachable"
        assert await pods([one, two, three]) == 2


@pytest.mark.usefixtures("ties_go_to_the_first")
async def test_the_pod_with_the_least_under_way_is_asked() -> None:
    async with simulated(2) as (busy, idle), serving([busy, idle]) as front:
        busy.stall()
        under_way = asyncio.create_task(front.post("/v1/completions", text_body([1, 2, 3])))
        await until(lambda: bool(completions(busy)))
        assert (await front.explain("text"))["tokens_from"] == "pod"
        assert (len(asked(busy)), len(asked(idle))) == (0, 1)
        busy.resume()
        assert (await under_way).status == 200


async def test_ids_of_a_chat_serve_a_completion_of_the_same_tokens() -> None:
    async with fleet(2, placement=PREFIX_ONLY) as (front, pods):
        long = [{"role": "user", "content": "word " * 50}]
        answer = await front.post("/v1/chat/completions", {"model": MODEL, "messages": long, "max_tokens": 1})
        (served,) = (pod for pod in pods if pod.url == answer.pod)
        await front.settled(served)
        again = await front.complete(render_chat(long))
        assert (again.pod, again.cached) == (served.url, len(render_chat(long)) // 16 * 16)
        assert TURN in render_chat(long)


def test_block_keys_of_a_prompt_are_made_once_for_each_way_to_make_them() -> None:
    ids = TokenIds("I", range(64))
    for namespace, size, salt in (("base", 16, None), ("poet", 16, None), ("base", 32, None), ("base", 16, "salt")):
        keys = ids.keys(namespace, size, salt)
        extras = {0: salt_extra(salt)} if salt else None
        assert list(keys) == block_keys(ids, size, root_key(namespace, size), extras)
        assert ids.keys(namespace, size, salt) is keys
    first = ids.keys("base", 16, None)
    assert list(ids.keys("more", 16, None)) != list(first)
    assert list(ids.keys("base", 16, None)) == list(first)
