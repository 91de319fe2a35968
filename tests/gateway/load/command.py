"""`p2p-gateway` as an operator starts it, for looking at its process."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from sys import executable
from typing import Any, Final

from tests.bench.processes import get, running, wait_until

CHECKOUT: Final = Path(__file__).resolve().parents[3]
START_S: Final = 30.0


@contextmanager
def command(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple["Popen[bytes]", str]]:
    """The process and its URL, as long as the context lasts, when it has found all pods. Logs go to `folder`."""
    file, log = folder / "gateway.yaml", folder / "gateway.log"
    where = {"listen": {"host": "127.0.0.1", "port": 0}, "access_log": {"path": str(folder / "access.log")}}
    file.write_text(json.dumps(where | dict(config)))  # JSON is YAML
    with running([executable, "-m", "gateway", "--config", str(file)], log=log, cwd=CHECKOUT) as process:
        wait_until(lambda: _url(log) is not None, process, log=log, deadline_s=START_S)
        url = _url(log) or ""
        wait_until(lambda: _all_ready(url), process, log=log, deadline_s=START_S)
        yield process, url


def _url(log: Path) -> str | None:
    """From the line that says where it serves."""
    said = [word for line in log.read_text().splitlines() if "serving" in line for word in line.split()]
    return next((word.removeprefix("url=") for word in said if word.startswith("url=")), None)


def _all_ready(url: str) -> bool:
    rows: list[dict[str, Any]] = json.loads(get(f"{url}/pods") or b'{"pods":[]}')["pods"]
    return bool(rows) and all(row["state"] == "ready" for row in rows)
