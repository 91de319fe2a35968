"""``p2p-loadgen demo`` (and ``p2p-gateway demo``): the gateway's main job, shown on simulated pods.

Three pods and a gateway on this machine; one conversation about a long document whose turns land on different pods, so
that a pod pulls the document's KV blocks from a peer instead of computing them again. Everything printed is measured on
the way; if no pull happens the exit code is 1. An interrupt ends the demo and its gateway: with 130 during the story.
"""

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import aiohttp
import msgspec
import uvloop

from loadgen.demo_users import Messages, users
from loadgen.pod import SimulatedPod

_PODS: Final = 3
_MAX_TURNS: Final = 12  # pods are drawn among equals: that none of 12 turns changes pods has a chance of 3 ** -11
_MODEL: Final = "demo-model"
_PREFERRED_PORT: Final = 8080
_START_DEADLINE_S: Final = 30.0
_EVENTS_DEADLINE_S: Final = 10.0
_INTERRUPTED: Final = 130
_MIN_DELTA: Final = 1024
_SHOWN_METRICS: Final = (
    "p2p_gateway_requests_total",
    "p2p_gateway_pulls_total",
    "p2p_gateway_pulled_tokens_total",
    "p2p_gateway_predicted_cached_tokens_total",
    "p2p_gateway_reported_cached_tokens_total",
)
_DOCUMENT: Final = " ".join(
    f"Paragraph {i}: every pod publishes the KV blocks it holds, and the gateway keeps count of who holds what."
    for i in range(1, 81)
)
_QUESTIONS: Final = ("What does a pod publish?", "Who keeps count?", "Which paragraph is the longest?", "And the last?")


class _SubParsers(Protocol):
    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...  # noqa: A002 (argparse's name)


class Turn(NamedTuple):
    """One answered turn, as its client saw it."""

    pod: str
    source: str | None
    ttft_ms: float
    prompt_tokens: int
    cached_tokens: int
    text: str


def register(commands: _SubParsers) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("demo", help="three simulated pods, a gateway, and a pull to watch")
    parser.add_argument("--once", action="store_true", help="end after the story instead of serving on")
    parser.add_argument("--idle", action="store_true", help="serve on without users that go on talking")
    parser.add_argument("--port", type=int, help=f"the gateway's port (default {_PREFERRED_PORT}, or any if taken)")
    parser.set_defaults(run=lambda arguments: uvloop.run(_demo(arguments)))


async def _demo(arguments: argparse.Namespace) -> int:
    code = _INTERRUPTED
    _cancelled_by_signals()
    with contextlib.suppress(asyncio.CancelledError):
        async with contextlib.AsyncExitStack() as stack:
            pods = [await stack.enter_async_context(SimulatedPod(model=_MODEL)) for _ in range(_PODS)]
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p2p-gateway-demo-")))
            port = arguments.port or _free_port(_PREFERRED_PORT)
            url = f"http://127.0.0.1:{port}"
            gateway = await stack.enter_async_context(_gateway(pods, directory, port))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            await _ready(session, url, gateway, directory)
            _introduce(pods, url)
            pulled = await _story(session, url)
            await _counted(session, url)
            _how_to_look_further(url)
            code = 0 if pulled else 1
            if not arguments.once:
                print("Serving until Ctrl-C." + ("" if arguments.idle else " A few users go on talking."), flush=True)
                async with contextlib.AsyncExitStack() as beside:
                    if not arguments.idle:
                        await beside.enter_async_context(users(_asked(session, url), _DOCUMENT))
                    await gateway.wait()
    return code


def _cancelled_by_signals() -> None:
    """Have SIGINT and SIGTERM cancel this task, so that it ends what it started, wherever it stands."""
    loop = asyncio.get_running_loop()
    if task := asyncio.current_task():
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)


async def _story(session: aiohttp.ClientSession, url: str) -> bool:
    """A conversation until a turn was pulled, then a fresh document of the same length for comparison."""
    messages: list[dict[str, str]] = [{"role": "system", "content": _DOCUMENT}]
    pulled: Turn | None = None
    for number in range(_MAX_TURNS):
        messages.append({"role": "user", "content": _QUESTIONS[number % len(_QUESTIONS)]})
        turn = await _ask(session, url, messages)
        print(f"turn {number + 1}  {_in_words(turn)}", flush=True)
        await _until_known(session, url, messages)
        messages.append({"role": "assistant", "content": turn.text})
        if turn.source is not None and turn.cached_tokens >= _MIN_DELTA:
            pulled = turn
            break
    if pulled is None:
        print("No turn was pulled.", file=sys.stderr)
        return False
    fresh = await _ask(session, url, [{"role": "user", "content": _DOCUMENT[::-1]}])
    print(
        f"\nThe pull brought {pulled.cached_tokens} tokens of KV: first token after {pulled.ttft_ms:.0f} ms."
        f"\nA fresh prompt of {fresh.prompt_tokens} tokens, computed: {fresh.ttft_ms:.0f} ms."
    )
    return True


def _asked(session: aiohttp.ClientSession, url: str) -> Callable[[Messages], Awaitable[str]]:
    async def ask(messages: Messages) -> str:
        return (await _ask(session, url, messages)).text

    return ask


def _in_words(turn: Turn) -> str:
    computed = turn.prompt_tokens - turn.cached_tokens
    origin = f"pulled from {turn.source}" if turn.source else "already there" if turn.cached_tokens else "nowhere yet"
    return (
        f"on {turn.pod}: {turn.prompt_tokens} prompt tokens, {turn.cached_tokens} reused ({origin}), "
        f"{computed} computed; first token after {turn.ttft_ms:.0f} ms"
    )


async def _ask(session: aiohttp.ClientSession, url: str, messages: list[dict[str, str]]) -> Turn:
    """One streamed chat completion."""
    loop = asyncio.get_running_loop()
    body = {
        "model": _MODEL,
        "messages": messages,
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, first, text = loop.time(), 0.0, ""
    usage: dict[str, Any] = {}
    async with session.post(f"{url}/v1/chat/completions", json=body, raise_for_status=True) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            first = first or loop.time()
            chunk: dict[str, Any] = msgspec.json.decode(line[len(b"data: ") :])
            usage = chunk.get("usage") or usage
            text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        headers = answer.headers
    return Turn(
        pod=headers["x-gateway-pod"],
        source=headers.get("x-gateway-kv-source"),
        ttft_ms=(first - began) * 1000,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        text=text,
    )


async def _until_known(session: aiohttp.ClientSession, url: str, messages: list[dict[str, str]]) -> None:
    """Wait until the pod's events have told the gateway what it holds in its CPU tier, from where peers pull."""
    async with asyncio.timeout(_EVENTS_DEADLINE_S):
        while True:
            async with session.post(f"{url}/explain", json={"model": _MODEL, "messages": messages}) as answer:
                explained = await answer.json()
            held = max(candidate["cached_tokens"]["cpu"] for candidate in explained["candidates"])
            if held + explained["block_size"] > explained["tokens"]:
                return
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def _gateway(pods: list[SimulatedPod], directory: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """The gateway as an operator runs it: its own process, from a configuration file."""
    config = {
        "listen": {"host": "127.0.0.1", "port": port},
        "pods": [{"url": pod.url, "p2p": f"{pod.p2p_host}:{pod.p2p_port}"} for pod in pods],
        "placement": {"scorers": [{"type": "queue"}, {"type": "kv-utilization"}]},
        # Named from so many tokens on, so that there is a pull to see before it is known what pulls cost here.
        "p2p": {"min_cached_token_delta": _MIN_DELTA, "source": {"type": "weighted-sampling"}},
        "limits": {"drain_timeout": 2},
    }
    path = directory / "gateway.yaml"
    path.write_bytes(msgspec.json.encode(config))  # JSON is YAML
    with (directory / "gateway.log").open("wb") as log:
        command = (sys.executable, "-m", "gateway", "--config", str(path))
        # A session of its own: Ctrl-C reaches this process, which then ends the gateway in order.
        process = await asyncio.create_subprocess_exec(*command, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await process.wait()
                finally:
                    if process.returncode is None:  # interrupted again
                        process.kill()


async def _ready(
    session: aiohttp.ClientSession, url: str, gateway: asyncio.subprocess.Process, directory: Path
) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _START_DEADLINE_S
    while loop.time() < deadline and gateway.returncode is None:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(f"{url}/ready") as answer:
                if set((await answer.json())["pods"].values()) == {"ready"}:
                    return
        await asyncio.sleep(0.05)
    raise SystemExit("The gateway did not start:\n" + (directory / "gateway.log").read_text(errors="replace"))


def _introduce(pods: list[SimulatedPod], url: str) -> None:
    print(f"The gateway serves at {url}/v1, in front of {len(pods)} simulated vLLM pods:")
    for pod in pods:
        print(f"  {pod.url}  events {pod.events[0]}  pulls {pod.p2p_host}:{pod.p2p_port}")
    print(
        f"The live page is at {url}/ui\n"
        "\nA conversation about a long document. Requests go to the least loaded pod, wherever the document is cached;"
        "\na pod that lacks it is told which peer has it, and pulls.\n",
        flush=True,
    )


async def _counted(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(f"{url}/metrics") as answer:
        page = await answer.text()
    print("\nWhat the gateway counted, from /metrics:")
    for line in page.splitlines():
        if line.startswith(_SHOWN_METRICS):
            print(f"  {line}")


def _how_to_look_further(url: str) -> None:
    body = f'{{"model": "{_MODEL}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    print(
        f"""
Look further:
  {url}/ui                               in a browser: pods, pulls, decisions and why
  curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}' -i
  curl -s {url}/explain -d '{body}'      where would this go, and why?
  curl -s {url}/pods                     pods: load, cached blocks per tier, event streams
  curl -s {url}/metrics | grep p2p_gateway_pulls_total
""",
        flush=True,
    )


def _free_port(preferred: int) -> int:
    for port in (preferred, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise SystemExit("no free port on 127.0.0.1")
