"""OpenAI's and Anthropic's clients for Python, and what they do by themselves: retries, pools, streams that break."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web

from tests.gateway.fleet import MODEL, SLOW, Front, completions, fleet, serving, until
from tests.gateway.scripted import breaks_off, says, scripted

HELLO: Any = [{"role": "user", "content": "say this — 猫 😀"}]
EVENT = b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}\n\n'


@pytest.fixture
async def api(front: Front) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_a_chat_says_the_same_whole_and_streamed(api: openai.AsyncOpenAI) -> None:
    whole = await api.chat.completions.create(model=MODEL, messages=HELLO, max_completion_tokens=9)
    stream = await api.chat.completions.create(
        model=MODEL, messages=HELLO, max_completion_tokens=9, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9


async def test_a_completion_of_token_ids_has_an_id_that_is_the_requests(api: openai.AsyncOpenAI) -> None:
    raw = await api.completions.with_raw_response.create(
        model=MODEL, prompt=[5, 6, 7], max_tokens=3, extra_headers={"x-request-id": "mine"}
    )
    assert raw.request_id == "mine"
    assert raw.parse().choices[0].finish_reason == "length"


async def test_the_client_that_blocks_is_served_too(front: Front) -> None:
    def ask() -> list[str]:
        with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client:
            return [
                client.completions.create(model=MODEL, prompt="x", max_tokens=1).choices[0].finish_reason
                for _ in range(5)
            ]

    assert await asyncio.to_thread(ask) == ["length"] * 5


async def test_many_requests_share_the_clients_pool(api: openai.AsyncOpenAI) -> None:
    asked = (api.completions.create(model=MODEL, prompt=[n], max_tokens=2) for n in range(100))
    assert {answer.choices[0].finish_reason for answer in await asyncio.gather(*asked)} == {"length"}


async def test_errors_come_as_the_clients_own_classes(api: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await api.chat.completions.create(model="nobody", messages=HELLO)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        await api.chat.completions.create(model=MODEL, messages=HELLO, n="two")  # type: ignore[call-overload]
    assert (wrong.value.code, wrong.value.param) == ("invalid_value", "n")
    with pytest.raises(openai.BadRequestError, match="n=1 only"):  # the pod's word
        await api.chat.completions.create(model=MODEL, messages=HELLO, n=2)


async def test_a_stream_that_breaks_raises_in_the_client() -> None:
    streams = breaks_off(EVENT, EVENT, **{"content-type": "text/event-stream"})
    async with (
        scripted(chat=streams) as pod,
        serving([pod]) as front,
        openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as api,
    ):
        stream = await api.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        got = []
        with pytest.raises(openai.APIError, match="in the middle of its answer") as caught:
            got.extend([chunk async for chunk in stream])
        assert caught.value.code == "pod_disconnected"


async def test_the_client_comes_back_when_it_is_told_to() -> None:
    refusals = 1

    async def refuses_once(_: web.Request) -> web.StreamResponse:
        nonlocal refusals
        if refusals:
            refusals -= 1
            return web.json_response({"error": {"message": "busy"}}, status=429, headers={"retry-after": "0"})
        return web.json_response({"id": "1", "object": "text_completion", "created": 1, "model": MODEL, "choices": []})

    async with (
        scripted(completions=refuses_once) as pod,
        serving([pod]) as front,
        openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=2) as api,
    ):
        assert (await api.completions.create(model=MODEL, prompt="x")).object == "text_completion"
    assert refusals == 0


async def test_a_stream_that_is_closed_is_aborted_on_the_pod() -> None:
    async with (
        fleet(pod={"profile": SLOW}) as (front, (pod,)),
        openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as api,
    ):
        async with await api.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, max_completion_tokens=4000
        ) as stream:
            async for _ in stream:
                break
        await until(lambda: [request.outcome for request in completions(pod)] == ["aborted"])
        await front.idle()


async def test_a_message_that_breaks_raises_in_anthropics_client() -> None:
    began = b'event: message_start\ndata: {"type":"message_start"}\n\n'
    async with scripted() as pod, serving([pod]) as front:
        pod.scripts["/v1/messages"] = breaks_off(began, **{"content-type": "text/event-stream"})
        async with anthropic.AsyncAnthropic(base_url=front.url, api_key="none", max_retries=0) as anthropics:
            said: anthropic.types.MessageParam = {"role": "user", "content": "x"}
            stream = await anthropics.messages.create(model=MODEL, max_tokens=9, messages=[said], stream=True)
            with pytest.raises(anthropic.APIStatusError):
                [event async for event in stream]


async def test_anthropics_errors_of_pods_pass_through() -> None:
    told = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    async with scripted() as pod, serving([pod]) as front:
        pod.scripts["/v1/messages"] = says(told, status=529)
        async with anthropic.AsyncAnthropic(base_url=front.url, api_key="none", max_retries=0) as anthropics:
            with pytest.raises(anthropic.InternalServerError) as caught:
                await anthropics.messages.create(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "x"}])
    assert caught.value.body == told
