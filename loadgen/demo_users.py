"""Users that go on talking once the demo's story is told, so that there is something to see on the live page.

A few of them talk about a document at a time, and then about a new one. So some of what is asked is computed, much of
it is where it is asked, and the rest is pulled.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

import aiohttp

_USERS: Final = 6
_PER_DOCUMENT: Final = 3  # conversations
_TURNS: Final = 6  # then a user begins another
_SHORTEST: Final = 0.3  # of the document
_THINKS_S: Final = (0.5, 3.0)
_AFTER_FAILURE_S: Final = 1.0
_QUESTIONS: Final = ("Where does it begin?", "What follows from that?", "Who says so?", "Is that all?")

Messages = list[dict[str, str]]


@contextlib.asynccontextmanager
async def users(ask: Callable[[Messages], Awaitable[str]], document: str) -> AsyncIterator[None]:
    """Some, for as long as the context lasts. `ask` returns the answer's text."""
    documents = _documents(document)
    talking = [asyncio.create_task(_talk(ask, documents)) for _ in range(_USERS)]
    try:
        yield
    finally:
        for task in talking:
            task.cancel()
        await asyncio.wait(talking)


def _documents(document: str) -> Iterator[str]:
    """One for each conversation, without end; they differ from the first word on."""
    for number in itertools.count(1):
        share = random.uniform(_SHORTEST, 1)
        yield from [f"Document {number}. {document[: int(share * len(document))]}"] * _PER_DOCUMENT


async def _talk(ask: Callable[[Messages], Awaitable[str]], documents: Iterator[str]) -> None:
    for document in documents:
        messages: Messages = [{"role": "system", "content": document}]
        for _ in range(_TURNS):
            await asyncio.sleep(random.uniform(*_THINKS_S))
            messages.append({"role": "user", "content": random.choice(_QUESTIONS)})
            try:
                text = await ask(messages)
            except (aiohttp.ClientError, TimeoutError, KeyError):  # the gateway shows what became of it
                await asyncio.sleep(_AFTER_FAILURE_S)
                break
            messages.append({"role": "assistant", "content": text})
