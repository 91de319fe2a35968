"""Processes on this machine, started, watched and stopped by their pids."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_STOP_S: Final = 10.0
_LOG_TAIL: Final = 2000


class NotReady(Exception):
    """A process did not come up; its last words are the message."""


@contextmanager
def running(
    command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run until the context ends; then it is asked to stop, and made to if it does not.

    What it writes goes to `log`; its standard input is a pipe that ends when this process does. `env` is added to the
    environment.
    """
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _stop(process)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(
    condition: Callable[[], bool], process: "subprocess.Popen[bytes]", *, log: Path, deadline_s: float
) -> None:
    """Poll until the condition holds. Raises NotReady when the process ends first or the deadline passes."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise NotReady(f"{process.args!r}:\n{log.read_text(errors='replace')[-_LOG_TAIL:]}")
        time.sleep(0.05)


def get(url: str) -> bytes | None:
    """The body of a 200, else None."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            body: bytes = answer.read()
            return body
    except (urllib.error.URLError, OSError):
        return None


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            continue
        return
