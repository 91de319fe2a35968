"""Two real pods and a gateway in front of them, shared by the whole engine suite: starting pods is what takes long."""

import json
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.environment import EngineEnvironment, prepare
from tests.engine.front import Gateway, until
from tests.engine.pods import Pod, free_ports, running

_READY_DEADLINE_S = 30.0


@pytest.fixture(scope="session")
def engine() -> EngineEnvironment:
    return prepare()


@pytest.fixture(scope="session")
def pods(engine: EngineEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pod, ...]]:
    """The second also renders, and tells what came of it."""
    directory = tmp_path_factory.mktemp("pods")
    with running(Pod(engine, directory), Pod(engine, directory, extra=("--enable-scale-out",))) as both:
        yield both


@pytest.fixture(scope="session")
def gateway(pods: tuple[Pod, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Load-first, so that a test decides by the load it makes where a request goes."""
    directory = tmp_path_factory.mktemp("gateway")
    (port,) = free_ports(1)
    config = {
        "listen": {"host": "127.0.0.1", "port": port},
        "pods": [{"url": pod.url, "p2p": f"127.0.0.1:{pod.parameters.p2p_port}"} for pod in pods],
        "placement": {"scorers": [{"type": "queue"}, {"type": "kv-utilization"}]},
        "p2p": {"min_cached_token_delta": 256},
        "poll": {"interval": 0.25},
        "limits": {"drain_timeout": 5},
    }
    path = directory / "gateway.yaml"
    path.write_text(json.dumps(config))
    with (directory / "gateway.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "gateway", "--config", str(path)], stderr=log)
        try:
            served = Gateway(f"http://127.0.0.1:{port}")
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


@pytest.fixture(scope="session")
def words() -> list[str]:
    """Identifiers of the standard library, to make prompts from: what the model's tokenizer was trained on."""
    text = Path(json.__file__).read_text() + Path(subprocess.__file__).read_text()
    return sorted({word for word in text.split() if word.isidentifier()})
