"""``p2p-loadgen``: one sub-command per module that registers itself in ``_COMMANDS``."""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import uvloop

from loadgen import demo
from loadgen.pod import SimulatedPod
from loadgen.profile import PROFILES


class _SubParsers(Protocol):
    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...  # noqa: A002 (argparse's name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command and return its exit code."""
    parser = argparse.ArgumentParser(prog="p2p-loadgen", description="Workloads and simulated pods for p2p-gateway.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for register in _COMMANDS:
        register(commands)
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    with contextlib.suppress(KeyboardInterrupt):
        return run(arguments)
    return 130


def _register_pod(commands: _SubParsers) -> None:
    parser = commands.add_parser("pod", help="serve simulated vLLM pods until interrupted")
    parser.add_argument("--count", type=int, default=1, help="pods (default 1)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="first pod's HTTP port; the others follow (default: any)")
    parser.add_argument("--profile", choices=PROFILES, default="demo", help="size and speed (default demo)")
    parser.add_argument("--model", default="demo-model", help="served model name (default demo-model)")
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel ranks of each pod (default 1)")
    parser.add_argument("--seed", default="0", help="PYTHONHASHSEED of the pods (default 0)")
    parser.add_argument("--encoding", choices=("map", "array"), default="map", help="form of the KV events")
    parser.set_defaults(run=_run_pods)


def _run_pods(arguments: argparse.Namespace) -> int:
    try:
        uvloop.run(_serve_pods(arguments))
    except OSError as error:
        print(f"p2p-loadgen: {error}", file=sys.stderr)
        return 3
    return 0


async def _serve_pods(arguments: argparse.Namespace) -> None:
    async with contextlib.AsyncExitStack() as pods:
        print("pods:")
        for i in range(arguments.count):
            pod = SimulatedPod(
                profile=arguments.profile,
                model=arguments.model,
                root=f"/models/{arguments.model}",
                ranks=arguments.ranks,
                seed=arguments.seed,
                encoding=arguments.encoding,
                host=arguments.host,
                port=arguments.port + i if arguments.port else 0,
            )
            print(snippet(await pods.enter_async_context(pod)), flush=True)
        await _interrupted()


def snippet(pod: SimulatedPod) -> str:
    """Return the pod's entry for the ``pods`` list of a gateway's configuration."""
    lines = [
        f"  - url: {pod.url}",
        f"    kv_events: {pod.events[0]}",
        *[f"    kv_replay: {address}" for address in pod.replays[:1]],
        f"    p2p: {pod.p2p_host}:{pod.p2p_port}",
        *([f"    data_parallel_size: {pod.options.ranks}"] if pod.options.ranks > 1 else []),
    ]
    return "\n".join(lines)


async def _interrupted() -> None:
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    await interrupted.wait()


_COMMANDS: Final[list[Callable[[_SubParsers], None]]] = [_register_pod, demo.register]
