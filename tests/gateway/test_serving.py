import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncOpenAI

from loadgen.tokens import render_prompt
from tests.gateway.fleet import MODEL, Front, client, fleet, serving, simulated, text_body
from tests.gateway.scripted import scripted

TEXT = "Tell me what the cache holds."
CHAT: Any = [{"role": "user", "content": TEXT}]


@asynccontextmanager
async def openai(url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as api:
        yield api


async def test_a_chat_is_answered_as_the_pod_itself_answers() -> None:
    async with fleet() as (front, (pod,)), openai(front.url) as ours, openai(pod.url) as direct:
        through = await ours.chat.completions.create(model=MODEL, messages=CHAT)
        straight = await direct.chat.completions.create(model=MODEL, messages=CHAT)
    assert through.choices == straight.choices
    assert through.choices[0].message.content
    assert through.usage is not None


async def test_a_streamed_chat_has_the_words_of_the_whole_answer_and_ends_with_the_usage() -> None:
    async with fleet() as (front, _), openai(front.url) as api:
        whole = await api.chat.completions.create(model=MODEL, messages=CHAT)
        stream = await api.chat.completions.create(
            model=MODEL, messages=CHAT, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    words = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(words) == whole.choices[0].message.content
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [(TEXT, 1), ([TEXT, "And what else?"], 2), ([5, 6, 7], 1), ([[5, 6, 7], [8, 9]], 2)],
    ids=["text", "texts", "ids", "batch of ids"],
)
async def test_a_completion_takes_every_form_of_prompt(prompt: Any, choices: int) -> None:
    async with fleet() as (front, _), openai(front.url) as api:
        whole = await api.completions.create(model=MODEL, prompt=prompt, max_tokens=8)
        assert len(whole.choices) == choices
        texts = [""] * choices
        async for chunk in await api.completions.create(model=MODEL, prompt=prompt, max_tokens=8, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


async def test_a_text_and_its_ids_get_the_same_answer() -> None:
    async with fleet() as (front, _), openai(front.url) as api:
        text = await api.completions.create(model=MODEL, prompt=TEXT, max_tokens=8)
        ids = await api.completions.create(model=MODEL, prompt=render_prompt(TEXT), max_tokens=8)
    assert text.choices[0].text == ids.choices[0].text


async def test_models_are_the_union_of_what_the_pods_serve() -> None:
    async with (
        simulated(model="base", loras={"poet": "/loras/poet"}) as (one,),
        simulated(model="other/large") as (two,),
        serving([one, two]) as front,
        openai(front.url) as api,
    ):
        listed = [card async for card in api.models.list()]
        assert [card.id for card in listed] == ["base", "poet", "other/large"]
        assert [getattr(card, "parent", "") for card in listed] == [None, "base", None]
        assert (await api.models.retrieve("other/large")) == listed[2]
        missing = await front.get("/v1/models/nobody")
        assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")


async def test_a_model_card_is_the_pods_own_with_every_field() -> None:
    async with fleet() as (front, (pod,)), client() as http:
        async with http.get(f"{pod.url}/v1/models") as answer:
            cards = (await answer.json())["data"]
        assert (await front.get("/v1/models")).json == {"object": "list", "data": cards}
        assert (await front.get(f"/v1/models/{MODEL}")).json == cards[0]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_has_the_very_bytes_that_the_pod_gives_a_direct_client(stream: bool) -> None:
    headers = {"x-request-id": "the-same", "content-type": "application/json"}
    body = text_body("Once upon a time", max_tokens=20, stream=stream)
    async with fleet() as (front, (pod,)), client() as http:
        through = await front.post("/v1/completions", body, headers)
        async with http.post(f"{pod.url}/v1/completions", json=body, headers=headers) as answer:
            straight = await answer.read()
    # The second prompt of two is cached; when it was answered is the pod's clock.
    volatile = re.compile(rb'"(created|cached_tokens)":\d+')
    assert volatile.sub(b"", through.body) == volatile.sub(b"", straight)
    assert through.headers["content-type"] == answer.headers["content-type"]


async def test_bytes_that_are_no_json_and_headers_unknown_here_pass_as_they_are() -> None:
    blob = bytes(range(256)) * 2000

    async def binary(_: web.Request) -> web.Response:
        headers = {"content-encoding": "gzip", "x-of-the-pod": "kept", "content-type": "x-app/odd; a=b"}
        return web.Response(status=418, body=blob, headers=headers)

    async with scripted(completions=binary) as pod, serving([pod]) as front:
        answer = await front.post("/v1/completions", text_body([1]))
    assert (answer.status, answer.body) == (418, blob)
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["x-of-the-pod"] == "kept"
    assert answer.headers["content-type"] == "x-app/odd; a=b"
    assert answer.headers["content-length"] == str(len(blob))


async def test_each_piece_of_a_stream_is_handed_on_before_the_next_is_made() -> None:
    read = asyncio.Semaphore(0)

    async def dictated(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for number in range(3):
            await answer.write(b"data: %d\n\n" % number)
            await read.acquire()
        return answer

    async with (
        scripted(completions=dictated) as pod,
        serving([pod]) as front,
        front.http.post(f"{front.url}/v1/completions", json=text_body([1], stream=True)) as answer,
    ):
        for number in range(3):
            assert await answer.content.readany() == b"data: %d\n\n" % number
            read.release()
        assert await answer.content.readany() == b""


async def test_an_empty_answer_is_an_answer() -> None:
    async def empty(_: web.Request) -> web.Response:
        return web.Response(status=204)

    async with scripted(completions=empty) as pod, serving([pod]) as front:
        answer = await front.post("/v1/completions", text_body([1]))
        assert (answer.status, answer.body, answer.pod) == (204, b"", pod.url)


async def serve_one(front: Front) -> None:
    await front.complete([1, 2, 3])


async def test_health_ready_and_the_metrics_page_answer() -> None:
    async with fleet() as (front, (pod,)):
        await serve_one(front)
        assert (await front.get("/health")).json == {"status": "ok"}
        ready = await front.get("/ready")
        assert (ready.status, ready.json) == (
            200,
            {"ready": True, "draining": False, "pods": {pod.url.removeprefix("http://"): "ready"}}
            | {"tokens": ready.json["tokens"]},
        )
        assert list(ready.json["tokens"]) == [MODEL]
        assert await front.metric("pod_ready") == 1
        assert await front.metric("build_info") == 1
        assert await front.metric("ttft_seconds_count", model=MODEL, pull="none") == 1
