"""``p2p-loadgen pod``: simulated pods for a gateway, an exporter or a script to talk to."""

import argparse
import asyncio
import contextlib
import math
import signal
import sys
from typing import Any, Final, Protocol

import msgspec
import uvloop

from loadgen import faults
from loadgen.pod import SimulatedPod
from loadgen.profile import PROFILES, PodProfile, convert, profile_named

_CANNOT_START: Final = 3


class _SubParsers(Protocol):
    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...  # noqa: A002 (argparse's name)


def register(commands: _SubParsers) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("pod", help="serve simulated vLLM pods until interrupted")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _epilog()
    parser.add_argument("--count", type=int, default=1, help="pods (default 1)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="first pod's HTTP port; the others follow (default: any)")
    parser.add_argument("--model", default="demo-model", help="served model name (default demo-model)")
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel ranks of each pod (default 1)")
    parser.add_argument("--seed", default="0", help="PYTHONHASHSEED of the pods (default 0)")
    parser.add_argument(
        "--profile",
        default="demo",
        metavar="NAME|FILE",
        help=f"size and speed: {', '.join(PROFILES)}, or a YAML file (default demo)",
    )
    parser.add_argument("--speed", type=float, help="times as fast as the profile says (default: its own speed, 1)")
    parser.add_argument("--gpu-blocks", type=int, help="blocks of the GPU tier instead of the profile's")
    parser.add_argument("--cpu-blocks", type=int, help="blocks of the CPU tier instead of the profile's")
    parser.add_argument("--encoding", choices=("map", "array"), default="map", help="form of the KV events")
    parser.add_argument(
        "--event-delay-ms",
        type=_milliseconds,
        default=0.0,
        help="how long after its step a batch of events leaves (default 0)",
    )
    parser.add_argument("--faults", action="store_true", help="take faults at POST /fault of each pod, see below")
    parser.add_argument("--json", action="store_true", help="print the pods as one line of JSON, as for a gateway")
    parser.set_defaults(run=_run)


def _milliseconds(text: str) -> float:
    """Return a duration, which is finite and not negative. Raises ValueError."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError
    return value


def _epilog() -> str:
    lines = ["faults, each posted to the pod that shall have it; shown with their defaults (null: for good):", ""]
    for shown, does in faults.described():
        lines += [f"  {shown}", f"      {does}"]
    return "\n".join(lines)


def _run(arguments: argparse.Namespace) -> int:
    try:
        uvloop.run(_serve(arguments))
    except (OSError, ValueError) as error:
        print(f"p2p-loadgen: {error}", file=sys.stderr)
        return _CANNOT_START
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    profile = _profile(arguments)
    async with contextlib.AsyncExitStack() as stack:
        if not arguments.json:
            print("pods:")
        entries = []
        for i in range(arguments.count):
            pod = await stack.enter_async_context(_pod(arguments, profile, i))
            entries.append(entry(pod))
            if not arguments.json:
                print(snippet(pod), flush=True)
        if arguments.json:
            print(msgspec.json.encode({"pods": entries}).decode(), flush=True)
        await _interrupted()


def _profile(arguments: argparse.Namespace) -> PodProfile:
    """Return the profile named, with what the command line says otherwise. Raises ProfileError."""
    fields = msgspec.structs.asdict(profile_named(arguments.profile))
    given = {name: getattr(arguments, name) for name in ("speed", "gpu_blocks", "cpu_blocks")}
    fields |= {name: value for name, value in given.items() if value is not None}
    return convert(fields, "command line")


def _pod(arguments: argparse.Namespace, profile: PodProfile, number: int) -> SimulatedPod:
    return SimulatedPod(
        profile=profile,
        model=arguments.model,
        root=f"/models/{arguments.model}",
        ranks=arguments.ranks,
        seed=arguments.seed,
        encoding=arguments.encoding,
        event_delay_ms=arguments.event_delay_ms,
        faults=arguments.faults,
        host=arguments.host,
        port=arguments.port + number if arguments.port else 0,
    )


def entry(pod: SimulatedPod) -> dict[str, Any]:
    """Return the pod's entry for the ``pods`` list of a gateway's configuration."""
    made: dict[str, Any] = {"url": pod.url, "kv_events": pod.events[0]}
    if pod.replays:
        made["kv_replay"] = pod.replays[0]
    made["p2p"] = f"{pod.p2p_host}:{pod.p2p_port}"
    if pod.options.ranks > 1:
        made["data_parallel_size"] = pod.options.ranks
    return made


def snippet(pod: SimulatedPod) -> str:
    """Return the pod's entry in YAML."""
    lines = [f"    {key}: {value}" for key, value in entry(pod).items()]
    return "\n".join(lines).replace("    ", "  - ", 1)


async def _interrupted() -> None:
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    await interrupted.wait()
