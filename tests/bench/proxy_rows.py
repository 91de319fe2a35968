"""The gateway and vllm-router in front of the same two backends, in turn under the same load.

CPU is that of the router's processes only, so the load's own cost and its share of the machine stay out of it; rates
depend on everything that runs beside.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tests.bench import environment
from tests.bench.client import Kind, Options, Result
from tests.bench.clock import process_tree
from tests.bench.index_rows import ROOT
from tests.bench.processes import free_port, get, running, wait_until
from tests.bench.rows import Row, row
from tests.bench.workload import PROMPT_BLOCKS

_POLICIES: Final = ("round_robin", "cache_aware")
_OURS: Final = "gateway"
_LOGGED: Final = "gateway, default log"
_START_S: Final = 60.0
_CLIENT_S: Final = 120.0
_SECONDS: Final = 2.0
_QUICK_SECONDS: Final = 0.3
_CONNECTIONS: Final[dict[Kind, int]] = {"small": 16, "long": 16, "fresh": 16, "stream": 64}
_REQUESTS: Final[dict[Kind, int]] = {"small": 20_000, "long": 4_000, "fresh": 4_000, "stream": 64}
_RATED: Final[tuple[Kind, ...]] = ("small", "long", "fresh")


class Router(NamedTuple):
    """What is measured: where it serves, and the processes whose CPU counts."""

    name: str
    port: int
    pids: list[int]


Values = dict[str, list[float]]
"""Per measure, one value per round."""


def rows(*, rounds: int, quick: bool, peers: bool) -> list[Row]:
    """Each measure once against each policy of the peer."""
    values: dict[str, Values] = {}
    with tempfile.TemporaryDirectory() as logs, ExitStack() as stack:
        backends = [stack.enter_context(_backend(Path(logs) / f"backend{number}.log")) for number in range(2)]
        routers = [
            stack.enter_context(_gateway(_OURS, backends, Path(logs), "warning")),
            stack.enter_context(_gateway(_LOGGED, backends, Path(logs), "info")),
            *(stack.enter_context(each) for each in (_peers(backends, Path(logs)) if peers else ())),
        ]
        for _ in range(rounds):
            for kind in _CONNECTIONS:
                for router in routers:
                    if router.name != _LOGGED or kind == "small":
                        _note(values.setdefault(router.name, {}), kind, _load(router, kind, quick=quick))
    return _rows(values)


def _rows(values: dict[str, Values]) -> list[Row]:
    made = []
    for measure, ours in values[_OURS].items():
        unit = "req/s" if measure.endswith(".rate") else "µs/chunk" if measure == "stream.cpu" else "µs/request"
        for policy in _POLICIES:
            peer = f"{environment.VLLM_ROUTER} {policy}"
            theirs = values.get(policy, {}).get(measure, ())
            made.append(row(f"proxy.{measure}.vs_{policy}", unit, ours, peer, theirs))
    return [*made, row("proxy.small.cpu.logged", "µs/request", values[_LOGGED]["small.cpu"])]


def _note(values: Values, kind: Kind, result: Result) -> None:
    per = result.events if kind == "stream" else result.requests
    values.setdefault(f"{kind}.cpu", []).append(result.cpu_s / per * 1e6)
    if kind in _RATED:
        values.setdefault(f"{kind}.rate", []).append(result.requests / result.seconds)


def _load(router: Router, kind: Kind, *, quick: bool) -> Result:
    options = Options(
        port=router.port,
        kind=kind,
        connections=_CONNECTIONS[kind],
        requests=_REQUESTS[kind],
        seconds=_QUICK_SECONDS if quick else _SECONDS,
        pids=router.pids,
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.client", msgspec.json.encode(options).decode()],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        timeout=_CLIENT_S,
    )
    return msgspec.json.decode(done.stdout, type=Result)


@contextmanager
def _backend(log: Path) -> Iterator[str]:
    """Its URL."""
    with running([sys.executable, "-m", "tests.bench.backend"], log=log, cwd=ROOT) as process:
        wait_until(lambda: log.read_bytes().endswith(b"}\n"), process, log=log, deadline_s=_START_S)
        yield f"http://127.0.0.1:{msgspec.json.decode(log.read_bytes())['http']}"


@contextmanager
def _gateway(name: str, backends: list[str], logs: Path, level: str) -> Iterator[Router]:
    port = free_port()
    log, file = logs / f"{name}.log", logs / f"{name}.json"
    config = {
        "listen": {"host": "127.0.0.1", "port": port},
        "pods": [{"url": url} for url in backends],
        "log": {"level": level},
    }
    file.write_bytes(msgspec.json.encode(config))

    def knows_the_prompt() -> bool:
        page = get(f"http://127.0.0.1:{port}/pods")
        pods: list[dict[str, Any]] = msgspec.json.decode(page)["pods"] if page else []
        return bool(pods) and all(pod["cached_blocks"]["gpu"] == PROMPT_BLOCKS for pod in pods)

    with running([sys.executable, "-m", "gateway", "--config", str(file)], log=log, cwd=ROOT) as process:
        wait_until(knows_the_prompt, process, log=log, deadline_s=_START_S)
        yield Router(name, port, process_tree(process.pid))


def _peers(backends: list[str], logs: Path) -> list[Any]:
    try:
        program = environment.peer(environment.VLLM_ROUTER) / "vllm-router"
    except environment.PeerMissing as reason:
        sys.stderr.write(f"bench: proxy without a peer: {reason}\n")
        return []
    return [_peer(program, policy, backends, logs) for policy in _POLICIES]


@contextmanager
def _peer(program: Path, policy: str, backends: list[str], logs: Path) -> Iterator[Router]:
    port, log = free_port(), logs / f"{policy}.log"
    command = [str(program), "--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--worker-urls", *backends]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    command += ["--worker-startup-check-interval", "1", "--log-level", "warning"]
    with running(command, log=log, cwd=logs) as process:
        wait_until(lambda: get(f"http://127.0.0.1:{port}/v1/models") is not None, process, log=log, deadline_s=_START_S)
        yield Router(policy, port, process_tree(process.pid))
