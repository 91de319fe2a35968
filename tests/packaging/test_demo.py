"""The demo, as a newcomer runs it: in a process of its own, with a gateway in another."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(90)

_DEADLINE_S = 30.0
_SERVING = "Serving until Ctrl-C."

needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are looked for in /proc")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def demo(*options: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """The running demo, its files in `directory`; interrupted at the end, so that it ends its gateway in any case."""
    command = [sys.executable, "-m", "loadgen", "demo", *options]
    environment = os.environ | {"TMPDIR": str(directory)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=_DEADLINE_S)


def read_until(process: subprocess.Popen[str], beginning: str) -> None:
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if line.startswith(beginning):
            return
    raise AssertionError(f"the demo ended without {beginning!r}:\n{read}")


def gateways(directory: Path) -> list[str]:
    """Process ids of the gateways whose configuration is below `directory`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if os.fsencode(directory) in (process / "cmdline").read_bytes():
                found.append(process.name)
    return found


def test_once_tells_of_a_pull_and_how_to_look_further(tmp_path: Path) -> None:
    port = free_port()
    began = time.monotonic()
    with demo("--once", "--port", str(port), directory=tmp_path) as process:
        told, complained = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 0, complained
    assert time.monotonic() - began < _DEADLINE_S
    assert re.search(r"reused \(pulled from http://127\.0\.0\.1:\d+\)", told)
    assert 'p2p_gateway_pulls_total{outcome="named"}' in told
    for path in ("v1/chat/completions", "explain", "pods", "metrics"):
        assert f"curl -s http://127.0.0.1:{port}/{path}" in told
    assert f"The live page is at http://127.0.0.1:{port}/ui" in told
    assert not answers(port)


def requests(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("p2p_gateway_requests_total{"))


def test_users_go_on_talking_and_the_page_is_there(tmp_path: Path) -> None:
    port = free_port()
    with demo("--port", str(port), directory=tmp_path) as process:
        read_until(process, _SERVING)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ui", timeout=10) as page:
            assert b"<h1>p2p-gateway</h1>" in page.read()
        before, deadline = requests(port), time.monotonic() + _DEADLINE_S
        while requests(port) < before + 3:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_an_interrupt_ends_the_demo_and_its_gateway(tmp_path: Path) -> None:
    port = free_port()
    with demo("--port", str(port), directory=tmp_path) as process:
        read_until(process, _SERVING)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        _, complained = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 0
    assert complained == ""
    assert not answers(port)


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_story_ends_the_gateway_too(number: signal.Signals, tmp_path: Path) -> None:
    with demo("--port", str(free_port()), directory=tmp_path) as process:
        read_until(process, "turn 1 ")
        assert len(gateways(tmp_path)) == 1
        process.send_signal(number)
        _, complained = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 130
    assert complained == ""
    assert gateways(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@needs_proc
def test_a_signal_while_the_gateway_starts_ends_it_too(tmp_path: Path) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    with demo("--port", str(free_port()), directory=tmp_path) as process:
        while not gateways(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        _, complained = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 130
    assert complained == ""
    assert gateways(tmp_path) == []
