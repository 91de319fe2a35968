"""A running gateway as a test sees it: over HTTP only."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.engine.pods import Pod, free_ports

_KNOWN_DEADLINE_S = 30.0
_READY_DEADLINE_S = 30.0
_RELOADED = 'p2p_gateway_config_reloads_total{result="ok"}'


class Gateway:
    """A gateway process, as an operator runs it, and the file with its configuration."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], file: Path) -> None:
        self.url = url
        self._process = process
        self._file = file

    @property
    def process(self) -> int:
        """Its id."""
        return self._process.pid

    def reconfigure(self, **sections: Any) -> None:
        """Put these sections in force in the place of its own, while it runs."""
        reloads = self.metric(_RELOADED)
        self._file.write_text(json.dumps({**json.loads(self._file.read_text()), **sections}))
        self._process.send_signal(signal.SIGHUP)
        until(lambda: self.metric(_RELOADED) > reloads, _KNOWN_DEADLINE_S, "the changed configuration in force")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def metric(self, line_start: str) -> float:
        """Sum of the samples whose line starts so; 0 where there is none yet."""
        return metric(self.url, line_start)

    def pod(self, pod: Pod) -> dict[str, Any]:
        """The pod's entry of /pods."""
        entry: dict[str, Any] = next(each for each in self.get("/pods")["pods"] if each["url"] == pod.url)
        return entry

    def explain(self, body: dict[str, Any], path: str = "") -> dict[str, Any]:
        explained: dict[str, Any] = self.post(f"/explain?path={path}" if path else "/explain", body)
        return explained

    def cached(self, body: dict[str, Any], pod: Pod, path: str = "") -> dict[str, int]:
        """The tokens of the body's prompt that the gateway believes the pod to hold, per tier."""
        candidates = self.explain(body, path)["candidates"]
        found: dict[str, int] = next(each["cached_tokens"] for each in candidates if each["pod"] == pod.url)
        return found

    def wait_until_preferred(self, body: dict[str, Any], pod: Pod) -> dict[str, Any]:
        """The explanation, once the request would go to the pod, not by the draw among equals but for its load."""
        explained: dict[str, Any] = {}

        def preferred() -> bool:
            explained.update(self.explain(body))
            totals = {each["pod"]: each["total"] for each in explained["candidates"]}
            return all(totals[pod.url] > total for url, total in totals.items() if url != pod.url)

        until(preferred, _KNOWN_DEADLINE_S, "load that decides placement")
        return explained

    def wait_until_cached(self, body: dict[str, Any], pod: Pod, tokens: int, path: str = "") -> None:
        """Return when the pod's events have announced so many tokens of the prompt in its CPU tier."""
        until(lambda: self.cached(body, pod, path)["cpu"] >= tokens, _KNOWN_DEADLINE_S, "CPU-tier events")


@contextmanager
def in_front_of(
    pods: Sequence[Pod], directory: Path, /, program: str = "gateway", **sections: Any
) -> Iterator[Gateway]:
    """A gateway as a process, as long as the context lasts, once all pods are ready. It has to end in peace.

    `program`: the module that is run. Its log is `directory/gateway.log`.
    """
    (port,) = free_ports(1)
    config = {
        "listen": {"host": "127.0.0.1", "port": port},
        "pods": [{"url": pod.url, "p2p": f"127.0.0.1:{pod.parameters.p2p_port}"} for pod in pods],
        "p2p": {"source": {"type": "weighted-sampling"}, "min_cached_token_delta": 256},
        "poll": {"interval": 0.25},
        "limits": {"drain_timeout": 5},
        **sections,
    }
    path = directory / "gateway.yaml"
    path.write_text(json.dumps(config))
    with (directory / "gateway.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", program, "--config", str(path)], stderr=log)
        try:
            served = Gateway(f"http://127.0.0.1:{port}", process, path)
            until(lambda: _all_ready(served, process), _READY_DEADLINE_S, "gateway ready")
            yield served
        finally:
            process.terminate()
            assert process.wait(20) == 0, (directory / "gateway.log").read_text()


def _all_ready(gateway: Gateway, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the gateway ended while starting"
    try:
        return set(gateway.get("/ready")["pods"].values()) == {"ready"}
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


def metric(url: str, line_start: str, label: str = "") -> float:
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(line_start) and label in line)


def until(condition: Callable[[], object], deadline_s: float, what: str) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {deadline_s:.0f} s")
        time.sleep(0.05)
