from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from loadgen.pod import SimulatedPod
from tests.loadgen.clients import cached, complete

HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def pod() -> AsyncIterator[SimulatedPod]:
    async with SimulatedPod(speed=1000) as pod:
        yield pod


@pytest.fixture
async def client(pod: SimulatedPod) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{pod.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def post(http: aiohttp.ClientSession, pod: SimulatedPod, path: str, body: Any) -> tuple[int, Any]:
    async with http.post(pod.url + path, json=body) as response:
        return response.status, await response.json()


async def test_a_chat_is_answered(client: openai.AsyncOpenAI) -> None:
    chat = await client.chat.completions.create(model="demo-model", messages=HELLO, max_completion_tokens=5)
    assert chat.choices[0].message.role == "assistant"
    assert len(chat.choices[0].message.content or "") == 5
    assert chat.choices[0].finish_reason == "length"
    assert chat.usage is not None
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + 5


async def test_a_streamed_chat_says_the_same(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="demo-model", messages=HELLO)
    stream = await client.chat.completions.create(
        model="demo-model", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert (chunks[-1].choices, chunks[-1].usage is not None) == ([], True)
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details is not None


async def test_a_stream_without_include_usage_has_no_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="demo-model", messages=HELLO, max_tokens=3, stream=True)
    assert {chunk.usage async for chunk in stream} == {None}


async def test_a_batch_of_prompts_has_a_choice_for_each(client: openai.AsyncOpenAI) -> None:
    texts = await client.completions.create(model="demo-model", prompt=["one", "two"], max_tokens=4)
    ids = await client.completions.create(model="demo-model", prompt=[[1, 2], [3, 4], [5]], max_tokens=4)
    assert [choice.index for choice in texts.choices] == [0, 1]
    assert [len(choice.text) for choice in ids.choices] == [4, 4, 4]
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 5


async def test_a_streamed_batch_says_the_same(client: openai.AsyncOpenAI) -> None:
    prompts = ["one", "two", "three"]
    whole = await client.completions.create(model="demo-model", prompt=prompts, max_tokens=6)
    stream = await client.completions.create(model="demo-model", prompt=prompts, max_tokens=6, stream=True)
    texts = ["", "", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


async def test_the_raw_stream_is_server_sent_events_as_vllm_sends_them(
    http: aiohttp.ClientSession, pod: SimulatedPod
) -> None:
    body = {"messages": HELLO, "max_tokens": 1, "stream": True}
    async with http.post(f"{pod.url}/v1/chat/completions", json=body, headers={"x-request-id": "abc"}) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        first, second, done, end = (await response.text()).split("\n\n")
    assert first.startswith('data: {"id":"chatcmpl-abc","object":"chat.completion.chunk","created":')
    assert (
        '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        in first
    )
    assert '"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}]' in second
    assert (done, end) == ("data: [DONE]", "")


async def test_token_ids_are_returned_on_request(http: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    answer = await complete(http, pod, [5, 6, 7], return_token_ids=True, max_tokens=3)
    choice = answer["choices"][0]
    assert choice["prompt_token_ids"] == [5, 6, 7]
    assert bytes(choice["token_ids"]).decode() == choice["text"]


async def test_rendered_ids_stand_in_for_the_chats_own(http: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    _, rendered = await post(http, pod, "/tokenize", {"messages": HELLO, "tools": [{"type": "function"}]})
    body = {"messages": HELLO, "kv_transfer_params": {"prompt_token_ids": rendered["tokens"]}, "return_token_ids": True}
    _, chat = await post(http, pod, "/v1/chat/completions", body)
    assert chat["prompt_token_ids"] == rendered["tokens"]
    body["kv_transfer_params"] = {"prompt_token_ids": []}
    status, refused = await post(http, pod, "/v1/chat/completions", body)
    assert (status, refused["error"]["param"]) == (400, "kv_transfer_params.prompt_token_ids")


async def test_tokenize_agrees_with_what_is_computed(http: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    _, chat = await post(http, pod, "/v1/chat/completions", {"messages": HELLO, "return_token_ids": True})
    _, tokenized = await post(http, pod, "/tokenize", {"messages": HELLO, "return_token_strs": True})
    assert tokenized["tokens"] == chat["prompt_token_ids"]
    assert tokenized["count"] == len(tokenized["tokens"]) == len(tokenized["token_strs"])
    assert tokenized["max_model_len"] == 32768
    _, bare = await post(http, pod, "/tokenize", {"prompt": "héllo", "add_special_tokens": False})
    _, text = await post(http, pod, "/detokenize", {"tokens": bare["tokens"]})
    assert text == {"prompt": "héllo"}


async def test_streamed_token_ids_add_up_to_the_answer(http: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True, "return_token_ids": True, "stream": True}
    body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    async with http.post(f"{pod.url}/v1/completions", json=body) as response:
        chunks = [msgspec.json.decode(part[6:]) for part in (await response.read()).split(b"\n\n")[:-2]]
    whole = await complete(http, pod, [5, 6, 7], max_tokens=3, return_token_ids=True)
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert choices[0]["prompt_token_ids"] == [5, 6, 7]
    assert [token for choice in choices for token in choice["token_ids"]] == whole["choices"][0]["token_ids"]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3]


async def test_a_stop_string_ends_the_answer(http: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    text = (await complete(http, pod, [7], max_tokens=60))["choices"][0]["text"]
    word = text.split()[2]
    (choice,) = (await complete(http, pod, [7], max_tokens=60, stop=word))["choices"]
    assert choice["text"] == text[: text.index(word)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", word)


async def test_truncation_keeps_the_prompts_end(http: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    prompt = [7] * 40_000 + [8]
    some = await complete(http, pod, prompt, truncate_prompt_tokens=2, return_token_ids=True)
    assert some["choices"][0]["prompt_token_ids"] == [7, 8]
    assert (await complete(http, pod, prompt, truncate_prompt_tokens=-1))["usage"]["prompt_tokens"] == 32767


async def test_prompt_details_can_be_off(http: aiohttp.ClientSession) -> None:
    async with SimulatedPod(speed=1000, prompt_tokens_details=False) as pod:
        assert (await complete(http, pod, [7]))["usage"]["prompt_tokens_details"] is None


async def test_a_repeated_prompt_is_cached(http: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    prompt = list(range(1000, 1100))
    assert cached(await complete(http, pod, prompt)) == 0
    assert cached(await complete(http, pod, prompt)) == 96
    assert pod.requests[-1].cached_tokens == 96


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        (
            "completions",
            {"model": "x", "prompt": "a"},
            404,
            ("The model `x` does not exist.", "NotFoundError", "model"),
        ),
        (
            "completions",
            {"prompt": [7] * 40000},
            400,
            ("This model's maximum context", "BadRequestError", "input_tokens"),
        ),
        ("completions", {"prompt": [7] * 32768}, 400, ("The decoder prompt (length", "BadRequestError", None)),
        (
            "completions",
            {"prompt": [7], "max_tokens": 40000},
            400,
            ("max_tokens=40000", "BadRequestError", "max_tokens"),
        ),
        ("completions", {"prompt": [7], "max_tokens": 0}, 400, ("max_tokens must be", "BadRequestError", "max_tokens")),
        ("completions", {"prompt": [1 << 40]}, 400, ("Token id 1099511627776 is out", "BadRequestError", "prompt")),
        ("completions", {"prompt": {}}, 400, ("1 validation error", "Bad Request", "body.prompt")),
        ("completions", {"prompt": [7], "n": 2}, 400, ("a simulated pod", "BadRequestError", "n")),
        ("chat/completions", {"messages": 3}, 400, ("1 validation error", "Bad Request", "body.messages")),
        (
            "chat/completions",
            {"messages": HELLO, "chat_template": "x"},
            400,
            ("Chat template", "BadRequestError", None),
        ),
        (
            "chat/completions",
            {"messages": HELLO, "continue_final_message": True},
            400,
            ("Cannot set both", "BadRequestError", None),
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            ("this model is not a multimodal", "BadRequestError", "messages"),
        ),
        ("chat/completions/render", {}, 403, ("Scale-out endpoints", "PermissionDeniedError", None)),
        ("nothing", {}, 404, ("Not Found", "Not Found", None)),
    ],
)
async def test_refusals_are_worded_as_vllms(
    http: aiohttp.ClientSession,
    pod: SimulatedPod,
    path: str,
    body: Any,
    status: int,
    error: tuple[str, str, str | None],
) -> None:
    got, answer = await post(http, pod, f"/v1/{path}", body)
    message, kind, param = error
    assert got == status
    assert answer["error"]["message"].startswith(message)
    assert answer["error"] == {"message": answer["error"]["message"], "type": kind, "param": param, "code": status}


async def test_a_body_that_is_no_json_is_refused(http: aiohttp.ClientSession, pod: SimulatedPod) -> None:
    for headers, data in (({"content-type": "application/json"}, b"{"), ({"content-type": "text/plain"}, b"{}")):
        async with http.post(f"{pod.url}/v1/completions", data=data, headers=headers) as response:
            assert response.status == 400
            assert (await response.json())["error"]["type"] == "Bad Request"
    assert [received.outcome for received in pod.requests] == ["failed", "failed"]
