"""Texts as token ids, of completions and embeddings: given, made here, or told by pods."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Raw

from gateway.openai import Peek
from gateway.tokens.asking import Asking, Keyed
from gateway.tokens.chat import ChatFields
from gateway.tokens.embeddings import EmbeddingPrompts
from gateway.tokens.local import Local, LocalTokenizer
from gateway.tokens.local_models import LocalModels
from gateway.tokens.off_loop import OffLoop
from gateway.tokens.pod_backend import Pods, tokenize
from gateway.tokens.prompt import Prompt, TokenIds, given_prompts, unknown
from gateway.tokens.questions import given, text_key, text_question


class Texts:
    """Raises Refused and Unanswered."""

    def __init__(self, models: LocalModels, asking: Asking, off_loop: OffLoop) -> None:
        self._models = models
        self._asking = asking
        self._off_loop = off_loop

    async def completed(self, ask: Peek, model: str, pods: Pods, deadline: float, most: int) -> Prompt:
        """The prompts of a completion, of which at most `most` may be texts."""
        prompts = given_prompts(ask)
        if prompts is None:
            return unknown("invalid")
        return await self._made(prompts, ask, model, pods, deadline, most)

    async def embedded(self, asked: EmbeddingPrompts, model: str, pods: Pods, deadline: float, most: int) -> Prompt:
        """Texts or ids that are to be embedded."""
        prompts = [prompt for prompt in asked.prompts if not isinstance(prompt, ChatFields)]
        ask = Peek() if asked.add_special_tokens else Peek(add_special_tokens=Raw(b"false"))
        return await self._made(prompts, ask, model, pods, deadline, most)

    async def _made(
        self, prompts: list[TokenIds | str], ask: Peek, model: str, pods: Pods, deadline: float, most: int
    ) -> Prompt:
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if not texts:
            return Prompt(tuple(p for p in prompts if isinstance(p, TokenIds)), "given")
        if len(texts) > most:
            return unknown("batch-too-large")
        special = _flag(ask)
        base, here = self._models.serving(model, pods)
        if here is not None and special is not None:
            work = partial(_encoded, here, texts, special)
            made = await self._off_loop.run(sum(map(len, texts)), work, deadline)
            ids = [each.ids for each in made if each.ids is not None]
            if len(ids) == len(made):
                return Prompt(_in_order(prompts, ids), "local", base=base, reused=sum(each.reused for each in made))
            self._models.require_pod(next(each.reason for each in made if each.ids is None))
        else:
            self._models.require_pod("no-files" if here is None else "invalid")
        by = f"pod\0{model}"
        questions = [Keyed(text_key(text, ask, by), tokenize(text_question(text, ask, model))) for text in texts]
        told = await self._asking.ask(questions, pods, deadline)
        return Prompt(_in_order(prompts, told.ids), "pod", reused=told.reused)


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
