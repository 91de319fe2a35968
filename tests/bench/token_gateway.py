"""The gateway's tokenizer as it is wired in production, and vLLM's renderer to ask instead."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Literal

import aiohttp
import msgspec

from config.schema import Breaker, PodConfig, Tokens
from gateway.metrics import Metrics
from gateway.openai import Peek, peek
from gateway.pod import Model, Pod
from gateway.pods import PodTable
from gateway.tokens import Prompt, Tokenizer
from gateway.upstream import PodApi
from index import RadixIndex
from tests.bench.processes import NotReady, free_port, get, running, wait_until
from tests.bench.token_workload import CONTEXT_TOKENS, MODEL
from tests.engine import environment

NOBODY: Final = "http://127.0.0.1:9"
_TIMEOUT_S: Final = 120.0
_READY_S: Final = 240.0
_LOOK_S: Final = 0.01
_GREETING: Final = msgspec.json.encode({"model": MODEL, "messages": [{"role": "user", "content": "Hello."}]})


class Tokenizing:
    """A tokenizer for one pod's model; `threads` and the rest as they are by default."""

    def __init__(self, tokenizer: Tokenizer, pod: Pod) -> None:
        self._tokenizer = tokenizer
        self._pods = [pod]

    async def tokenize(self, body: bytes) -> Prompt:
        """What a request's way through the gateway does of it: look at the body, then tokenize."""
        return await self.asked(peek(body), body)

    async def asked(self, ask: Peek, body: bytes) -> Prompt:
        """Likewise, of a body that was looked at."""
        made = self._tokenizer.tokenize("chat/completions", ask, body, MODEL, lambda: self._pods)
        return made if isinstance(made, Prompt) else await made


@asynccontextmanager
async def tokenizing(files: Path, backend: Literal["local", "pod"], url: str = NOBODY) -> AsyncIterator[Tokenizing]:
    """One that knows nothing yet; a pod is asked only where it says so."""
    settings = Tokens(backend=backend, path=str(files), timeout=_TIMEOUT_S)
    pod = Pod(PodConfig(url=url), p2p=None, breaker=Breaker())
    pod.joined({MODEL: Model(MODEL, MODEL, root=str(files))}, (0,))
    async with aiohttp.ClientSession() as session:
        metrics = Metrics(PodTable((pod,), max_load_age=1.0), RadixIndex())
        tokenizer = Tokenizer(PodApi(session), settings, breaker=Breaker(), metrics=metrics)
        following = asyncio.create_task(tokenizer.follow(pod))
        made = Tokenizing(tokenizer, pod)
        async with asyncio.timeout(_READY_S):
            while (await made.tokenize(_GREETING)).tokens_from != backend:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(_LOOK_S)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        try:
            yield made
        finally:
            tokenizer.close()


@contextmanager
def renderer(files: Path, logs: Path) -> Iterator[str | None]:
    """The URL of vLLM's server without an engine, as `vllm launch render` starts it; None, with a line, without.

    Needs the real-engine suite's environment and does not build it.
    """
    python = environment.at_hand()
    if python is None:
        sys.stderr.write("bench: tokens without vLLM: its environment is not built (`make engine` does)\n")
        yield None
        return
    port, log = free_port(), logs / "renderer.log"
    command = [str(python), "-m", "vllm.entrypoints.launchers.render.entry"]
    command += ["--model", str(files), "--served-model-name", MODEL, "--max-model-len", str(CONTEXT_TOKENS)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"]
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    url = f"http://127.0.0.1:{port}"
    with running(command, log=log, cwd=logs, env=offline) as process:
        try:
            wait_until(lambda: get(f"{url}/health") is not None, process, log=log, deadline_s=_READY_S)
        except NotReady as reason:
            sys.stderr.write(f"bench: tokens without vLLM: {str(reason).splitlines()[-1]}\n")
            yield None
            return
        yield url
