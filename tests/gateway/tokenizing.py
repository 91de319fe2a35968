"""Fleets whose prompts are tokenized in the gateway, and pods that tell token ids as simulated ones do."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from loadgen.pod import SimulatedPod
from loadgen.tokens import render_chat, render_prompt
from tests.gateway.fleet import MODEL, Front, fleet, until

TURNS: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Que é um prefixo? 🙂"}]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}]


def asked(pod: Any) -> list[Any]:
    return [json.loads(request.body) for request in pod.requests if request.path == "/tokenize"]


def bodies(pod: Any, path: str) -> list[Any]:
    return [json.loads(request.body) for request in pod.requests if request.path == path]


async def model_row(front: Front) -> Any:
    (row,) = (await front.get("/pods")).json["models"]
    return row


@asynccontextmanager
async def local(files: Path, count: int = 1, **options: Any) -> AsyncIterator[tuple[Front, list[SimulatedPod]]]:
    """A fleet whose model's files are at hand, once they are in use."""
    tokens = {"path": str(files), **options.pop("tokens", {})}
    async with fleet(count, tokens=tokens, **options) as (front, pods):

        async def in_use() -> bool:
            row = await model_row(front)
            return row["backend"] == "local" and len(row["pods"]) == count

        await until(in_use)
        for pod in pods:
            await until(lambda pod=pod: len(asked(pod)) >= 8)
            pod.requests.clear()
        yield front, pods


async def explained(front: Front, **body: Any) -> Any:
    answer = await front.post("/explain", {"model": MODEL, **body})
    assert answer.status == 200, answer.body
    return answer.json


async def tokenizes(request: web.Request) -> web.StreamResponse:
    question = await request.json()
    if "prompt" in question:
        ids = render_prompt(question["prompt"])
    else:
        generation = question.get("add_generation_prompt", True)
        ids = render_chat(question["messages"], tools=question.get("tools"), add_generation_prompt=generation)
    return web.json_response({"tokens": ids})
