"""A request's prompts as token ids: out of the memo, by the model's own files, or from a pod, under one deadline.

When nobody tells in time the request goes on without ids: it is placed by load, and the reason is counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog

from config.schema import Breaker, Tokens
from gateway.breaker import State
from gateway.metrics import Metrics
from gateway.openai import BYTE_ORDER_MARK, Peek, PromptKind
from gateway.pods import Pod
from gateway.tokens.chat import ChatFields
from gateway.tokens.local import Local, LocalTokenizer
from gateway.tokens.local_models import LocalModels
from gateway.tokens.memo import TokenMemo
from gateway.tokens.off_loop import OffLoop
from gateway.tokens.pod_backend import PodBackend, Pods, Unanswered
from gateway.tokens.prompt import Prompt, TokenIds, given_prompts, unknown
from gateway.tokens.questions import (
    body_key,
    chat_key,
    chat_question,
    converted_question,
    given,
    holds_media,
    text_key,
    text_question,
)
from gateway.tokens.refusal import Reason, Refused
from gateway.tokens.render_once import RenderOnce
from gateway.upstream import PodApi

T = TypeVar("T")
_log = structlog.get_logger("gateway.tokens")
# What a pod may know where the model's files do not tell.
_POD_MAY_KNOW: frozenset[Reason | None] = frozenset(
    {"engine-renders", "invalid", "media", "no-template", "template", "tokenizer", "untrusted-template"}
)
_AGAIN_S, _AGAIN_AT_MOST_S = 1.0, 60.0
_LONG = 4096  # ids whose JSON is better written in the thread that made them


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
        self._changed = asyncio.Event()
        self._told: set[tuple[str, str]] = set()
        self.render_once = RenderOnce(api, self._backend, settings)

    def reconfigure(self, settings: Tokens, *, breaker: Breaker) -> None:
        """Prompts from now on are tokenized so. What the memo has over its bound is forgotten at once."""
        self._settings = settings
        self._memo.reconfigure(settings.memo_tokens)
        self._backend.reconfigure(settings, breaker)
        self._models.reconfigure(settings)
        self.render_once.reconfigure(settings)
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """Prompts that wait for a thread are dropped."""
        self._off_loop.close()

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
            return await self.render_once.probe(pod) and verified
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

    async def tokenize(self, kind: PromptKind, ask: Peek, body: bytes, model: str, pods: Pods) -> Prompt:
        """The request's prompts as ids; `pods` serve the model, the ones to ask."""
        if given(ask.truncate_prompt_tokens):
            return unknown("truncated")
        if given(ask.prompt_embeds):
            return unknown("embeds")
        began = time.perf_counter()
        deadline = asyncio.get_running_loop().time() + self._settings.timeout
        try:
            if kind == "completions":
                prompt = await self._texts(ask, model, pods, deadline)
            else:
                prompt = await self._chat(kind, ask, body.removeprefix(BYTE_ORDER_MARK), model, pods, deadline)
        except Unanswered as failure:
            prompt = unknown(failure.reason)
        except Refused as refused:
            prompt = unknown(refused.reason)
        if prompt.tokens_from in ("local", "pod"):
            self._metrics.tokenization.labels(prompt.tokens_from).observe(time.perf_counter() - began)
            self._metrics.reused_tokens.labels(prompt.tokens_from).inc(prompt.reused)
        return prompt

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

    async def _texts(self, ask: Peek, model: str, pods: Pods, deadline: float) -> Prompt:
        prompts = given_prompts(ask)
        if prompts is None:
            return unknown("invalid")
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if not texts:
            return Prompt(tuple(p for p in prompts if isinstance(p, TokenIds)), "given")
        if len(texts) > self._settings.max_batch:
            return unknown("batch-too-large")
        special = _flag(ask)
        base, here = self._models.serving(model, pods)
        if here is not None and special is not None:
            made = await self._here(sum(map(len, texts)), partial(_encoded, here, texts, special), deadline)
            if all(each.ids is not None for each in made):
                ids = [each.ids for each in made if each.ids is not None]
                reused = sum(each.reused for each in made)
                return Prompt(_in_order(prompts, ids), "local", base=base, reused=reused)
            self._require_pod(next(each.reason for each in made if each.ids is None))
        elif not self._models.asks_pods:
            return unknown("no-files")
        by = f"pod\0{model}"
        questions = [(text_key(text, ask, by), text_question(text, ask, model)) for text in texts]
        ids, reused = await self._ask(questions, pods, deadline)
        return Prompt(_in_order(prompts, ids), "pod", reused=reused)

    async def _chat(self, kind: PromptKind, ask: Peek, body: bytes, model: str, pods: Pods, deadline: float) -> Prompt:
        if kind == "chat/completions" and not given(ask.messages):
            return unknown("invalid")
        base, here = self._models.serving(model, pods)
        if here is not None:
            by = f"local\0{base}"
            key = chat_key(ask, by) if kind == "chat/completions" else body_key(body, by)
            if (ids := self._memo.get(key)) is not None:
                return Prompt((ids,), "local", base=base, reused=len(ids), of_chat=True)
            made = await self._here(len(body), partial(self._rendered, here, kind, body), deadline)
            if made.ids is not None and made.reason is None:
                self._memo.put(key, made.ids)
                return Prompt((made.ids,), "local", base=base, reused=made.reused, of_chat=True)
            if made.ids is not None:
                return Prompt((made.ids,), "local", made.reason or "", whole=False, base=base, reused=made.reused)
            self._require_pod(made.reason)
        elif not self._models.asks_pods:
            return unknown("no-files")
        by = f"pod\0{model}"
        if kind == "chat/completions":
            key, question = chat_key(ask, by), chat_question(ask, model)
        else:
            fields = await self._here(len(body), partial(conversation_of, kind, body), deadline)
            key, question = body_key(body, by), converted_question(fields, model)
        (ids,), reused = await self._ask([(key, question)], pods, deadline)
        return Prompt((ids,), "pod", reused=reused, of_chat=not holds_media(question))

    async def _here(self, size: int, work: Callable[[], T], deadline: float) -> T:
        """What `work` on a prompt of `size` bytes returns. Raises Refused."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._off_loop.run(size, work)
        except TimeoutError:
            raise Refused("timeout", "") from None

    def _rendered(self, here: LocalTokenizer, kind: PromptKind, body: bytes) -> Local:
        """A conversation's ids; those before its first image or sound, with the reason "media", where it has one."""
        try:
            fields = conversation_of(kind, body)
        except Refused as refused:
            return Local(None, 0, refused.reason, refused.detail)
        made = here.encode_chat(fields)
        if made.reason == "media":
            made = here.encode_before_media(fields)
        if self._settings.render_once and made.ids is not None and len(made.ids) > _LONG:
            made.ids.as_json()
        return made

    def _require_pod(self, reason: Reason | None) -> None:
        """Raise the refusal where a pod would not know more, or is not to be asked."""
        if reason not in _POD_MAY_KNOW or not self._models.asks_pods:
            raise Refused(reason or "invalid", "")

    async def _ask(
        self, questions: Sequence[tuple[bytes, bytes]], pods: Pods, deadline: float
    ) -> tuple[list[TokenIds], int]:
        """Ids by key and question, in order, and how many of them the memo had."""
        found = [self._memo.get(key) for key, _ in questions]
        reused = sum(len(ids) for ids in found if ids is not None)
        missing = {key: question for (key, question), ids in zip(questions, found, strict=True) if ids is None}
        if missing:
            told = await self._told_by_pods(missing, pods, deadline)
            for key, ids in told.items():
                self._memo.put(key, ids)
            found = [told[key] if ids is None else ids for (key, _), ids in zip(questions, found, strict=True)]
        return [ids for ids in found if ids is not None], reused

    async def _told_by_pods(self, missing: dict[bytes, bytes], pods: Pods, deadline: float) -> dict[bytes, TokenIds]:
        if len(missing) == 1:
            ((key, question),) = missing.items()
            return {key: await self._backend.ids(question, key, pods, deadline)}
        failed: BaseException | None = None
        asked: dict[bytes, asyncio.Task[TokenIds]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for key, question in missing.items():
                    asked[key] = group.create_task(self._backend.ids(question, key, pods, deadline))
        except* Unanswered as failures:
            failed = failures.exceptions[0]
        if failed is not None:
            raise failed
        return {key: task.result() for key, task in asked.items()}


def conversation_of(kind: PromptKind, body: bytes) -> ChatFields:  # noqa: ARG001
    """The chat that a body comes to in the engine. Raises Refused."""
    try:
        return msgspec.json.decode(body, type=ChatFields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("invalid", str(error)) from error


def _encoded(here: LocalTokenizer, texts: Sequence[str], special: bool) -> list[Local]:  # noqa: FBT001 - of `partial`
    return [here.encode_text(text, add_special_tokens=special) for text in texts]


def _in_order(prompts: Sequence[TokenIds | str], made: Sequence[TokenIds]) -> tuple[TokenIds, ...]:
    answers = iter(made)
    return tuple(next(answers) if isinstance(prompt, str) else prompt for prompt in prompts)


def _flag(ask: Peek) -> bool | None:
    """`add_special_tokens` of a text completion; None where only the engine knows what is meant."""
    if not given(ask.add_special_tokens):
        return True
    return {b"true": True, b"false": False}.get(bytes(ask.add_special_tokens or b""))
