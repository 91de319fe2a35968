"""What a gateway and its pods hold when nothing is under way: the same before and after, or something leaks."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.bench.clock import resident_bytes
from tests.engine.front import Gateway, until
from tests.engine.pods import Pod

_SETTLE_S: Final = 30.0
_GROWTH: Final = 1.15  # of resident memory
_GROWTH_BYTES: Final = 24 << 20  # with an index that knows twice as many blocks
_SPARE_DESCRIPTORS: Final = 4  # polls and probes that are under way
_SPARE_TASKS: Final = 6
_COUNTS: Final = ("in_flight_requests", "in_flight_unanswered", "in_flight_tokens", "pulls", "serving")
_SEGMENTS: Final = Path("/dev/shm")  # noqa: S108 - where they are
_OFFLOADED: Final = "vllm_offload_*"
_TASKS: Final = re.compile(r"^tasks: (\d+) ", re.MULTILINE)


class Held(NamedTuple):
    """By an idle gateway's process."""

    descriptors: int
    threads: int
    tasks: int
    resident: int

    def __str__(self) -> str:
        return (
            f"{self.descriptors} descriptors, {self.threads} threads, {self.tasks} tasks,"
            f" {self.resident / 2**20:.0f} MiB"
        )


def held(gateway: Gateway, log: Path) -> Held:
    """What it holds now."""
    process = Path(f"/proc/{gateway.process}")
    return Held(
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
        _tasks(gateway, log),
        resident_bytes(gateway.process),
    )


def settled(gateway: Gateway) -> list[str]:
    """Wait until the gateway counts nothing as under way; what it still counts, in words."""
    with contextlib.suppress(AssertionError):
        until(lambda: not list(_under_way(gateway)), _SETTLE_S, "nothing under way")
    return list(_under_way(gateway))


def leaked(gateway: Gateway, log: Path, before: Held) -> tuple[Held, list[str]]:
    """What it holds when connections that nobody uses have been closed, and what of that is too much."""
    now = held(gateway, log)

    def is_as_before() -> bool:
        nonlocal now
        now = held(gateway, log)
        return not list(_grown(before, now))

    with contextlib.suppress(AssertionError):
        until(is_as_before, _SETTLE_S, "as before")
    return now, list(_grown(before, now))


def segments() -> set[Path]:
    """Shared memory of CPU tiers on this machine."""
    return set(_SEGMENTS.glob(_OFFLOADED))


def orphans(before: set[Path], pods: Sequence[Pod]) -> list[str]:
    """Shared memory that is new and that no living pod of these maps."""
    mapped = {name for pod in pods for process in pod.processes() for name in _mapped(process)}
    return [f"left in shared memory: {each}" for each in sorted(segments() - before) if str(each) not in mapped]


def _mapped(process: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            yield line.rpartition(" ")[2]


def _under_way(gateway: Gateway) -> Iterator[str]:
    for pod in gateway.get("/pods")["pods"]:
        for name in _COUNTS:
            if pod[name]:
                yield f"{pod['url']} still counts {name} {pod[name]}"
    if told := gateway.metric("p2p_gateway_in_flight_requests"):
        yield f"requests in flight in the metrics: {told:.0f}"


def _grown(before: Held, now: Held) -> Iterator[str]:
    allowed = Held(
        before.descriptors + _SPARE_DESCRIPTORS,
        before.threads,
        before.tasks + _SPARE_TASKS,
        int(before.resident * _GROWTH) + _GROWTH_BYTES,
    )
    for name, was, most, found in zip(Held._fields, before, allowed, now, strict=True):
        if found > most:
            yield f"{name}: {was} before, {found} after"


def _tasks(gateway: Gateway, log: Path) -> int:
    """What a `counting_gateway` says when it is asked."""

    def told() -> list[str]:
        return _TASKS.findall(log.read_text(errors="replace"))

    before = len(told())
    os.kill(gateway.process, signal.SIGUSR1)
    until(lambda: len(told()) > before, 5.0, "the gateway's count of its tasks")
    return int(told()[-1])
