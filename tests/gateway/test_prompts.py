"""Responses, messages and embeddings are placed by their prompts, and chats with media by what pods render of them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from index import BlockStored, Publisher
from loadgen.pod import SimulatedPod
from loadgen.tokens import render_chat, render_prompt
from tests.gateway.fleet import MODEL, PREFIX_ONLY, Front, fleet, serving, until
from tests.gateway.scripted import Script, ScriptedPod, never, says, scripted
from tests.gateway.tokenizing import model_row, tokenizes

SYSTEM = "You are terse and you know a lot about prefixes. " * 3
SAID = "What is a prefix? 🙂"
TURNS: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": SAID}]
PARTS = [{"type": "text", "text": SAID}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

# A body, and the ids that its engine makes of it.
BODIES: dict[str, tuple[str, dict[str, Any], list[int]]] = {
    "a response to a text": (
        "/v1/responses",
        {"input": SAID, "instructions": SYSTEM},
        render_chat(TURNS, add_special_tokens=True),
    ),
    "a response to items": (
        "/v1/responses",
        {"input": TURNS},
        render_chat(TURNS, add_special_tokens=True),
    ),
    "a message": (
        "/v1/messages",
        {"system": SYSTEM, "messages": [{"role": "user", "content": SAID}]},
        render_chat(TURNS),
    ),
    "a message in blocks": (
        "/v1/messages",
        {"system": [{"type": "text", "text": SYSTEM}], "messages": [{"role": "user", "content": PARTS}]},
        render_chat(TURNS),
    ),
}


@asynccontextmanager
async def either(files: Path | None, count: int = 2) -> AsyncIterator[tuple[Front, list[SimulatedPod]]]:
    """A fleet whose prompts are tokenized here, once they are, if there are `files`; else by its pods."""
    tokens = {} if files is None else {"path": str(files)}
    async with fleet(count, tokens=tokens, placement=PREFIX_ONLY) as (front, pods):
        if files is not None:

            async def in_use() -> bool:
                row = await model_row(front)
                return row["backend"] == "local" and len(row["pods"]) == count

            await until(in_use)
        yield front, pods


@pytest.mark.parametrize("local", [True, False], ids=["here", "by a pod"])
@pytest.mark.parametrize(("path", "body", "ids"), BODIES.values(), ids=BODIES)
async def test_a_conversation_comes_back_to_where_it_was_computed(
    files: Path, path: str, body: dict[str, Any], ids: list[int], *, local: bool
) -> None:
    async with either(files if local else None) as (front, pods):
        answer = await front.post(path, {"model": MODEL, "max_tokens": 1, **body})
        assert answer.status == 200, answer.body
        (served,) = (pod for pod in pods if pod.url == answer.pod)
        await front.settled(*pods)
        told = (await front.post(f"/explain?path={path}", {"model": MODEL, "max_tokens": 1, **body})).json
        assert (told["tokens"], told["tokens_from"]) == (len(ids), "local" if local else "pod")
        assert told["predicted_cached_tokens"] == len(ids) // 16 * 16
        answer = await front.post(path, {"model": MODEL, "max_tokens": 1, **body})
        assert answer.pod == served.url
        assert await front.metric("token_mismatches_total") == 0
        assert await front.metric("mispredicted_requests_total") == 0
        assert await front.metric("reported_cached_tokens_total") == len(ids) // 16 * 16
        await front.idle()


async def test_a_response_that_goes_on_is_where_the_one_before_is(files: Path) -> None:
    async with either(files) as (front, _):
        first = await front.post("/v1/responses", {"model": MODEL, "input": SAID})
        body = {"model": MODEL, "input": "More.", "previous_response_id": first.json["id"]}
        assert (await front.post("/v1/responses", body)).pod == first.pod
        assert await front.metric("prompts_total", tokens_from="none", reason="stored-response") == 1


@pytest.mark.parametrize("local", [True, False], ids=["here", "by a pod"])
async def test_what_is_to_be_embedded_is_placed_and_never_pulls(files: Path, *, local: bool) -> None:
    async with either(files if local else None) as (front, pods):
        long = "word " * 40
        await front.complete(long)
        (holder,) = (pod for pod in pods if pod.requests and any(r.path == "/v1/completions" for r in pod.requests))
        await front.settled(*pods)
        asks: list[tuple[Any, int]] = [
            ({"input": long}, len(render_prompt(long))),
            ({"input": [long, "other"]}, len(render_prompt(long)) + len(render_prompt("other"))),
            ({"input": [1, 2, 3]}, 3),
            ({"input": [[1, 2, 3], [4]]}, 4),
            ({"messages": TURNS}, len(render_chat(TURNS, add_generation_prompt=False))),
        ]
        for body, tokens in asks:
            told = (await front.post("/explain?path=/v1/embeddings", {"model": MODEL, **body})).json
            assert (told["tokens"], told["source_reason"]) == (tokens, "endpoint"), body
        assert (await front.post("/v1/embeddings", {"model": MODEL, "input": long})).pod == holder.url
        for body, reason in (
            ({"input": "x", "truncate_prompt_tokens": 5}, "truncated"),
            ({"input": {}}, "invalid"),
            ({"messages": 5}, "invalid"),
            ({"input": [TURNS, TURNS]}, "batch-too-large"),
        ):
            told = (await front.post("/explain?path=/v1/embeddings", {"model": MODEL, **body})).json
            assert told["tokens_reason"] == reason, body


async def test_a_path_without_a_prompt_cannot_be_explained() -> None:
    async with fleet() as (front, _):
        answer = await front.post("/explain?path=/v1/rerank", {"model": MODEL})
        assert (answer.status, answer.json["error"]["param"]) == (400, "path")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_before_an_image_pods_are_asked_for_what_they_can_tell(path: str) -> None:
    """Without files: of the messages that are all text."""
    shown: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [TURNS[0], {"role": "user", "content": [*PARTS, IMAGE]}]},
        "/v1/messages": {
            "system": SYSTEM,
            "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}],
        },
        "/v1/responses": {
            "instructions": SYSTEM,
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        },
    }
    async with fleet() as (front, _):
        told = (await front.post(f"/explain?path={path}", {"model": MODEL, **shown[path]})).json
        special = path == "/v1/responses"
        known = render_chat(TURNS[:1], add_generation_prompt=False, add_special_tokens=special)
        assert (told["tokens_from"], told["tokens_reason"], told["tokens"]) == ("pod", "media", len(known))
        first = {"model": MODEL, "messages": [{"role": "user", "content": [IMAGE]}]}
        told = (await front.post("/explain", first)).json
        assert (told["tokens_from"], told["tokens_reason"]) == ("none", "media")


def renders(ids: list[int], *, image_at: int) -> Script:
    """A pod's `…/render`, of prompts with one image of 20 tokens."""
    return says(
        {
            "token_ids": ids,
            "sampling_params": {},
            "features": {
                "mm_hashes": {"image": ["digest"]},
                "mm_placeholders": {"image": [{"offset": image_at, "length": 20}]},
                "kwargs_data": {"image": ["AAAA"]},
            },
        }
    )


@asynccontextmanager
async def rendering(render: Script, **sections: Any) -> AsyncIterator[tuple[Front, ScriptedPod]]:
    async with scripted(chat=says({"ok": True}), completions=says({"ok": True}), tokenize=tokenizes) as pod:
        pod.scripts["/v1/chat/completions/render"] = render
        async with serving([pod], **sections) as front:
            yield front, pod


@pytest.mark.parametrize("local", [True, False], ids=["with files", "without"])
async def test_a_pod_that_renders_tells_where_media_are(files: Path, *, local: bool) -> None:
    prompt = list(range(100, 165))
    sections: Any = {"tokens": {"path": str(files)}} if local else {}
    async with rendering(renders(prompt, image_at=20), **sections) as (front, pod):
        if local:

            async def in_use() -> bool:
                return bool((await model_row(front))["backend"] == "local")

            await until(in_use)
        seen: list[Any] = [None, [["digest", 4]], [["digest", -12]], None]
        event = BlockStored([1, 2, 3, 4], None, prompt[:64], 16, extra_keys=seen)
        front.parts.index.apply(Publisher(pod.url.removeprefix("http://"), 0), [event])
        body = {"model": MODEL, "messages": [TURNS[0], {"role": "user", "content": [*PARTS, IMAGE]}]}
        for _ in range(3):
            told = (await front.post("/explain", body)).json
            assert (told["tokens"], told["tokens_from"], told["tokens_reason"]) == (65, "pod", None)
            assert told["predicted_cached_tokens"] == 64
        assert (await front.row(pod))["renders"] is True
        assert sum(arrived.path.endswith("/render") for arrived in pod.requests) == 1
        pod.scripts["/v1/chat/completions/render"] = renders(prompt, image_at=21)
        told = (await front.post("/explain", {**body, "user": "another"})).json
        assert told["predicted_cached_tokens"] == 16


async def test_a_pod_that_does_not_render_is_asked_once(files: Path) -> None:
    async with rendering(says({"error": {}}, 403)) as (front, pod):
        for number in range(3):
            body = {"model": MODEL, "messages": [TURNS[0], {"role": "user", "content": [IMAGE, f"{number}"]}]}
            assert (await front.post("/explain", body)).json["tokens_reason"] == "media"
        assert sum(arrived.path.endswith("/render") for arrived in pod.requests) == 1
        assert (await front.row(pod))["renders"] is False


async def test_a_body_that_a_pod_refuses_to_render_says_nothing_of_the_pod(files: Path) -> None:
    refusals = []

    async def refuses(request: web.Request) -> web.Response:
        refusals.append(request)
        return web.Response(status=400)

    async with rendering(refuses) as (front, pod):
        for number in range(2):
            body = {"model": MODEL, "messages": [TURNS[0], {"role": "user", "content": [IMAGE, f"{number}"]}]}
            assert (await front.post("/explain", body)).json["tokens_reason"] == "media"
        assert len(refusals) == 2
        assert (await front.row(pod))["renders"] is None


async def test_a_pod_that_fails_at_rendering_is_still_asked_for_tokens(files: Path) -> None:
    """Rendering fetches what clients name: whoever names what cannot be had must not end the tokens of all."""
    sections: Any = {"breaker": {"failures": 2, "cooldown": 3600}}
    async with rendering(says({}, 500), **sections) as (front, pod):
        for number in range(4):
            body = {"model": MODEL, "messages": [TURNS[0], {"role": "user", "content": [IMAGE, f"{number}"]}]}
            assert (await front.post("/explain", body)).json["tokens_reason"] == "media"
        assert sum(arrived.path.endswith("/render") for arrived in pod.requests) == 2  # then that is left alone
        assert (await front.row(pod))["tokenizer"] == "closed"
        assert (await front.post("/explain", {"model": MODEL, "messages": TURNS})).json["tokens_from"] == "pod"


async def test_a_pod_that_does_not_get_done_rendering_leaves_time_for_what_stands_before(files: Path) -> None:
    async with rendering(never, tokens={"timeout": 1.0}) as (front, _):
        body = {"model": MODEL, "messages": [TURNS[0], {"role": "user", "content": [IMAGE]}]}
        told = (await front.post("/explain", body)).json
        assert (told["tokens_from"], told["tokens_reason"]) == ("pod", "media")
