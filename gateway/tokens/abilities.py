"""Whether a pod takes the token ids of a chat with it, found out when it comes up.

vLLM (0.32, `renderers/online_renderer.py`) uses `kv_transfer_params.prompt_token_ids` instead of rendering and
tokenizing a chat's messages. That is made for decoding pods of a split fleet and not documented, so the pod is asked
one chat with ids that its messages do not come to: one that takes them says so in its answer.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import Raw, Struct

from gateway.errors import PodError, PodRejected
from gateway.openai import Peek
from gateway.pod import Pod
from gateway.tokens.pod_backend import PodBackend, Unanswered, tokenize
from gateway.tokens.questions import body_key, text_question
from gateway.upstream import PodApi, decoded

_PROBE_S = 30.0
_TEXT = "A prefix that is shared is computed once."


class _Asked(Struct):
    model: str
    kv_transfer_params: dict[str, Raw]
    messages: tuple[dict[str, str], ...] = ({"role": "user", "content": "Hello."},)
    max_tokens: int = 1
    return_token_ids: bool = True


class _Answer(Struct):
    prompt_token_ids: list[int] | None = None


class Abilities:
    """Writes down at the pod what it finds."""

    def __init__(self, api: PodApi, backend: PodBackend) -> None:
        self._api = api
        self._backend = backend

    async def probe(self, pod: Pod) -> bool:
        """Find out whether the pod takes ids; whether that came to an end. Never raises for the pod."""
        if pod.takes_token_ids or not pod.base_model:
            return True
        question = text_question(_TEXT, Peek(), pod.base_model)
        deadline = asyncio.get_running_loop().time() + _PROBE_S
        try:
            ids = await self._backend.ids(tokenize(question), body_key(question, pod.name), lambda: [pod], deadline)
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
