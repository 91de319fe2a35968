"""Ids of several questions at once: what the memo has, and the rest from pods."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from gateway.tokens.memo import TokenMemo
from gateway.tokens.pod_backend import PodBackend, Pods, Question, Unanswered
from gateway.tokens.prompt import TokenIds


class Keyed(NamedTuple):
    """A question, and what its answer is remembered under."""

    key: bytes
    question: Question


class Told(NamedTuple):
    """Ids in the order of the questions; the memo had `reused` of them."""

    ids: list[TokenIds]
    reused: int


class Asking:
    """Pods behind a memo."""

    def __init__(self, backend: PodBackend, memo: TokenMemo) -> None:
        self._backend = backend
        self._memo = memo

    async def ask(self, questions: Sequence[Keyed], pods: Pods, deadline: float) -> Told:
        """The answers to all, by `deadline` (the loop's time). Raises Unanswered: one of them is missing."""
        found = [self._memo.get(asked.key) for asked in questions]
        reused = sum(len(ids) for ids in found if ids is not None)
        missing = {asked.key: asked.question for asked, ids in zip(questions, found, strict=True) if ids is None}
        told = await self._told(missing, pods, deadline) if missing else {}
        for key, new in told.items():
            self._memo.put(key, new)
        return Told(
            [told[asked.key] if ids is None else ids for asked, ids in zip(questions, found, strict=True)], reused
        )

    async def _told(self, missing: dict[bytes, Question], pods: Pods, deadline: float) -> dict[bytes, TokenIds]:
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
