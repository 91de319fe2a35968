"""What the proxy section starts: backends, the gateway, and the floor that it is held against."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tests.bench.chats import MODEL
from tests.bench.clock import process_tree
from tests.bench.index_rows import ROOT
from tests.bench.processes import free_port, get, running, wait_until

START_S: Final = 60.0


class Backend(NamedTuple):
    """`events` is where it publishes KV events, `blocks` how many blocks they store."""

    port: int
    events: int
    blocks: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Router(NamedTuple):
    """What is measured: where it serves, and the processes whose CPU and memory count."""

    name: str
    ports: list[int]
    pids: list[int]


@contextmanager
def backend(log: Path, *how: str) -> Iterator[Backend]:
    """One that listens."""
    with running([sys.executable, "-m", "tests.bench.backend", *how], log=log, cwd=ROOT) as process:
        wait_until(lambda: log.read_bytes().endswith(b"}\n"), process, log=log, deadline_s=START_S)
        said = msgspec.json.decode(log.read_bytes(), type=dict[str, int])
        yield Backend(said["http"], said["events"], said["blocks"])


@contextmanager
def gateway(
    name: str, backends: list[Backend], logs: Path, level: str, *, model: Path | None = None
) -> Iterator[Router]:
    """Ours with its default settings, once it knows what the backends have cached; and the files of their model."""
    port = free_port()
    log, file = logs / f"{name}.log", logs / f"{name}.json"
    config = {
        "listen": {"host": "127.0.0.1", "port": port},
        "pods": [{"url": each.url} for each in backends],
        "log": {"level": level},
        "access_log": {"enabled": level == "info"},
        "tokens": {"path": str(model)} if model else {},
    }
    file.write_bytes(msgspec.json.encode(config))

    blocks = {each.url: each.blocks for each in backends}

    def is_ready() -> bool:
        pods, tokens = told("/pods", "pods"), told("/ready", "tokens")
        return (
            bool(pods)
            and all(pod["cached_blocks"]["gpu"] == blocks[pod["url"]] for pod in pods)
            and (model is None or tokens == {MODEL: "local"})
        )

    def told(path: str, field: str) -> Any:
        page = get(f"http://127.0.0.1:{port}{path}")
        return msgspec.json.decode(page)[field] if page else None

    with running([sys.executable, "-m", "gateway", "--config", str(file)], log=log, cwd=ROOT) as process:
        wait_until(is_ready, process, log=log, deadline_s=START_S)
        yield Router(name, [port], process_tree(process.pid))


@contextmanager
def floor(name: str, backends: list[Backend], logs: Path) -> Iterator[Router]:
    """Plain aiohttp."""
    port, log = free_port(), logs / f"{name}.log"
    command = [sys.executable, "-m", "tests.bench.floor", str(port), *(each.url for each in backends)]
    with running(command, log=log, cwd=ROOT) as process:
        wait_until(lambda: get(f"http://127.0.0.1:{port}/health") is not None, process, log=log, deadline_s=START_S)
        yield Router(name, [port], process_tree(process.pid))
