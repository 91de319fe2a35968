"""Real vLLM pods on this machine, for tests: start, wait, kill, and never leave anything behind.

    with Pod(engine, tmp_path) as a, Pod(engine, tmp_path) as b: ...      # one after the other
    with running(Pod(engine, tmp_path), Pod(engine, tmp_path)) as (a, b): ...   # both at once, twice as fast

A pod publishes events, offloads to its CPU tier and serves pulls; its arguments come from `gateway.pod_args`. It ends
with its block, and also when the test runner dies without leaving the block (`leash.py`).
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from gateway.pod_args import PodParameters, command, environment
from tests.engine.environment import HERE, EngineEnvironment

READY_DEADLINE_S = 240.0
"""A pod takes 15 to 30 s on two idle cores, and several times that when the cores are shared."""

_FAST_START = ("--enforce-eager", "--max-model-len", "8192")
_TAIL_LINES = 40
_LOWEST_PORT = 10_000


class PodFailedError(Exception):
    """A pod ended, or was not ready in time; carries the end of its log."""


class Pod:
    """One pod. Not running until `start`; after `kill` or `stop` it can be started again, on the same ports.

    `replaced` maps parts of its arguments to what stands there instead. Keyword arguments beyond the named ones are
    fields of `PodParameters`. The log is appended to `directory/pod-PORT.log`.
    """

    def __init__(
        self,
        engine: EngineEnvironment,
        directory: Path,
        *,
        variables: Mapping[str, str] | None = None,
        replaced: Mapping[str, str] | None = None,
        extra: tuple[str, ...] = (),
        cpu_bytes: int = 256 * 2**20,
        **parameters: object,
    ) -> None:
        ports = dict(zip(("port", "events_port", "replay_port", "p2p_port"), free_ports(4), strict=True))
        fields = {"model": str(engine.model), "device": "cpu", "device_cache_bytes": 2**30, **ports, **parameters}
        self.parameters = PodParameters(cpu_bytes=cpu_bytes, extra=(*_FAST_START, *extra), **fields)  # type: ignore[arg-type]
        self.log = directory / f"pod-{self.parameters.port}.log"
        self._engine = engine
        self._variables = dict(variables or {})
        self._replaced = dict(replaced or {})
        self._leash: subprocess.Popen[bytes] | None = None
        self.process_group = 0
        self._log_start = 0

    @property
    def url(self) -> str:
        return f"http://{self.parameters.host}:{self.parameters.port}"

    @property
    def model(self) -> str:
        """The model's name in requests."""
        return self.parameters.model

    @property
    def events(self) -> str:
        return f"tcp://{self.parameters.host}:{self.parameters.events_port}"

    @property
    def replay(self) -> str:
        return f"tcp://{self.parameters.host}:{self.parameters.first_replay_port}"

    def start(self) -> None:
        """Start the processes, without waiting."""
        if self._leash is not None:
            raise RuntimeError("the pod is running")
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
        }
        variables = {
            **inherited,
            **environment(self.parameters),
            "PYTHONPATH": str(self._engine.search_path),
            # One thread per pod: two pods and a test runner share the cores.
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            **self._variables,
        }
        pod = command(self.parameters, python=str(self._engine.python))
        for known, other in self._replaced.items():
            pod = [word.replace(known, other) for word in pod]
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._leash = subprocess.Popen(
                [str(self._engine.python), str(HERE / "leash.py"), *pod],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._leash.stdout is not None
        self.process_group = int(self._leash.stdout.readline())

    def wait_ready(self, deadline_s: float = READY_DEADLINE_S) -> None:
        """Return when the pod serves requests; PodFailedError, and the pod is gone, when it does not get there."""
        until = time.monotonic() + deadline_s
        while not self._healthy():
            if self._leash is None or self._leash.poll() is not None:
                tail = self.log_tail()
                self.kill()
                raise PodFailedError(f"the pod ended while starting:\n{tail}")
            if time.monotonic() > until:
                tail = self.log_tail()
                self.kill()
                raise PodFailedError(f"the pod was not ready after {deadline_s:.0f} s:\n{tail}")
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to all its processes, as a machine's failure would look from outside; waits until they are gone."""
        if self._leash is not None:
            self._release()

    def stop(self, grace_s: float = 20.0) -> int:
        """SIGTERM, as a cluster ends a pod, and SIGKILL after the grace time; returns the exit code (137: killed)."""
        if self._leash is None:
            raise RuntimeError("the pod is not running")
        assert self._leash.stdin is not None
        self._leash.stdin.write(b"\n")
        self._leash.stdin.flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._leash.wait(grace_s)
        return self._release()

    def pause(self) -> None:
        """SIGSTOP to all its processes, as a machine that hangs: its connections stand, and nobody answers."""
        os.killpg(self.process_group, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to all its processes, also to one that has stopped itself."""
        os.killpg(self.process_group, signal.SIGCONT)

    def processes(self) -> list[int]:
        """Ids of all its processes."""
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(int(directory.name)) == self.process_group:
                    found.append(int(directory.name))
        return found

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """The last lines of what this run of the pod has logged."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return b"\n".join(log.read().splitlines()[-lines:]).decode(errors="replace")

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2.0):
                return True
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False

    def _release(self) -> int:
        leash, self._leash = self._leash, None
        assert leash is not None
        # The end of its input is the order to kill.
        leash.communicate()
        return leash.returncode

    def __enter__(self) -> Self:
        self.start()
        self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


@contextlib.contextmanager
def running(*pods: Pod) -> Iterator[tuple[Pod, ...]]:
    """Start all pods at once; yields them when all are ready, and kills them at the end."""
    try:
        for pod in pods:
            pod.start()
        for pod in pods:
            pod.wait_ready()
        yield pods
    finally:
        for pod in pods:
            pod.kill()


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, and that the system gives to nobody by itself.

    A pod binds its ports many seconds after it was told them, and again when it is restarted. Ports of the range from
    which the system serves everybody who asks for any would be taken meanwhile, not least by vLLM itself.
    """
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    for port in random.sample(range(_LOWEST_PORT, first_given), k=min(1000, first_given - _LOWEST_PORT)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} free ports from {_LOWEST_PORT} to {first_given}")
