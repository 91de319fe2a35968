"""Two real pods and a gateway in front of them, shared by the whole engine suite: starting pods is what takes long."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.environment import EngineEnvironment, prepare
from tests.engine.front import Gateway, in_front_of
from tests.engine.pods import Pod, running


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
    placement = {"scorers": [{"type": "queue"}, {"type": "kv-utilization"}]}
    with in_front_of(pods, tmp_path_factory.mktemp("gateway"), placement=placement) as served:
        yield served


@pytest.fixture(scope="session")
def words() -> list[str]:
    """Identifiers of the standard library, to make prompts from: what the model's tokenizer was trained on."""
    text = Path(json.__file__).read_text() + Path(subprocess.__file__).read_text()
    return sorted({word for word in text.split() if word.isidentifier()})
