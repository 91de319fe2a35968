"""Pods that take a chat's token ids are given them, and now and then not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from loadgen.pod import SimulatedPod
from loadgen.tokens import render_chat
from tests.gateway.fleet import MODEL, Front, serving, until
from tests.gateway.scripted import scripted
from tests.gateway.tokenizing import TOOLS, TURNS, bodies, local, tokenizes


@asynccontextmanager
async def rendering_once(files: Path, **tokens: Any) -> AsyncIterator[tuple[Front, SimulatedPod]]:
    async with local(files, tokens={"render_once": True, **tokens}) as (front, (pod,)):

        async def probed() -> bool:
            return bool((await front.row(pod))["takes_token_ids"])

        await until(probed)
        pod.requests.clear()
        yield front, pod


async def test_a_pod_that_takes_ids_is_given_them(files: Path) -> None:
    async with rendering_once(files) as (front, pod):
        assert await front.metric("pod_takes_token_ids") == 1
        body = {"model": MODEL, "messages": TURNS, "max_tokens": 1, "tools": TOOLS}
        for number in range(8):
            answer = await front.post("/v1/chat/completions", body, {"x-request-id": f"request-{number}"})
            assert answer.json["usage"]["prompt_tokens"] == len(render_chat(TURNS, tools=TOOLS))
        sent = [body.get("kv_transfer_params") for body in bodies(pod, "/v1/chat/completions")]
        assert {"prompt_token_ids": render_chat(TURNS, tools=TOOLS)} in sent
        assert await front.metric("rendered_once_total") == sum(params is not None for params in sent) >= 7


async def test_now_and_then_a_pod_renders_so_that_its_count_can_be_compared(files: Path) -> None:
    async with rendering_once(files) as (front, pod):
        body = msgspec.json.encode({"model": MODEL, "messages": TURNS, "max_tokens": 1})
        for number in range(160):
            await front.post("/v1/chat/completions", body, {"x-request-id": f"request-{number}"})
        without = sum("kv_transfer_params" not in body for body in bodies(pod, "/v1/chat/completions"))
        assert 1 <= without <= 20


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": TURNS, "echo": True}),
        ("/v1/completions", {"prompt": "a text"}),
        ("/v1/completions", {"prompt": [1, 2, 3]}),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    *TURNS,
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
                ]
            },
        ),
    ],
    ids=["echo", "text", "ids", "media"],
)
async def test_what_the_engine_has_to_render_itself_goes_without(
    files: Path, path: str, fields: dict[str, Any]
) -> None:
    async with rendering_once(files) as (front, pod):
        for number in range(3):
            await front.post(path, {"model": MODEL, "max_tokens": 1, **fields}, {"x-request-id": f"request-{number}"})
        assert all("kv_transfer_params" not in body for body in bodies(pod, path))


async def test_a_pod_that_renders_whatever_it_is_told_is_given_nothing(files: Path) -> None:
    chats: list[Any] = []

    async def ignores(request: web.Request) -> web.Response:
        chats.append(await request.json())
        return web.json_response({"choices": [], "prompt_token_ids": [1, 2, 3]})

    async with scripted(chat=ignores, tokenize=tokenizes) as pod, serving([pod], tokens={"render_once": True}) as front:
        await until(lambda: bool(chats))
        assert chats[0]["kv_transfer_params"]["prompt_token_ids"]
        for number in range(3):
            headers = {"x-request-id": f"request-{number}"}
            assert (
                await front.post("/v1/chat/completions", {"model": MODEL, "messages": TURNS}, headers)
            ).status == 200
        assert all("kv_transfer_params" not in chat for chat in chats[1:])
        assert await front.metric("pod_takes_token_ids") == 0
