"""What clients of OpenAI's and Anthropic's own read of real pods, beside completions."""

from collections.abc import Iterator

import anthropic
import openai
import pytest

from tests.engine.front import Gateway
from tests.engine.pods import Pod

pytestmark = pytest.mark.engine

SAID = [{"role": "user", "content": "Say this"}]


@pytest.fixture
def model(pods: tuple[Pod, ...]) -> str:
    return pods[0].model


@pytest.fixture
def api(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def messages(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        yield client


def test_messages_are_answered_whole_and_streamed(messages: anthropic.Anthropic, model: str) -> None:
    whole = messages.messages.create(model=model, max_tokens=4, messages=SAID)  # type: ignore[arg-type]
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", model)
    assert 1 <= whole.usage.output_tokens <= 4
    with messages.messages.stream(model=model, max_tokens=4, messages=SAID) as stream:  # type: ignore[arg-type]
        streamed = stream.get_final_message()
    assert (streamed.type, streamed.role) == ("message", "assistant")
    assert 1 <= streamed.usage.output_tokens <= 4
    with pytest.raises(anthropic.NotFoundError):
        messages.messages.create(model="nobody", max_tokens=4, messages=SAID)  # type: ignore[arg-type]


def test_tokens_of_messages_are_counted(messages: anthropic.Anthropic, model: str) -> None:
    assert messages.messages.count_tokens(model=model, messages=SAID).input_tokens > 0  # type: ignore[arg-type]


def test_a_response_is_made_and_streamed(api: openai.OpenAI, model: str) -> None:
    made = api.responses.create(model=model, input="Say this", max_output_tokens=4, temperature=0)
    assert made.usage is not None
    assert made.usage.output_tokens == 4
    with api.responses.create(model=model, input="Say this", max_output_tokens=4, stream=True) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


def test_models_are_listed_and_one_is_retrieved(api: openai.OpenAI, model: str) -> None:
    assert model in [card.id for card in api.models.list()]
    assert api.models.retrieve(model).id == model
