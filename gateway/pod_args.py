"""The command line of a vLLM pod that this gateway can make full use of.

Three things must come together in the pod, and a missing one fails silently: its events must be published and
describe the CPU tier by tokens, generated tokens must reach the CPU tier, and the P2P tier must be bound to the very
host that peers are told. Pods that pull from each other must also agree on the model's path, the block size and
the hash seed. So the arguments are computed here, from one description per pod.
"""

import argparse
import json
import re
import shlex
import sys
from typing import Literal

import msgspec

DEFAULT_CPU_BYTES = 8 * 2**30
_DEFAULT_BLOCK_SIZE = {"gpu": 16, "cpu": 32}
_CPU_BLOCK_SIZE_STEP = 32  # vLLM's CPU attention works on multiples of this
_CONFIG_ERROR = 3  # exit code of every command for a bad configuration

_HANDSHAKE_TIMEOUT_S = 3
"""How long a pod waits for a peer that does not answer before it recomputes. vLLM's default is 30 s; a session is set
up in well under a second, and a recompute rarely takes longer than this."""

_IDENTITY_PLUGIN = "p2p_kv_identity"

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


class PodParameters(msgspec.Struct, frozen=True, kw_only=True):
    """One pod. Raises ValueError where a value cannot work; ports are those of rank 0.

    With `data_parallel_size` n, events, replay and P2P each take n ports, upwards from the one given.
    """

    model: str
    """Name or path, as vLLM takes it. Must be the same string on all pods that pull from each other."""
    host: str = "127.0.0.1"
    """The address at which the gateway and the other pods reach this one; HTTP and P2P are bound to it."""
    port: int = 8000
    events_port: int = 5557
    replay_port: int | None = None
    """Left out: the first port behind those of the events."""
    p2p_port: int = 5710
    """Unauthenticated: whoever reaches it can read the pod's cache."""
    cpu_bytes: int = DEFAULT_CPU_BYTES
    """Size of the CPU tier, from which peers pull. It occupies /dev/shm."""
    block_size: int | None = None
    """Tokens per block. Left out: 16 on GPUs, 32 on CPUs."""
    device: Literal["cpu", "gpu"] = "gpu"
    hash_seed: int = 0
    """Seed of the engine's block hashes; pods with different seeds find nothing at each other."""
    data_parallel_size: int = 1
    p2p_tier: Literal["patched", "stock"] = "stock"
    """`patched`: the tier of engine_patch, whose pulls have deadlines, and `/kv/identity`; vLLM's own otherwise."""
    device_cache_bytes: int | None = None
    """Size of the KV cache on a CPU device, rounded up to whole GiB. GPUs size theirs by themselves."""
    extra: tuple[str, ...] = ()
    """Further vLLM arguments, appended as they are."""

    def __post_init__(self) -> None:
        if self.data_parallel_size < 1:
            raise ValueError("data-parallel-size must be at least 1")
        if self.cpu_bytes < 1:
            raise ValueError("cpu-bytes must be positive")
        if self.tokens_per_block < 1 or (self.device == "cpu" and self.tokens_per_block % _CPU_BLOCK_SIZE_STEP):
            raise ValueError(f"block-size must be a positive number, on a CPU a multiple of {_CPU_BLOCK_SIZE_STEP}")
        if not 0 <= self.hash_seed < 2**32:
            raise ValueError("hash-seed must lie in 0 … 4294967295, as PYTHONHASHSEED")
        _check_ports(self)

    @property
    def first_replay_port(self) -> int:
        """Replay port of rank 0."""
        return self.events_port + self.data_parallel_size if self.replay_port is None else self.replay_port

    @property
    def tokens_per_block(self) -> int:
        """Block size in tokens, the device's default filled in."""
        return _DEFAULT_BLOCK_SIZE[self.device] if self.block_size is None else self.block_size


def _check_ports(pod: PodParameters) -> None:
    ranks = pod.data_parallel_size
    used: dict[int, str] = {}
    for name, first, count in (
        ("port", pod.port, 1),
        ("events-port", pod.events_port, ranks),
        ("replay-port", pod.first_replay_port, ranks),
        ("p2p-port", pod.p2p_port, ranks),
    ):
        for port in range(first, first + count):
            if not 1 <= port <= 65535:
                raise ValueError(f"{name}: {port} is not a port")
            if port in used:
                raise ValueError(f"{name} and {used[port]} both take port {port}")
            used[port] = name


def environment(pod: PodParameters) -> dict[str, str]:
    """Environment variables to set for the pod, beside those it inherits."""
    variables = {"PYTHONHASHSEED": str(pod.hash_seed), "VLLM_P2P_HANDSHAKE_TIMEOUT_S": str(_HANDSHAKE_TIMEOUT_S)}
    if pod.p2p_tier == "patched":
        # An allow-list: a plug-in that adds a route is loaded only if it is named, and then others have to be, too.
        variables["VLLM_PLUGINS"] = _IDENTITY_PLUGIN
    if pod.device == "cpu":
        # vLLM would pin its threads to all cores, also those another pod has pinned its own to.
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if pod.device_cache_bytes is not None:
            variables["VLLM_CPU_KVCACHE_SPACE"] = str(-(-pod.device_cache_bytes // 2**30))
    return variables


def command(pod: PodParameters, python: str = "python") -> list[str]:
    """Program and arguments of the pod. `python` is the interpreter used on a CPU, where `vllm serve` does not work."""
    if pod.device == "gpu":
        start = ["vllm", "serve", pod.model]
    else:
        start = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", pod.model]
    arguments = ["--host", pod.host, "--port", str(pod.port), "--block-size", str(pod.tokens_per_block)]
    if pod.data_parallel_size > 1:
        arguments += ["--data-parallel-size", str(pod.data_parallel_size)]
    arguments.append("--enable-prompt-tokens-details")
    arguments += ["--kv-events-config", _compact(kv_events_config(pod))]
    arguments += ["--kv-transfer-config", _compact(kv_transfer_config(pod))]
    return [*start, *arguments, *pod.extra]


def kv_events_config(pod: PodParameters) -> dict[str, object]:
    """Value of `--kv-events-config`. vLLM adds the rank to both ports; a `*` makes it bind instead of connect."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{pod.events_port}",
        "replay_endpoint": f"tcp://*:{pod.first_replay_port}",
    }


def kv_transfer_config(pod: PodParameters) -> dict[str, object]:
    """Value of `--kv-transfer-config`: a CPU tier, and behind it the P2P tier. vLLM adds the rank to the P2P port."""
    spec = {"spec_name": "TieringOffloadingSpec"}
    if pod.device == "cpu":
        spec = {"spec_name": "HostMemoryTieringSpec", "spec_module_path": "engine_patch.host_memory"}
    tier: dict[str, object] = {"type": "p2p"}
    if pod.p2p_tier == "patched":
        tier = {"type": "BoundedP2PTier", "module_path": "engine_patch.p2p_tier"}
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            **spec,
            "cpu_bytes_to_use": pod.cpu_bytes,
            # vLLM's default keeps generated tokens on the device: the next turn's pull would end at the last prompt.
            "offload_prompt_only": False,
            # Without it the CPU tier's events carry no tokens, and cannot be placed in the index.
            "self_describing_kv_events": True,
            "secondary_tiers": [{**tier, "host": pod.host, "port": pod.p2p_port}],
        },
    }


def shell_command(pod: PodParameters) -> str:
    """The pod's command for a POSIX shell, one option per line; further vLLM arguments can be appended to it."""
    lines = [f"{name}={shlex.quote(value)}" for name, value in environment(pod).items()]
    options: list[list[str]] = [[]]
    for word in command(pod):
        if word.startswith("--"):
            options.append([])
        options[-1].append(shlex.quote(word))
    program, *rest = (" ".join(option) for option in options)
    return " \\\n".join([*lines, program, *(f"  {option}" for option in rest)]) + "\n"


def _compact(value: dict[str, object]) -> str:
    return json.dumps(value, separators=(",", ":"))


def parse_size(text: str) -> int:
    """Bytes of a size like `8GiB`, `500MB`, `64k` or `1048576`; with an `i` powers of 1024, else of 1000.

    Raises ValueError for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{text!r} is not a size such as 8GiB, 500MB or 1048576")
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `p2p-gateway pod-args`."""
    default = PodParameters(model="")
    parser.add_argument("model", help="model name or path, the same on every pod")
    parser.add_argument("--host", default=default.host, help="address at which others reach the pod (%(default)s)")
    parser.add_argument("--port", type=int, default=default.port, help="HTTP port (%(default)s)")
    parser.add_argument("--events-port", type=int, default=default.events_port, help="KV events (%(default)s)")
    parser.add_argument("--replay-port", type=int, help="replay of KV events (behind the events' ports)")
    parser.add_argument("--p2p-port", type=int, default=default.p2p_port, help="pulls by peers (%(default)s)")
    parser.add_argument("--cpu-bytes", default="8GiB", metavar="SIZE", help="size of the CPU tier (%(default)s)")
    parser.add_argument("--block-size", type=int, help="tokens per block (16; on a CPU 32)")
    parser.add_argument("--device", choices=("gpu", "cpu"), default=default.device, help="(%(default)s)")
    parser.add_argument("--device-cache", metavar="SIZE", help="size of the KV cache on a CPU device (vLLM's default)")
    parser.add_argument("--hash-seed", type=int, default=default.hash_seed, help="the same on every pod (%(default)s)")
    parser.add_argument(
        "--p2p-tier",
        choices=("patched", "stock"),
        default=default.p2p_tier,
        help="patched: that of engine_patch, which has to be installed in the pod (%(default)s)",
    )
    parser.add_argument("--data-parallel-size", type=int, default=default.data_parallel_size, help="(%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the pod's command; 3 with one line on stderr when the options do not fit together."""
    try:
        pod = PodParameters(
            model=args.model,
            host=args.host,
            port=args.port,
            events_port=args.events_port,
            replay_port=args.replay_port,
            p2p_port=args.p2p_port,
            cpu_bytes=parse_size(args.cpu_bytes),
            block_size=args.block_size,
            device=args.device,
            hash_seed=args.hash_seed,
            data_parallel_size=args.data_parallel_size,
            p2p_tier=args.p2p_tier,
            device_cache_bytes=None if args.device_cache is None else parse_size(args.device_cache),
        )
    except ValueError as error:
        sys.stderr.write(f"pod-args: {error}\n")
        return _CONFIG_ERROR
    sys.stdout.write(shell_command(pod))
    return 0
