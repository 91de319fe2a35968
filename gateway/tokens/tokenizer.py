"""A request's prompts as token ids: out of the memo, by the model's own files, or from a pod, under one deadline.

When nobody tells in time the request goes on without ids: it is placed by load, and the reason is counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import structlog
from msgspec import UNSET

from config.schema import Breaker, Tokens
from gateway.breaker import State
from gateway.metrics import Metrics
from gateway.openai import BYTE_ORDER_MARK, Peek, PromptKind
from gateway.pod import Pod
from gateway.tokens.abilities import Abilities
from gateway.tokens.asking import Asking
from gateway.tokens.chat import ChatFields
from gateway.tokens.chats import Chats, Conversation
from gateway.tokens.embeddings import EmbeddingFields, EmbeddingPrompts, prompts
from gateway.tokens.local_models import LocalModels
from gateway.tokens.memo import TokenMemo
from gateway.tokens.off_loop import OffLoop
from gateway.tokens.pod_backend import PodBackend, Pods, Unanswered
from gateway.tokens.prompt import Prompt, unknown
from gateway.tokens.questions import given
from gateway.tokens.refusal import Refused
from gateway.tokens.render_once import ids_to_send
from gateway.tokens.texts import Texts
from gateway.upstream import PodApi

_log = structlog.get_logger("gateway.tokens")
_AGAIN_S, _AGAIN_AT_MOST_S = 1.0, 60.0


class Tokenizer:
    """`tokenize` never raises for a pod's fault, nor for what a prompt is: the worst is a `Prompt` without ids."""

    def __init__(
        self,
        api: PodApi,
        settings: Tokens,
        *,
        breaker: Breaker,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._memo = TokenMemo(settings.memo_tokens)
        self._off_loop = OffLoop(settings.threads)
        self._backend = PodBackend(api, settings, breaker, clock)
        self._models = LocalModels(settings, self._backend, self._off_loop)
        asking = Asking(self._backend, self._memo)
        self._texts = Texts(self._models, asking, self._off_loop)
        self._chats = Chats(self._models, asking, self._memo, self._off_loop)
        self._abilities = Abilities(api, self._backend)
        self._changed = asyncio.Event()
        self._told: set[tuple[str, str]] = set()
        self._counters = {  # of each way to make tokens, found once
            tokens_from: (metrics.tokenization.labels(tokens_from), metrics.reused_tokens.labels(tokens_from))
            for tokens_from in ("local", "pod")
        }

    def reconfigure(self, settings: Tokens, *, breaker: Breaker) -> None:
        """Prompts from now on are tokenized so. What the memo has over its bound is forgotten at once."""
        self._settings = settings
        self._memo.reconfigure(settings.memo_tokens)
        self._off_loop.reconfigure(settings.threads)
        self._backend.reconfigure(settings, breaker)
        if self._models.reconfigure(settings):
            self._memo.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """Prompts that wait for a thread are dropped."""
        self._off_loop.close()
        self._models.close()

    async def follow(self, pod: Pod) -> None:
        """While the pod is up: hold its model's files against it, learn whether it takes ids; again after changes."""
        self._backend.joined(pod.name)
        pause = _AGAIN_S
        try:
            while True:
                changed = self._changed
                ended = await self._acquaint(pod)
                try:
                    async with asyncio.timeout(None if ended else pause):
                        await changed.wait()
                    pause = _AGAIN_S
                except TimeoutError:
                    pause = min(2 * pause, _AGAIN_AT_MOST_S)
        finally:
            self._models.forget(pod)

    async def _acquaint(self, pod: Pod) -> bool:
        try:
            verified = await self._models.verify(pod)
            return (not self._settings.render_once or await self._abilities.probe(pod)) and verified
        except Exception:  # noqa: BLE001 - the files are anybody's, and the pod must not suffer for them
            self._metrics.task_failures.labels(pod.name).inc()
            _log.exception("a model's files could not be looked at", pod=pod.name)
            return False

    def shown(self) -> Iterator[dict[str, Any]]:
        """How each model's prompts are tokenized, for operators."""
        return self._models.shown()

    def here(self) -> Iterator[tuple[str, bool]]:
        """Each model that pods serve, and whether its prompts are tokenized here."""
        return ((row["model"], row["backend"] == "local") for row in self.shown())

    def summary(self) -> dict[str, str]:
        """In a word per model, for who asks whether all is well."""
        found: dict[str, str] = {}
        for row in self.shown():
            backend, why = row["backend"], row["reason"]
            asked = [self.state(pod) for pod in row["pods"]]
            if backend == "pod" and asked and "closed" not in asked:
                found[row["model"]] = "none: every pod has failed at it lately"
            else:
                found[row["model"]] = f"{backend}: {why}" if why else backend
        return found

    def asks(self, pod: str) -> bool:
        """Whether the pod is asked for tokens."""
        return self.state(pod) != "open"

    def state(self, pod: str) -> State:
        """Whether the pod is asked for tokens."""
        return self._backend.state(pod)

    def tokenize(self, kind: PromptKind, ask: Peek, body: bytes, model: str, pods: Pods) -> Prompt | Awaitable[Prompt]:
        """The request's prompts as ids, at once or to be awaited; `pods` serve the model, the ones to ask."""
        if ask.truncate_prompt_tokens is not UNSET and given(ask.truncate_prompt_tokens):
            return unknown("truncated")
        if ask.prompt_embeds is not UNSET and given(ask.prompt_embeds):
            return unknown("embeds")
        began = time.perf_counter()
        deadline = asyncio.get_running_loop().time() + self._settings.timeout
        try:
            made = self._made(kind, ask, body.removeprefix(BYTE_ORDER_MARK), model, pods, deadline)
        except Exception as error:  # noqa: BLE001 - as in `_awaited`
            made = self._without(error, model)
        return self._counted(made, began) if isinstance(made, Prompt) else self._awaited(made, model, began)

    async def _awaited(self, made: Awaitable[Prompt], model: str, began: float) -> Prompt:
        try:
            prompt = await made
        except Exception as error:  # noqa: BLE001 - conversions see whatever clients send: a fault must not cost the request
            prompt = self._without(error, model)
        return self._counted(prompt, began)

    def _counted(self, prompt: Prompt, began: float) -> Prompt:
        if (counters := self._counters.get(prompt.tokens_from)) is not None:
            seconds, reused = counters
            seconds.observe(time.perf_counter() - began)
            reused.inc(prompt.reused)
        return prompt

    def _without(self, error: Exception, model: str) -> Prompt:
        """A prompt that nobody told, or that there is none of."""
        return unknown(error.reason) if isinstance(error, Unanswered | Refused) else self._fault(error, model)

    def _fault(self, fault: Exception, model: str) -> Prompt:
        """Go on without ids; the log has the first of each kind, the counter all."""
        kind = type(fault).__name__
        if (model, kind) not in self._told:
            self._told.add((model, kind))
            _log.error("a prompt could not be tokenized for a fault of the gateway", model=model, exc_info=fault)
        return unknown("fault")

    def _made(
        self, kind: PromptKind, ask: Peek, body: bytes, model: str, pods: Pods, deadline: float
    ) -> Prompt | Awaitable[Prompt]:
        if kind == "completions":
            return self._texts.completed(ask, model, pods, deadline, self._settings.max_batch)
        asked = Conversation(kind, ask, body, model, pods, deadline)
        return self._embedded(asked) if kind == "embeddings" else self._chats.prompt(asked)

    async def _embedded(self, asked: Conversation) -> Prompt:
        """Of texts, or of the one conversation that an embedding can be of."""
        most = self._settings.max_batch
        fields = await self._off_loop.run(len(asked.body), partial(embedded, asked.body), asked.deadline)
        if not any(isinstance(prompt, ChatFields) for prompt in fields.prompts):
            return await self._texts.embedded(fields, asked.model, asked.pods, asked.deadline, most)
        made = self._chats.prompt(asked)
        return made if isinstance(made, Prompt) else await made

    def ids_to_send(self, pod: Pod, request_id: str, ask: Peek, prompt: Prompt) -> bytes | None:
        """The prompt's ids as JSON, where the pod is to be given them with the request."""
        return ids_to_send(pod, request_id, ask, prompt) if self._settings.render_once else None

    def reported(self, prompt: Prompt, model: str, tokens: int) -> None:
        """The engine counted so many prompt tokens of a request that it rendered and tokenized itself."""
        if prompt.tokens_from not in ("local", "pod") or not prompt.whole:
            return
        equal = tokens == prompt.tokens
        if not equal:
            self._metrics.token_mismatches.labels(model, prompt.tokens_from).inc()
            if (model, prompt.tokens_from) not in self._told:
                self._told.add((model, prompt.tokens_from))
                _log.warning(
                    "the engine counts other prompt tokens than were predicted",
                    model=model,
                    tokens_from=prompt.tokens_from,
                    predicted=prompt.tokens,
                    counted=tokens,
                )
        if prompt.tokens_from == "local":
            self._models.compared(prompt.base, equal=equal)


def embedded(body: bytes) -> EmbeddingPrompts:
    """What is to be embedded. Raises Refused."""
    try:
        return prompts(msgspec.json.decode(body, type=EmbeddingFields))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("invalid", str(error)) from error
