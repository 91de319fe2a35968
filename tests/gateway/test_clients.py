"""What clients of OpenAI's and Anthropic's own read of the whole surface, over real sockets."""

import hashlib
from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from loadgen.tokens import render_chat
from tests.gateway.fleet import MODEL, Front, fleet


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with fleet(2) as (front, _):
        yield front


@pytest.fixture
async def api(front: Front) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def anthropics(front: Front) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=front.url, api_key="none", max_retries=0) as client:
        yield client


async def test_a_response_is_made_continued_and_retrieved(api: openai.AsyncOpenAI) -> None:
    first = await api.responses.create(model=MODEL, input="say this")
    assert first.output_text == "say this"
    for turn in range(6):
        after = await api.responses.create(model=MODEL, input=f"turn {turn}", previous_response_id=first.id)
        assert after.previous_response_id == first.id
        assert (await api.responses.retrieve(after.id)).output_text == f"turn {turn}"


async def test_a_response_is_streamed_and_cancelled(api: openai.AsyncOpenAI) -> None:
    async with await api.responses.create(model=MODEL, input="one two", stream=True) as stream:
        kinds = [event.type async for event in stream]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    waiting = await api.responses.create(model=MODEL, input="later", background=True)
    assert (await api.responses.cancel(waiting.id)).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        await api.responses.cancel((await api.responses.create(model=MODEL, input="now")).id)


async def test_a_response_that_nobody_keeps_is_not_found(api: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="Response with id 'resp_nobody' not found"):
        await api.responses.retrieve("resp_nobody")


async def test_embeddings_are_read(api: openai.AsyncOpenAI) -> None:
    answer = await api.embeddings.create(model=MODEL, input=["a", "b"])
    assert [len(row.embedding) for row in answer.data] == [8, 8]
    with pytest.raises(openai.NotFoundError) as caught:
        await api.embeddings.create(model="nobody", input="a")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("size", [10, 300_000])
async def test_audio_is_transcribed(api: openai.AsyncOpenAI, front: Front, size: int) -> None:
    sound = bytes(range(256)) * (size // 256 + 1)
    answer = await api.audio.transcriptions.create(model=MODEL, file=("a.wav", sound))
    assert answer.text == f"{len(sound)} bytes, {hashlib.sha256(sound).hexdigest()}"
    assert await front.metric("requests_total", endpoint="/v1/audio/transcriptions", status="200", model=MODEL) == 1


async def test_models_are_listed(api: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in api.models.list()] == [MODEL]
    assert (await api.models.retrieve(MODEL)).id == MODEL


async def test_a_message_is_answered_counted_and_streamed(anthropics: anthropic.AsyncAnthropic) -> None:
    said: anthropic.types.MessageParam = {"role": "user", "content": "say this"}
    answer = await anthropics.messages.create(model=MODEL, max_tokens=9, messages=[said])
    assert [block.text for block in answer.content if block.type == "text"] == ["say this"]
    counted = await anthropics.messages.count_tokens(model=MODEL, messages=[said])
    assert counted.input_tokens == answer.usage.input_tokens == len(render_chat([dict(said)]))
    async with anthropics.messages.stream(model=MODEL, max_tokens=9, messages=[said]) as stream:
        assert "".join([text async for text in stream.text_stream]) == "saythis"


async def test_anthropics_client_reads_the_gateways_errors_as_its_own(anthropics: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        await anthropics.messages.create(model="nobody", max_tokens=9, messages=[{"role": "user", "content": "x"}])
    assert caught.value.body == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "The model `nobody` does not exist."},
    }
