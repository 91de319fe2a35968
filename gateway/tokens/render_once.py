"""Prompts are rendered once: pods that take token ids with a chat are given those that placed it.

vLLM (0.32, `renderers/online_renderer.py`) uses `kv_transfer_params.prompt_token_ids` instead of rendering and
tokenizing the messages, made for decoding pods of a split fleet. It is not documented, so each pod that comes up is
asked one chat with ids that its messages do not come to: one that takes them says so in its answer. Where messages
hold more than text, or `echo` is set, the engine renders them all the same; such requests go without.
"""

from __future__ import annotations

import asyncio

import msgspec
import xxhash
from msgspec import Raw, Struct

from config.schema import Tokens
from gateway.errors import PodError, PodRejected
from gateway.openai import Peek
from gateway.pods import Pod
from gateway.tokens.pod_backend import PodBackend, Unanswered
from gateway.tokens.prompt import Prompt
from gateway.tokens.questions import body_key, given, text_question
from gateway.upstream import PodApi, decoded

_PROBE_S = 30.0
_TEXT = "A prefix that is shared is computed once."
# One request in so many goes without ids, so that the engine's own count still tells whether ours are right.
_CHECKED = 32


class _Asked(Struct):
    model: str
    kv_transfer_params: dict[str, Raw]
    messages: tuple[dict[str, str], ...] = ({"role": "user", "content": "Hello."},)
    max_tokens: int = 1
    temperature: float = 0.0
    return_token_ids: bool = True


class _Answer(Struct):
    prompt_token_ids: list[int] | None = None


class RenderOnce:
    """Which pods take ids, and which requests bring them."""

    def __init__(self, api: PodApi, backend: PodBackend, settings: Tokens) -> None:
        self._api = api
        self._backend = backend
        self._settings = settings

    def reconfigure(self, settings: Tokens) -> None:
        """Requests from now on go by these."""
        self._settings = settings

    def ids(self, pod: Pod, request_id: str, ask: Peek, prompt: Prompt) -> bytes | None:
        """The prompt's ids as JSON, where the pod is to be given them. O(new ids) and a copy."""
        wanted = self._settings.render_once and pod.takes_token_ids and prompt.of_chat and prompt.whole
        if not wanted or len(prompt.sequences) != 1 or given(ask.echo):
            return None
        if xxhash.xxh3_64_intdigest(request_id.encode()) % _CHECKED == 0:
            return None
        return prompt.sequences[0].as_json()

    async def probe(self, pod: Pod) -> bool:
        """Find out whether the pod takes ids; whether that came to an end. Never raises for the pod."""
        if not self._settings.render_once or pod.takes_token_ids or not pod.base_model:
            return True
        question = text_question(_TEXT, Peek(), pod.base_model)
        deadline = asyncio.get_running_loop().time() + _PROBE_S
        try:
            ids = await self._backend.ids(question, body_key(question, pod.name), lambda: [pod], deadline)
            asked = msgspec.json.encode(_Asked(pod.base_model, {"prompt_token_ids": Raw(ids.as_json())}))
            answer = await self._api.post(pod.url, "/v1/chat/completions", asked, timeout=_PROBE_S)
            pod.takes_token_ids = decoded(answer, _Answer, pod.url).prompt_token_ids == ids.tolist()
        except Unanswered as failure:
            return failure.reason == "rejected"
        except PodRejected:
            return True
        except PodError:
            return False
        return True
