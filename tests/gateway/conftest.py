import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
import uvloop

from loadgen import model_files


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that `p2p-gateway` runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[list[MutableMapping[str, Any]]]:
    """What the gateway logged. A test that provokes a fault takes its entry out; any other fault fails the test."""
    with structlog.testing.capture_logs() as entries:
        yield entries
    assert [entry for entry in entries if entry["log_level"] in ("error", "critical")] == []
    assert [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []


@pytest.fixture
def ties_go_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pods that score alike, the first configured is chosen."""
    monkeypatch.setattr(random, "random", lambda: 0.0)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated pods' model, as a directory."""
    return model_files.write(tmp_path_factory.mktemp("model"))
