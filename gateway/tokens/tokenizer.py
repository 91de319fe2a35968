"""Token ids from a pod (`POST /tokenize`), memoized, under one deadline.

When no pod tells in time, the request goes on without ids: it is placed by load, and the reason is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from config.schema import Tokens
from gateway.errors import PodError, PodRejected, PodTimeout
from gateway.openai import Peek, PromptKind
from gateway.pods import Pod
from gateway.tokens.memo import TokenMemo
from gateway.tokens.prompt import Prompt, TokenIds, given_prompts, unknown
from gateway.upstream import PodApi, decoded

Pods = Callable[[], Sequence[Pod]]
"""Who could be asked, if there is something to ask."""


class _ChatQuestion(Struct, omit_defaults=True):
    model: str
    messages: Raw
    tools: Raw | UnsetType = UNSET
    chat_template: Raw | UnsetType = UNSET
    chat_template_kwargs: Raw | dict[str, Raw] | UnsetType = UNSET
    add_generation_prompt: Raw | UnsetType = UNSET
    continue_final_message: Raw | UnsetType = UNSET
    add_special_tokens: Raw | UnsetType = UNSET
    media_io_kwargs: Raw | UnsetType = UNSET
    mm_processor_kwargs: Raw | UnsetType = UNSET


class _TextQuestion(Struct, omit_defaults=True):
    model: str
    prompt: str
    add_special_tokens: Raw | UnsetType = UNSET


class _Answer(Struct):
    tokens: list[int]


class Tokenizer:
    """`tokenize` never raises for a pod's fault: the worst is a `Prompt` without ids."""

    def __init__(self, api: PodApi, settings: Tokens) -> None:
        self._api = api
        self._settings = settings
        self._memo = TokenMemo(settings.memo_tokens)

    def reconfigure(self, settings: Tokens) -> None:
        """Prompts from now on are tokenized so. What the memo has over its bound is forgotten at once."""
        self._settings = settings
        self._memo.reconfigure(settings.memo_tokens)

    async def tokenize(self, kind: PromptKind, ask: Peek, model: str, pods: Pods) -> Prompt:
        """The request's prompts as ids; `pods` serve the model, the ones to ask."""
        if _given(ask.truncate_prompt_tokens):
            return unknown("truncated")
        if _given(ask.prompt_embeds):
            return unknown("embeds")
        if kind == "completions":
            return await self._texts(ask, model, pods)
        if not _given(ask.messages):
            return unknown("invalid")
        return await self._ask([_chat_question(ask, model)], pods)

    async def _texts(self, ask: Peek, model: str, pods: Pods) -> Prompt:
        prompts = given_prompts(ask)
        if prompts is None:
            return unknown("invalid")
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if not texts:
            return Prompt(tuple(p for p in prompts if isinstance(p, TokenIds)), "given")
        if len(texts) > self._settings.max_batch:
            return unknown("batch-too-large")
        told = await self._ask([_encode(_TextQuestion(model, text, ask.add_special_tokens)) for text in texts], pods)
        if told.tokens_from == "none":
            return told
        answers = iter(told.sequences)
        return Prompt(tuple(p if isinstance(p, TokenIds) else next(answers) for p in prompts), "pod")

    async def _ask(self, questions: list[bytes], pods: Pods) -> Prompt:
        if len(questions) == 1 and (known := self._memo.get(self._memo.key(questions[0]))) is not None:
            return Prompt((known,), "pod")
        keys = [self._memo.key(question) for question in questions]
        found = [self._memo.get(key) for key in keys]
        missing = [i for i, ids in enumerate(found) if ids is None]
        if missing:
            try:
                async with asyncio.timeout(self._settings.timeout):
                    answers = await asyncio.gather(*(self._ask_pods(questions[i], pods) for i in missing))
            except TimeoutError:
                return unknown("timeout")
            except PodError as error:
                return unknown(_reason(error))
            for i, ids in zip(missing, answers, strict=True):
                self._memo.put(keys[i], ids)
                found[i] = ids
        return Prompt(tuple(ids for ids in found if ids is not None), "pod")

    async def _ask_pods(self, question: bytes, pods: Pods) -> TokenIds:
        """Ask the pod with the least under way, then the next: one that just died must not cost the prefix term."""
        failure: PodError = PodRejected("no pod to ask", code="no_pod")
        for pod in sorted(pods(), key=_under_way)[:2]:
            try:
                body = await self._api.post(pod.url, "/tokenize", question, timeout=self._settings.timeout)
                return _ids(decoded(body, _Answer, pod.url).tokens, pod)
            except PodRejected:
                raise  # the question is at fault, or the model: another pod would say the same
            except PodError as error:
                failure = error
        raise failure


def _under_way(pod: Pod) -> int:
    return sum(counts.requests for counts in pod.in_flight.values())


def _reason(error: PodError) -> str:
    if isinstance(error, PodTimeout):
        return "timeout"
    return "rejected" if isinstance(error, PodRejected) else "unreachable"


def _ids(tokens: list[int], pod: Pod) -> TokenIds:
    try:
        return TokenIds("I", tokens)
    except OverflowError as error:
        raise PodRejected(f"{pod.url}: a token id out of range", code="pod_rejected") from error


def _given(field: Raw | UnsetType) -> bool:
    return field is not UNSET and bytes(field) != b"null"


def _encode(question: Struct) -> bytes:
    return msgspec.json.encode(question)


def _chat_question(ask: Peek, model: str) -> bytes:
    """The parameters of a chat completion that change the prompt, as `/tokenize` takes them.

    `documents` and `reasoning_effort` are fields of a chat completion that vLLM hands to the template as keyword
    arguments; `/tokenize` knows only `chat_template_kwargs`.
    """
    return _encode(
        _ChatQuestion(
            model,
            Raw(ask.messages or b""),
            tools=ask.tools,
            chat_template=ask.chat_template,
            chat_template_kwargs=_template_kwargs(ask),
            add_generation_prompt=ask.add_generation_prompt,
            continue_final_message=ask.continue_final_message,
            add_special_tokens=ask.add_special_tokens,
            media_io_kwargs=ask.media_io_kwargs,
            mm_processor_kwargs=ask.mm_processor_kwargs,
        )
    )


def _template_kwargs(ask: Peek) -> Raw | dict[str, Raw] | UnsetType:
    extra: dict[str, Raw] = {}
    if isinstance(ask.documents, Raw) and _given(ask.documents):
        extra["documents"] = ask.documents
    if isinstance(ask.reasoning_effort, Raw) and _given(ask.reasoning_effort):
        extra["reasoning_effort"] = ask.reasoning_effort
        extra["enable_thinking"] = Raw(b"false" if bytes(ask.reasoning_effort) == b'"none"' else b"true")
    own: dict[str, Raw] = {}
    if extra and isinstance(ask.chat_template_kwargs, Raw) and _given(ask.chat_template_kwargs):
        try:
            own = msgspec.json.decode(ask.chat_template_kwargs, type=dict[str, Raw])
        except msgspec.ValidationError:
            extra = {}  # the pod refuses what is not an object, here and with the request itself
    if "enable_thinking" in own:
        extra.pop("enable_thinking", None)
    return {**own, **extra} if extra else ask.chat_template_kwargs
