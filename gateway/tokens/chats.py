"""Conversations as token ids: chats, and the responses and messages that engines make chats of.

memo ──▶ the model's files, here ──▶ ids
            ├─ with media ──▶ a pod that renders ──▶ ids, and where the media are
            │                   └─ there is none ──▶ the ids before the first of them
            └─ not known here ──▶ a pod, /tokenize
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial

import msgspec
from msgspec import Struct

from gateway.openai import Peek, PromptKind
from gateway.pod import Pod
from gateway.tokens import anthropic, embeddings, responses
from gateway.tokens.asking import Asking, Keyed
from gateway.tokens.chat import ChatFields
from gateway.tokens.conversation import before_media
from gateway.tokens.local import Local, LocalTokenizer
from gateway.tokens.local_models import LocalModels
from gateway.tokens.memo import TokenMemo
from gateway.tokens.off_loop import OffLoop
from gateway.tokens.pod_backend import Pods, Unanswered, render, tokenize
from gateway.tokens.prompt import Prompt, TokenIds, unknown
from gateway.tokens.questions import body_key, chat_key, chat_question, converted_question, given, holds_media
from gateway.tokens.refusal import Refused

_USUAL = anthropic.Habits(joins_system=False, disabled_effort="none")  # where a model's files are not known
_TAKEN_AS_IDS = ("chat/completions", "messages")  # which engines take ids with
_LONG = 4096  # ids whose JSON is better written in the thread that made them


class Conversation(Struct, frozen=True):
    """A request that holds one; `pods` serve its `model`. Its ids are of use until `deadline`, the loop's time."""

    kind: PromptKind
    ask: Peek
    body: bytes
    model: str
    pods: Pods
    deadline: float

    @property
    def is_chat(self) -> bool:
        """Whether the body is the chat itself, and not something that becomes one."""
        return self.kind == "chat/completions"

    def key(self, by: str) -> bytes:
        """What its ids are remembered under when `by` made them."""
        return chat_key(self.ask, by) if self.kind == "chat/completions" else body_key(self.body, by)

    def prompt(self, ids: TokenIds, reused: int, base: str = "") -> Prompt:
        """Its ids, whole; made here if they have a `base`."""
        of_chat = self.kind in _TAKEN_AS_IDS and not ids.media
        return Prompt((ids,), "local" if base else "pod", base=base, reused=reused, of_chat=of_chat)


class Chats:
    """Raises Refused and Unanswered."""

    def __init__(self, models: LocalModels, asking: Asking, memo: TokenMemo, off_loop: OffLoop) -> None:
        self._models = models
        self._asking = asking
        self._memo = memo
        self._off_loop = off_loop

    def prompt(self, asked: Conversation) -> Prompt | Awaitable[Prompt]:
        """A conversation's prompt: at once where it is remembered, else to be awaited."""
        if asked.kind == "chat/completions" and not given(asked.ask.messages):
            return unknown("invalid")
        base, here = self._models.serving(asked.model, asked.pods)
        if here is None:
            self._models.require_pod("no-files")
            base = ""
        key = asked.key(f"pod\0{asked.model}" if here is None else f"local\0{base}")
        if (ids := self._memo.get(key)) is not None:
            return asked.prompt(ids, len(ids), base)
        return self._told(asked, key) if here is None else self._by_files(asked, here, base, key)

    async def _by_files(self, asked: Conversation, here: LocalTokenizer, base: str, key: bytes) -> Prompt:
        work = partial(_made_here, here, asked.kind, asked.body)
        made = await self._off_loop.run(len(asked.body), work, asked.deadline)
        if made.reason == "media" and (rendered := await self._rendered(asked)) is not None:
            return rendered
        if made.ids is None:
            self._models.require_pod(made.reason)
            key = asked.key(f"pod\0{asked.model}")
            ids = self._memo.get(key)
            return await self._told(asked, key) if ids is None else asked.prompt(ids, len(ids))
        if made.reason == "media":
            return Prompt((made.ids,), "local", "media", whole=False, base=base, reused=made.reused)
        self._memo.put(key, made.ids)
        return asked.prompt(made.ids, made.reused, base)

    async def _told(self, asked: Conversation, key: bytes) -> Prompt:
        with_media = holds_media(asked.body)
        if (with_media or not asked.is_chat) and (rendered := await self._rendered(asked)) is not None:
            return rendered
        question = chat_question(asked.ask, asked.model) if asked.is_chat else b""
        if with_media or not asked.is_chat:
            work = partial(conversation_of, asked.kind, asked.body)
            fields = await self._off_loop.run(len(asked.body), work, asked.deadline)
            if (known := before_media(fields.messages)) is not None:
                return await self._before_media(asked, fields, known)
            question = question or converted_question(fields, asked.model)
        told = await self._asking.ask([Keyed(key, tokenize(question))], asked.pods, asked.deadline)
        return asked.prompt(told.ids[0], told.reused)

    async def _before_media(self, asked: Conversation, fields: ChatFields, known: int) -> Prompt:
        """The ids of the `known` messages before the first that is not all text."""
        if not known:
            raise Refused("media", "nothing stands before it")
        before = msgspec.structs.replace(
            fields, messages=fields.messages[:known], add_generation_prompt=False, continue_final_message=False
        )
        question = converted_question(before, asked.model)
        keyed = Keyed(body_key(question, f"pod\0{asked.model}"), tokenize(question))
        told = await self._asking.ask([keyed], asked.pods, asked.deadline)
        return Prompt((told.ids[0],), "pod", "media", whole=False, reused=told.reused)

    async def _rendered(self, asked: Conversation) -> Prompt | None:
        """As a pod renders it that has an endpoint for that; None: there is none, or it did not tell.

        In half of the time that is left: what else can be known is to be had in the other half.
        """

        def renderers() -> list[Pod]:
            return [pod for pod in asked.pods() if pod.renders is not False]

        if not renderers():
            return None
        keyed = Keyed(body_key(asked.body, f"render\0{asked.model}"), render(asked.body, f"/v1/{asked.kind}"))
        now = asyncio.get_running_loop().time()
        try:
            told = await self._asking.ask([keyed], renderers, (now + asked.deadline) / 2)
        except Unanswered:
            return None
        return asked.prompt(told.ids[0], told.reused)


def _made_here(here: LocalTokenizer, kind: PromptKind, body: bytes) -> Local:
    """A conversation's ids; those before its first image or sound, with the reason "media", where it has one."""
    try:
        fields = conversation_of(kind, body, here.habits)
    except Refused as refused:
        return Local(None, 0, refused.reason, refused.detail)
    made = here.encode_chat(fields, embedded=kind == "embeddings")
    if made.reason == "media":
        return here.encode_before_media(fields)
    if made.ids is not None and len(made.ids) > _LONG:
        made.ids.write_json()  # here, and not on the loop
    return made


def conversation_of(kind: PromptKind, body: bytes, does: anthropic.Habits = _USUAL) -> ChatFields:
    """The chat that a body comes to in the engine. Raises Refused."""
    try:
        if kind == "responses":
            return responses.chat_fields(msgspec.json.decode(body, type=responses.ResponsesFields))
        if kind == "embeddings":
            return embeddings.conversation(msgspec.json.decode(body, type=embeddings.EmbeddingFields))
        if kind == "messages":
            return anthropic.chat_fields(msgspec.json.decode(body, type=anthropic.MessagesFields), does=does)
        return msgspec.json.decode(body, type=ChatFields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("invalid", str(error)) from error
