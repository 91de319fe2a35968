"""What KV events at a full fleet's rate cost the gateway, and how long they make others wait for it.

A question that costs next to nothing (`GET /health`) is asked all the time, once with events and once without, in every
round. No question waits until another is answered: otherwise a long stop would be met once, where it would have met
many.
"""

import asyncio
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, cast

import msgspec
import uvloop

from tests.bench.clock import cpu_seconds, process_tree
from tests.bench.index_rows import ROOT
from tests.bench.processes import NotReady, free_port, get, running, wait_until
from tests.bench.rows import Row, row

_PODS: Final = 8
_BLOCKS_PER_S: Final = 200_000
_POD_BLOCKS: Final = 20_000
_QUICK_POD_BLOCKS: Final = 2_560
_SECONDS: Final = 3.0
_QUICK_SECONDS: Final = 0.3
_QUESTIONS_PER_S: Final = 200
_CONNECTIONS: Final = 100  # so that no question waits for another's answer
_WAIT_S: Final = 0.001
_DEADLINE_S: Final = 30.0
_STORED: Final = re.compile(
    rb'^p2p_gateway_kv_event_effects_total\{effect="stored_blocks",[^}]*\} (\S+)$', re.MULTILINE
)


class Window(NamedTuple):
    """Some seconds of questions: their delays in ms, and what the gateway did meanwhile."""

    delays: list[float]
    seconds: float
    cpu_s: float
    blocks: float


class Pods:
    """The publisher's process, spoken to over its standard input and its log."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process, self._log = process, log
        self._heard = 0

    def answer(self) -> dict[str, list[int] | float]:
        """Its next line."""
        wait_until(
            lambda: self._log.read_bytes().count(b"\n") > self._heard,
            self._process,
            log=self._log,
            deadline_s=_DEADLINE_S,
        )
        self._heard += 1
        return msgspec.json.decode(
            self._log.read_bytes().splitlines()[self._heard - 1], type=dict[str, list[int] | float]
        )

    def play(self, seconds: float) -> None:
        """Begin to publish for so long."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n".encode())
        self._process.stdin.flush()


class Bench:
    """The gateway in front of the pods."""

    def __init__(self, pods: Pods, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self._pods, self._process, self._port, self._log = pods, process, port, log
        self._pids = process_tree(process.pid)
        self._published = 0.0

    def heard(self) -> dict[str, float]:
        """What the pods say to have published, once all of it is applied. Raises NotReady when some never is."""
        said = self._pods.answer()
        published = {name: value for name, value in said.items() if isinstance(value, int | float)}
        self._published += published["blocks"]
        wait_until(lambda: self._stored() >= self._published, self._process, log=self._log, deadline_s=_DEADLINE_S)
        if self._stored() != self._published:
            raise NotReady(f"{self._stored():,.0f} blocks applied of {self._published:,.0f} published")
        return published

    def control(self, seconds: float) -> Window:
        """Questions and nothing else."""
        return uvloop.run(self._window(seconds))

    def loaded(self, seconds: float) -> Window:
        """The same while events come."""
        return uvloop.run(self._window(seconds, events=True))

    async def _window(self, seconds: float, *, events: bool = False) -> Window:
        async with _questions(self._port) as questions:
            before, cpu, began = self._stored(), cpu_seconds(self._pids), time.perf_counter()
            if events:
                self._pods.play(seconds)
            delays = await questions.ask(seconds)
            cpu, took = cpu_seconds(self._pids) - cpu, time.perf_counter() - began
            return Window(delays, took, cpu, self._stored() - before)

    def _stored(self) -> float:
        page = get(f"http://127.0.0.1:{self._port}/metrics") or b""
        return sum(float(value) for value in _STORED.findall(page))


def rows(*, rounds: int, quick: bool) -> list[Row]:
    """Delays are what events add to them; a block's CPU time includes that of the block which makes room for it."""
    seconds, size = (_QUICK_SECONDS, _QUICK_POD_BLOCKS) if quick else (_SECONDS, _POD_BLOCKS)
    values: dict[str, list[float]] = {}
    offered = []
    with tempfile.TemporaryDirectory() as logs, _bench(Path(logs), size) as bench:
        bench.heard()
        for _ in range(rounds):
            control, loaded = bench.control(seconds), bench.loaded(seconds)
            published = bench.heard()
            offered.append(published["blocks"] / published["seconds"])
            for measure, value in _compared(loaded, control).items():
                values.setdefault(measure, []).append(value)
    sys.stderr.write(f"bench: intake: {statistics.median(offered):,.0f} blocks/s published\n")
    units = {"delay.p50": "ms", "delay.p99": "ms", "rate": "blocks/s", "cpu": "µs/block"}
    return [row(f"intake.{measure}", unit, values[measure]) for measure, unit in units.items()]


def _compared(loaded: Window, control: Window) -> dict[str, float]:
    (median, late), (usual_median, usual_late) = (_percentiles(each.delays) for each in (loaded, control))
    idle_cpu_s = control.cpu_s / control.seconds * loaded.seconds
    return {
        "delay.p50": median - usual_median,
        "delay.p99": late - usual_late,
        "rate": loaded.blocks / loaded.seconds,
        "cpu": (loaded.cpu_s - idle_cpu_s) / loaded.blocks * 1e6,
    }


def _percentiles(delays: list[float]) -> tuple[float, float]:
    return statistics.median(delays), statistics.quantiles(delays, n=100, method="inclusive")[98]


class _Connection(asyncio.Protocol):
    """One question at a time."""

    def __init__(self, questions: "Questions") -> None:
        self._questions = questions
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it

    def ask(self, question: bytes) -> None:
        self._asked = time.perf_counter()
        self.transport.write(question)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(b"}"):
            if self._received.startswith(b"HTTP/1.1 200 "):
                self._questions.answered(self, (time.perf_counter() - self._asked) * 1e3)
            self._received = b""


class Questions:
    """Open connections, and the delays of what is asked on them, in ms."""

    def __init__(self, port: int) -> None:
        self._question = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        self.free: list[_Connection] = []
        self._delays: list[float] = []

    def answered(self, connection: _Connection, delay: float) -> None:
        """The connection is free again."""
        self._delays.append(delay)
        self.free.append(connection)

    async def ask(self, seconds: float) -> list[float]:
        """At random moments, so that they keep no step with the events. Raises NotReady if a question gets no 200."""
        rng, asked = random.Random(1), 0
        due = time.perf_counter()
        end = due + seconds
        while (due := due + rng.uniform(0.0, 2.0 / _QUESTIONS_PER_S)) < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if not self.free:
                raise NotReady(f"{_CONNECTIONS} questions wait for their answers")
            self.free.pop().ask(self._question)
            asked += 1
        while len(self._delays) < asked:
            await asyncio.sleep(_WAIT_S)
            if time.perf_counter() > end + _DEADLINE_S:
                raise NotReady(f"{len(self._delays)} of {asked} questions were answered")
        return self._delays


@asynccontextmanager
async def _questions(port: int) -> AsyncIterator[Questions]:
    questions = Questions(port)
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(lambda: _Connection(questions), "127.0.0.1", port))[1]
        for _ in range(_CONNECTIONS)
    ]
    questions.free += connections
    yield questions
    for connection in connections:
        connection.transport.abort()


@contextmanager
def _bench(logs: Path, size: int) -> Iterator[Bench]:
    """Pods that serve, and a gateway that has begun to listen to them."""
    log = logs / "publisher.log"
    command = [sys.executable, "-m", "tests.bench.publisher", str(_PODS), str(_BLOCKS_PER_S), str(size)]
    with running(command, log=log, cwd=ROOT) as publisher:
        pods = Pods(publisher, log)
        ports = pods.answer()["http"]
        assert isinstance(ports, list)
        port, log, file = free_port(), logs / "gateway.log", logs / "gateway.json"
        config = {
            "listen": {"host": "127.0.0.1", "port": port},
            "pods": [{"url": f"http://127.0.0.1:{each}"} for each in ports],
            "p2p": {"probe": False},
            "log": {"level": "error"},
        }
        file.write_bytes(msgspec.json.encode(config))
        with running([sys.executable, "-m", "gateway", "--config", str(file)], log=log, cwd=ROOT) as process:
            wait_until(
                lambda: get(f"http://127.0.0.1:{port}/health") is not None, process, log=log, deadline_s=_DEADLINE_S
            )
            yield Bench(pods, process, port, log)
