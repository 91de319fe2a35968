"""The demo, as a newcomer runs it: in a process of its own, with a gateway in another."""

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.timeout(90)

_DEADLINE_S = 30.0
_SERVING = "Serving until Ctrl-C."


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def demo(*options: str) -> Iterator[subprocess.Popen[str]]:
    """The running demo; it is interrupted at the end, so that it ends its gateway, whatever happened."""
    command = [sys.executable, "-m", "loadgen", "demo", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=_DEADLINE_S)


def read_until(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdout is not None
    read = ""
    for each in process.stdout:
        read += each
        if each.strip() == line:
            return read
    raise AssertionError(f"the demo ended without {line!r}:\n{read}")


def test_once_tells_of_a_pull_and_how_to_look_further() -> None:
    port = free_port()
    began = time.monotonic()
    with demo("--once", "--port", str(port)) as process:
        told, complained = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 0, complained
    assert time.monotonic() - began < _DEADLINE_S
    assert re.search(r"reused \(pulled from http://127\.0\.0\.1:\d+\)", told)
    assert 'p2p_gateway_pulls_total{outcome="named"}' in told
    for path in ("v1/chat/completions", "explain", "pods", "metrics"):
        assert f"curl -s http://127.0.0.1:{port}/{path}" in told
    assert not answers(port)


def test_an_interrupt_ends_the_demo_and_its_gateway() -> None:
    port = free_port()
    with demo("--port", str(port)) as process:
        read_until(process, _SERVING)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        _, complained = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode in {0, 130}  # 130 in the moment before it waits for the interrupt
    assert complained == ""
    assert not answers(port)
