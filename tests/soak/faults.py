"""What befalls a real pod: it is killed and comes back, it stops as a whole, or only its engine does."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple

from tests.engine.pods import Pod

Kind = Literal["kill", "stop", "hang"]
KINDS: Final[tuple[Kind, ...]] = ("kill", "stop", "hang")
_STOPPED_S: Final = (2.0, 8.0)
_DOWN_S: Final = (0.5, 4.0)
_ENGINE: Final = b"VLLM::"


class Fault(NamedTuple):
    """What was done to which pod, by URL, from when to when on the monotonic clock."""

    kind: Kind
    pod: str
    began: float
    over: float


def happens(kind: Kind, pod: Pod, rng: Random) -> Fault:
    """Do it, and return when it is over: a pod that was killed is ready again."""
    began = time.monotonic()
    match kind:
        case "kill":
            pod.kill()
            time.sleep(rng.uniform(*_DOWN_S))
            pod.start()
            pod.wait_ready()
        case "stop":
            with _stopped(pod.processes()):
                time.sleep(rng.uniform(*_STOPPED_S))
        case "hang":
            engines = list(_engines(pod))
            assert engines, f"no engine is known among the processes of {pod.url}"
            with _stopped(engines):
                time.sleep(rng.uniform(*_STOPPED_S))
    return Fault(kind, pod.url, began, time.monotonic())


@contextlib.contextmanager
def _stopped(processes: list[int]) -> Iterator[None]:
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def _engines(pod: Pod) -> Iterator[int]:
    """The engine and its workers, without the server that answers for it."""
    for process in pod.processes():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/cmdline").read_bytes().startswith(_ENGINE):
                yield process
