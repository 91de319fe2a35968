"""The gateway and its peers in front of the same two backends, in turn under the same load.

CPU is that of the router's processes only, so the load's own cost and its share of the machine stay out of it; rates
depend on everything that runs beside.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tests.bench.client import STREAM_CHUNKS, Kind, Options, Result
from tests.bench.clock import resident_bytes
from tests.bench.environment import PeerMissing
from tests.bench.index_rows import ROOT
from tests.bench.peers import DEFAULT, Peer
from tests.bench.processes import NotReady, get
from tests.bench.routers import Backend, Router, backend, floor, gateway
from tests.bench.rows import Row, row
from tests.bench.token_workload import Workload

_OURS: Final = "gateway"
_LOGGED: Final = "gateway, default log"
_FLOOR: Final = "floor"
_DIRECT: Final = "no router"
_CLIENT_S: Final = 120.0
_QUICK_SECONDS: Final = 0.1
_QUICK_CHUNKS: Final = 20
_MB: Final = 1e6
_UNKNOWN: Final = re.compile(rb'^p2p_gateway_prompts_total\{.*tokens_from="none".*\} (\S+)$', re.MULTILINE)


class Case(NamedTuple):
    """One load; `requests` and `seconds` bound it, whichever comes first. `first` as in `Options`."""

    kind: Kind
    connections: int
    requests: int
    seconds: float
    measures: tuple[str, ...]
    first: int | None = None


_CASES: Final = {
    "small": Case("small", 16, 20_000, 1.5, ("cpu", "rate")),
    "small.c1": Case("small", 1, 20_000, 1.0, ("rate", "latency")),
    "small.c64": Case("small", 64, 20_000, 1.0, ("rate",)),
    "long": Case("long", 16, 4_000, 1.5, ("cpu", "rate")),
    "turn": Case("turn", 16, 4_000, 1.5, ("cpu", "rate")),
    "fresh": Case("fresh", 16, 4_000, 1.5, ("cpu", "rate")),
    "stream": Case("stream", 64, 64, 4.0, ("cpu", "ttft.p50", "ttft.p99")),
}
_PLAIN_CASES: Final = {"small.plain": Case("small", 16, 20_000, 1.5, ("cpu", "rate"))}
_LOCAL_CASES: Final = {"turn.local": _CASES["turn"]._replace(first=0)}
_ASKING: Final = ("cache_aware", "kv_aware")  # to whom it makes a difference whether a pod renders
_TAKEN: Final = {_LOGGED: ("small",), _FLOOR: ("small", "long", "stream"), _DIRECT: ("stream",)}
_UNITS: Final = {"cpu": "µs/request", "rate": "req/s", "latency": "ms", "ttft.p50": "ms", "ttft.p99": "ms"}

Values = dict[str, list[float]]
"""Per measure, one value per round."""


class Bench:
    """Routers, and what was measured of each."""

    def __init__(self, routers: list[Router], cases: Mapping[str, Case], *, quick: bool) -> None:
        self._cases = cases
        self.routers = {router.name: router for router in routers}
        self.values: dict[str, Values] = {router.name: {} for router in routers}
        self._own = frozenset((_OURS, _LOGGED, _FLOOR, _DIRECT))
        self._quick = quick

    def round(self) -> None:
        """Every case on every router that takes it. A peer that fails is left out from there on."""
        for name, case in self._cases.items():
            for router in list(self.routers.values()):
                if name not in _TAKEN.get(router.name, self._cases):
                    continue
                try:
                    result = self._load(router, case)
                except NotReady as error:
                    if router.name in self._own:
                        raise
                    say(f"{router.name} left out: {name}: {_last_line(error)}")
                    del self.routers[router.name], self.values[router.name]
                else:
                    self._note(router.name, name, case, result)

    def weigh(self) -> None:
        """Memory."""
        for router in self.routers.values():
            self.values[router.name]["rss"] = [sum(map(resident_bytes, router.pids)) / _MB]

    def tell_of_unknown_prompts(self) -> None:
        """Say so where ours decided without a prompt's tokens: that costs less, and is not what is to be measured."""
        for name in (_OURS, _LOGGED):
            for port in self.routers[name].ports if name in self.routers else ():
                page = get(f"http://127.0.0.1:{port}/metrics") or b""
                unknown = sum(float(told) for told in _UNKNOWN.findall(page))
                if unknown:
                    say(f"{name}: {unknown:.0f} requests were placed without their tokens")

    def added(self, name: str) -> Values:
        """Of a router, by row name; its time to the first token less that without a router, of the same round."""
        values = dict(self.values.get(name, {}))
        for measure in ("stream.ttft.p50", "stream.ttft.p99"):
            if measure in values:
                direct = self.values[_DIRECT][measure]
                values[measure] = [with_it - without for with_it, without in zip(values[measure], direct, strict=True)]
        return values

    def _note(self, router: str, name: str, case: Case, result: Result) -> None:
        found = {
            "cpu": result.cpu_s / (result.events if case.kind == "stream" else result.requests) * 1e6,
            "rate": result.requests / result.seconds,
            "latency": result.wait_p50_s * 1e3,
            "ttft.p50": result.wait_p50_s * 1e3,
            "ttft.p99": result.wait_p99_s * 1e3,
        }
        for measure in case.measures:
            self.values[router].setdefault(f"{name}.{measure}", []).append(found[measure])

    def _load(self, router: Router, case: Case) -> Result:
        options = Options(
            ports=router.ports,
            kind=case.kind,
            connections=case.connections,
            requests=case.requests,
            seconds=_QUICK_SECONDS if self._quick else case.seconds,
            pids=router.pids,
            chunks=_QUICK_CHUNKS if self._quick else STREAM_CHUNKS,
            first=case.first,
        )
        command = [sys.executable, "-m", "tests.bench.client", msgspec.json.encode(options).decode()]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=_CLIENT_S)
        if done.returncode:
            raise NotReady(done.stderr.decode(errors="replace"))
        return msgspec.json.decode(done.stdout, type=Result)


def rows(*, rounds: int, quick: bool, peers: Mapping[str, Peer]) -> list[Row]:
    """Each measure once against each of the peers, or once if there are none."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        logs = Path(directory)
        backends = [stack.enter_context(backend(logs / f"backend{number}.log")) for number in range(2)]
        bench = Bench(
            [
                stack.enter_context(gateway(_OURS, backends, logs, "warning")),
                stack.enter_context(gateway(_LOGGED, backends, logs, "info")),
                stack.enter_context(floor(_FLOOR, backends, logs)),
                Router(_DIRECT, [each.port for each in backends], []),
                *_started(peers, backends, logs, stack),
            ],
            _CASES,
            quick=quick,
        )
        asking = {name: peer for name, peer in peers.items() if name in _ASKING}
        alike = {name: peer for name, peer in peers.items() if name in DEFAULT}
        files = Workload(quick=quick).files
        plain = _apart("plain", _PLAIN_CASES, asking, logs, stack, quick=quick)
        local = _apart("local", _LOCAL_CASES, alike, logs, stack, quick=quick, model=files)
        for _ in range(rounds):
            for each in (bench, plain, local):
                each.round()
        bench.weigh()
        for each in (bench, plain, local):
            each.tell_of_unknown_prompts()
        return [*_against(bench, peers), *_against(plain, asking), *_against(local, alike), *_alone(bench)]


def _apart(
    name: str,
    cases: Mapping[str, Case],
    peers: Mapping[str, Peer],
    logs: Path,
    stack: ExitStack,
    *,
    quick: bool,
    model: Path | None = None,
) -> Bench:
    """Ours and some peers in front of backends that tokenize as a model does; without one, that refuse to render."""
    apart = logs / name
    apart.mkdir()
    how = ("model", str(model)) if model else ("plain",)
    backends = [stack.enter_context(backend(apart / f"backend{number}.log", *how)) for number in range(2)]
    ours = stack.enter_context(gateway(_OURS, backends, apart, "warning", model=model))
    return Bench([ours, *_started(peers, backends, apart, stack)], cases, quick=quick)


def say(what: str) -> None:
    """On standard error."""
    sys.stderr.write(f"bench: proxy: {what}\n")


def _started(peers: Mapping[str, Peer], backends: Sequence[Backend], logs: Path, stack: ExitStack) -> list[Router]:
    started = []
    for name, peer in peers.items():
        try:
            started.append(stack.enter_context(peer.running(list(backends), logs)))
        except (PeerMissing, NotReady) as error:
            say(f"{name} left out: {_last_line(error)}")
    return started


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _against(bench: Bench, peers: Mapping[str, Peer]) -> list[Row]:
    made = []
    theirs = {name: bench.added(name) for name in peers}
    for measure, ours in bench.added(_OURS).items():
        if not peers:
            made.append(row(f"proxy.{measure}", _unit(measure), ours))
        for name, peer in peers.items():
            made.append(
                row(f"proxy.{measure}.vs_{name}", _unit(measure), ours, str(peer), theirs[name].get(measure, ()))
            )
    return made


def _alone(bench: Bench) -> list[Row]:
    logged = row("proxy.small.cpu.logged", _UNITS["cpu"], bench.values[_LOGGED]["small.cpu"])
    floors = bench.added(_FLOOR)
    return [logged, *(row(f"proxy.floor.{measure}", _unit(measure), values) for measure, values in floors.items())]


def _unit(measure: str) -> str:
    if measure in ("rss", "stream.cpu"):
        return "MB" if measure == "rss" else "µs/chunk"
    return next(unit for ending, unit in _UNITS.items() if measure.endswith(f".{ending}"))
