"""Pods asked past the gateway, by what an operator runs: `calibrate` and `check`.

Prompts are token ids drawn afresh, so no pod can hold anything of them: what is reused of one is what the same command
has put there.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec
from msgspec import Struct

from config.schema import Config, PodConfig
from gateway.credentials import Credentials, load_credentials
from gateway.inject import remote_kv_source
from gateway.metrics import Metrics
from gateway.pods import PodTable
from gateway.pull_counters import CacheInfo, Counters, Moved, moved, parse_cache_info, parse_counters
from gateway.served import Served
from gateway.tls import client_context
from gateway.upstream import PodApi, decoded
from gateway.watch import Files, Watch
from index import RadixIndex

Address = tuple[str, int]

_IDS: Final = range(100, 400)
"""Ids that any vocabulary has. Sixteen of them are drawn alike once in 10^39 times."""

REFUSED: Final = "connection refused"
"""Nobody listens; anything else may be so from here only."""

_CONNECT_S: Final = 3.0
_LOOK_S: Final = 0.02
_COUNTED_S: Final = 1.0
"""A pod counts what an answer reused about when it sends it; it may be a moment later."""


class _Models(Struct):
    data: list[Served]


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Answer(Struct):
    usage: _Usage


class Completed(NamedTuple):
    """An answer: how long it took, and what of its prompt was reused; None: the pod does not tell."""

    seconds: float
    prompt_tokens: int
    cached_tokens: int | None


class Pulled(NamedTuple):
    """A prompt that a consumer was given with a source: its answer, and what its pod counted."""

    answer: Completed
    moved: Moved

    @property
    def tokens(self) -> int:
        """How much of the prompt came from the source: by the answer, or where that does not tell, by the counters."""
        told = self.answer.cached_tokens
        return int(self.moved.tokens or 0) if told is None else told

    @property
    def happened(self) -> bool:
        """Whether anything came; a pod that counts pulls has to have counted this one."""
        if self.answer.cached_tokens == 0:
            return False  # the counters are those of all requests, and beside traffic others pull, too
        return self.moved.anything if self.moved.counted else self.tokens > 0


class DirectPod:
    """One rank of a pod. Every call has a deadline, and raises PodError.

    `p2p` is where the rank serves pulls, None if that is not known. `rank` is sent along where the pod has several.
    """

    def __init__(
        self, api: PodApi, spec: PodConfig, p2p: Address | None, *, timeout: float, rank: int | None = None
    ) -> None:
        self.url = spec.url.rstrip("/")
        self.spec = spec
        self.rank = rank or 0
        self.p2p = None if p2p is None else (p2p[0], p2p[1] + self.rank)
        self._api = api
        self._timeout = timeout
        self._headers = {} if rank is None else {"x-data-parallel-rank": str(rank)}

    async def get(self, path: str, seconds: float | None = None) -> bytes:
        """The body of a GET."""
        return await self._api.get(self.url, path, timeout=seconds or self._timeout)

    async def models(self, seconds: float | None = None) -> list[Served]:
        """The base models; the first one's id is the one that the others are aliases of."""
        answer = decoded(await self.get("/v1/models", seconds), _Models, f"{self.url}/v1/models")
        return [model for model in answer.data if not model.parent]

    async def counters(self) -> Counters:
        """What its /metrics says now."""
        return parse_counters(await self.get("/metrics"))

    async def cache_info(self) -> CacheInfo:
        """How its GPU tier is cut, and how large it is."""
        return parse_cache_info(await self.get("/metrics"))

    async def complete(
        self, model: str, prompt: list[int], *, max_tokens: int = 1, source: Address | None = None
    ) -> Completed:
        """Have it answer a prompt; with a `source`, told to pull from there. Timed from sending to the whole answer."""
        asked: dict[str, Any] = {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        if source is not None:
            named = msgspec.Raw(remote_kv_source(*source, str(uuid.uuid4())))
            asked["kv_transfer_params"] = {"remote_kv_source": named}
        body = msgspec.json.encode(asked)
        began = time.perf_counter()
        raw = await self._api.post(self.url, "/v1/completions", body, timeout=self._timeout, headers=self._headers)
        seconds = time.perf_counter() - began
        usage = decoded(raw, _Answer, f"{self.url}/v1/completions").usage
        details = usage.prompt_tokens_details
        return Completed(seconds, usage.prompt_tokens, None if details is None else details.cached_tokens)


async def pull(source: DirectPod, consumer: DirectPod, model: str, prompt: list[int]) -> Pulled:
    """Give the consumer a prompt with the source named, and see what it counts. Raises PodError."""
    before = await consumer.counters()
    answer = await consumer.complete(model, prompt, source=source.p2p)
    deadline = time.monotonic() + _COUNTED_S
    while True:
        counted = moved(before, await consumer.counters())
        complete = not counted.counted or (counted.tokens != 0 and counted.bytes != 0)
        if (complete and counted.anything) or answer.cached_tokens == 0 or time.monotonic() > deadline:
            return Pulled(answer, counted)
        await asyncio.sleep(_LOOK_S)


async def connection_refused(address: Address) -> str | None:
    """Why nobody can be connected to there, from here; None: somebody listens."""
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(*address)
    except TimeoutError:
        return "no connection within the deadline"
    except ConnectionRefusedError:
        return REFUSED
    except UnicodeError:
        return "no name of a host"
    except OSError as error:
        return error.strerror or str(error)
    writer.transport.abort()
    return None


def fresh_prompt(tokens: int) -> list[int]:
    """Ids that nobody has seen in this order."""
    return random.choices(_IDS, k=tokens)  # noqa: S311 - nobody has to be kept from guessing them


@asynccontextmanager
async def reach(config: Config) -> AsyncIterator[PodApi]:
    """Calls to the configured pods, with their keys and certificates. Raises ConfigError."""
    credentials, found = Credentials(), Files()
    await load_credentials(credentials, config.pods, found)
    for use in found.uses:
        use()
    nobody = PodTable([], max_load_age=config.poll.max_age)
    watch = Watch(Metrics(nobody, RadixIndex()))  # of files that are read once: nothing here lives long enough
    tls = await client_context(config.upstream_tls, "$.upstream_tls", watch)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=tls),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=config.limits.connect_timeout),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        yield PodApi(session, credentials)
