"""One gateway, some pods, and thousands of streams at once: who gets what, who is told, and what it costs."""

import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from sys import executable
from typing import Any, Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tests.bench.clock import cpu_seconds, resident_bytes
from tests.bench.processes import get, running, wait_until
from tests.gateway.load.clients import Options, Tally
from tests.gateway.load.command import CHECKOUT, START_S, command

_GRACE_S: Final = 90.0
_LOOK_S: Final = 0.1
_SLOW_S: Final = 1.0  # beyond the deadline by which a slow reader is cut off
_ABORT_S: Final = 1.0  # from a reader's leaving to its pod's knowing
_MIB: Final = 1 << 20
_OWN_AHEAD_BYTES: Final = 2 * _MIB  # of a slow reader, what the gateway itself holds at most, and the reader
_GROWTH: Final = 1.15  # of resident memory, once all streams go on
_GROWTH_BYTES: Final = 16 * _MIB
_SLOW_BYTES: Final = 1 * _MIB  # for each slow reader at most, of resident memory


@dataclass(frozen=True)
class Plan:
    """How many streams, for how long; the fields as in `clients.Options`. One pod is killed halfway.

    `late_s`: by how much one event in a hundred may be late.
    """

    streams: int = 5000
    seconds: float = 60.0
    ramp_s: float = 10.0
    pace: float = 1.0
    leaving: float = 0.01
    slow: int = 50
    pods: int = 4
    idle_timeout: float = 10.0
    late_s: float = 0.1


@dataclass
class Memory:
    """Resident bytes of the gateway."""

    idle: int
    ramped: int = 0
    most: int = 0  # from then on
    end: int = 0


class Report(msgspec.Struct, kw_only=True):
    """What came of it. `wrong`: what must not be, as sentences; empty where all is well."""

    tally: Tally
    memory: Memory
    cpu_s: float
    seconds: float
    aborts_s: tuple[float, float]  # p50 and maximum, from a reader's leaving to its pod's knowing
    ahead_bytes: int  # at most, of a pod before a slow reader
    counted: dict[str, int]  # the gateway's own count, by status
    wrong: list[str]


def run(plan: Plan, folder: Path) -> Report:
    """Everything as processes of their own, which have ended when this returns; logs go to `folder`."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        pods = [stack.enter_context(pod(folder, number)) for number in range(plan.pods)]
        gateway, url = stack.enter_context(command(folder, _config(plan, [port for _, port in pods])))
        memory = Memory(idle=resident_bytes(gateway.pid))
        began, cpu = time.monotonic(), cpu_seconds([gateway.pid])
        tally = _load(plan, folder, gateway, int(url.rpartition(":")[2]), pods[0][0], memory)
        seconds, cpu = time.monotonic() - began, cpu_seconds([gateway.pid]) - cpu
        _settle(url)
        memory.end = resident_bytes(gateway.pid)
        counted, under_way = _counted(url)
    aborted = _aborted(folder)
    delays = sorted(aborted[name][0] - when for name, when in tally.left.items() if name in aborted)
    report = Report(
        tally=tally,
        memory=memory,
        cpu_s=cpu,
        seconds=seconds,
        aborts_s=(delays[len(delays) // 2], delays[-1]) if delays else (0.0, 0.0),
        ahead_bytes=max((sent for name, (_, sent) in aborted.items() if name.startswith("slow")), default=0),
        counted=counted,
        wrong=[],
    )
    report.wrong = [*tally.faults, *_lost(report, under_way), *_unheard(plan, report, aborted)]
    return report


def _load(
    plan: Plan, folder: Path, gateway: "Popen[bytes]", port: int, victim: "Popen[bytes]", memory: Memory
) -> Tally:
    """Run the clients; kill a pod when half of the time has passed."""
    options = Options(
        port=port,
        streams=plan.streams,
        seconds=plan.seconds,
        ramp_s=plan.ramp_s,
        pace=plan.pace,
        leaving=plan.leaving,
        slow=plan.slow,
        slow_s=plan.idle_timeout + _SLOW_S,
    )
    log = folder / "clients.log"
    arguments = ["tests.gateway.load.clients", msgspec.json.encode(options).decode()]
    with running([executable, "-m", *arguments], log=log, cwd=CHECKOUT) as clients:
        wait_until(lambda: b"ramped" in log.read_bytes(), clients, log=log, deadline_s=plan.ramp_s + START_S)
        memory.ramped = resident_bytes(gateway.pid)
        kill_at = time.monotonic() + max(0.0, plan.seconds / 2 - plan.ramp_s)
        over = kill_at + plan.seconds + _GRACE_S
        while clients.poll() is None and time.monotonic() < over:
            memory.most = max(memory.most, resident_bytes(gateway.pid))
            if victim.poll() is None and time.monotonic() > kill_at:
                victim.kill()
            time.sleep(_LOOK_S)
        said = log.read_bytes().rpartition(b"\n{")[2]
    return msgspec.json.decode(b"{" + said, type=Tally)


def _lost(report: Report, under_way: float) -> Iterator[str]:
    """Requests of which nobody knows how they ended."""
    tally = report.tally
    ended = tally.complete + tally.broken + len(tally.left)
    if ended != tally.sent or tally.faulty:
        yield f"of {tally.sent} requests {ended} ended as they may"
    if not tally.broken:
        yield "the killed pod had no streams"
    if (counted := sum(report.counted.values())) != tally.sent + len(tally.slow):
        yield f"of {tally.sent} + {len(tally.slow)} requests {counted} were counted"
    if under_way:
        yield f"{under_way:.0f} requests are still counted as under way"


def _unheard(plan: Plan, report: Report, aborted: dict[str, tuple[float, int]]) -> Iterator[str]:
    """Readers that left, or that are slow, and pods that were not told; memory that grew for it."""
    tally, memory = report.tally, report.memory
    if not tally.left:
        yield "nobody left"
    if unheard := sorted(tally.left.keys() - aborted.keys()):
        yield f"left, and their pods never knew: {unheard[:5]}"
    if report.aborts_s[1] > _ABORT_S:
        yield f"a pod knew only {report.aborts_s[1]:.2f} s later that its reader had left"
    if (cut := sum(tally.slow.values())) < plan.slow:
        yield f"only {cut} slow readers were cut off"
    if report.ahead_bytes > _OWN_AHEAD_BYTES + _sockets_hold():
        yield f"a pod was {report.ahead_bytes} bytes ahead of its reader"
    if tally.delays_s[1] > plan.late_s:
        yield f"one event in a hundred was {tally.delays_s[1]:.2f} s late"
    if memory.most > memory.ramped * _GROWTH + _GROWTH_BYTES + plan.slow * _SLOW_BYTES:
        yield f"memory grew from {memory.ramped} to {memory.most}"


def _sockets_hold() -> int:
    """Bytes that the system holds at most between a pod and a reader whose own buffer is small: what the pod's socket
    and the gateway's two grow to (tcp(7), `tcp_rmem` and `tcp_wmem`).
    """
    receive, send = (int(Path(f"/proc/sys/net/ipv4/tcp_{each}mem").read_text().split()[2]) for each in ("r", "w"))
    return receive + 2 * send


def _config(plan: Plan, ports: list[int]) -> dict[str, Any]:
    return {"pods": [spec(port) for port in ports], "limits": {"idle_timeout": plan.idle_timeout}}


def spec(port: int) -> dict[str, Any]:
    """The pod's entry in a configuration."""
    return {"url": f"http://127.0.0.1:{port}", "p2p": f"127.0.0.1:{port}"}


@contextmanager
def pod(folder: Path, number: int = 0) -> Iterator[tuple["Popen[bytes]", int]]:
    """A pod's process and its port, as long as the context lasts."""
    log = folder / f"pod-{number}.log"
    arguments = ["tests.gateway.load.pod", str(folder / f"pod-{number}.ends")]
    with running([executable, "-m", *arguments], log=log, cwd=CHECKOUT) as process:
        wait_until(lambda: b"\n" in log.read_bytes(), process, log=log, deadline_s=START_S)
        yield process, int(log.read_bytes().split()[1])


def _settle(url: str) -> None:
    """Return when nothing is under way, or after a while."""
    deadline = time.monotonic() + _ABORT_S
    while _counted(url)[1] and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _counted(url: str) -> tuple[dict[str, int], float]:
    """Requests by status, and those under way."""
    counted: dict[str, int] = {}
    under_way = 0.0
    for family in text_string_to_metric_families((get(f"{url}/metrics") or b"").decode()):
        for sample in family.samples:
            if sample.name == "p2p_gateway_requests_total":
                status = sample.labels["status"]
                counted[status] = counted.get(status, 0) + int(sample.value)
            elif sample.name == "p2p_gateway_in_flight_requests":
                under_way += sample.value
    return counted, under_way


def _aborted(folder: Path) -> dict[str, tuple[float, int]]:
    """When pods heard that a reader had left, and what they had sent by then, by the request's id."""
    lines = [line.split() for file in folder.glob("pod-*.ends") for line in file.read_text().splitlines()]
    return {name: (float(when), int(sent)) for name, when, sent in lines}
