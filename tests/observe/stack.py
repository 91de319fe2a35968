"""Prometheus and Grafana as processes of their own, with the files that are shipped; they end with their context."""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import yaml

from tests.observe.files import GRAFANA, PROMETHEUS

PROMETHEUS_BINARY: Final = "prometheus"
GRAFANA_BINARIES: Final = ("grafana-server", "grafana")
_START_S: Final = 60.0  # Grafana makes its database at first
_END_S: Final = 10.0
_ANSWER_S: Final = 10.0
_LOOK_S: Final = 0.1


class NotReady(Exception):
    """A process that did not start; what it said."""


class Scraper(NamedTuple):
    """A Prometheus that runs."""

    url: str
    http: aiohttp.ClientSession

    async def query(self, expr: str) -> list[dict[str, Any]]:
        """The result of an instant query, a vector. Raises AssertionError for what is none."""
        answer = await self._asks("/api/v1/query", query=expr)
        assert answer["resultType"] == "vector", expr
        found: list[dict[str, Any]] = answer["result"]
        return found

    async def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in await self.alerts() if alert["state"] == "firing"}

    async def alerts(self) -> list[dict[str, Any]]:
        """Those that are pending or fire."""
        found: list[dict[str, Any]] = (await self._asks("/api/v1/alerts"))["alerts"]
        return found

    async def exemplars(self, expr: str, since: float, until: float) -> list[dict[str, Any]]:
        """Those of the series of an expression."""
        found: list[dict[str, Any]] = await self._asks(
            "/api/v1/query_exemplars", query=expr, start=f"{since}", end=f"{until}"
        )
        return found

    async def unwell(self) -> list[str]:
        """What went wrong with a scrape or a rule, as Prometheus says."""
        targets = (await self._asks("/api/v1/targets"))["activeTargets"]
        groups = (await self._asks("/api/v1/rules"))["groups"]
        return [f"{target['scrapeUrl']}: {target['lastError']}" for target in targets if target["lastError"]] + [
            f"{rule['name']}: {rule['lastError']}"
            for group in groups
            for rule in group["rules"]
            if rule.get("lastError")
        ]

    async def _asks(self, path: str, **parameters: str) -> Any:
        async with self.http.get(self.url + path, params=parameters) as answer:
            told = await answer.json()
        assert told["status"] == "success", told
        return told["data"]


def asking() -> aiohttp.ClientSession:
    """With a deadline for each question."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S))


def installed(*binaries: str) -> str | None:
    """The first of these programs that there is."""
    return next(filter(None, map(shutil.which, binaries)), None)


@asynccontextmanager
async def prometheus(
    directory: Path, targets: Sequence[str], *, interval: str = "1s", rules: Path = PROMETHEUS, port: int | None = None
) -> AsyncIterator[Scraper]:
    """Scrapes `host:port` targets. Raises NotReady; FileNotFoundError where it is not installed."""
    told = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    told["global"] = {"scrape_interval": interval, "evaluation_interval": interval, "scrape_timeout": interval}
    told["rule_files"] = [str(rules / file) for file in told["rule_files"]]
    told["scrape_configs"][0]["static_configs"] = [{"targets": list(targets)}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(told), encoding="utf-8")
    port = port or free_port()
    command = [
        PROMETHEUS_BINARY,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    url = f"http://127.0.0.1:{port}"
    log = directory / "prometheus.log"
    async with asking() as http, process(command, log) as running:
        await answers(http, f"{url}/-/ready", running, log)
        yield Scraper(url, http)


@asynccontextmanager
async def grafana(directory: Path, binary: str, source: str) -> AsyncIterator[str]:
    """The dashboards over a Prometheus at `source`, to be looked at without a login; its URL. Raises NotReady."""
    folder = directory / "grafana"
    provisioned(folder, source)
    port = free_port()
    environment = {
        "GF_PATHS_PROVISIONING": str(folder / "provisioning"),
        "GF_PATHS_DATA": str(folder / "data"),
        "GF_PATHS_LOGS": str(folder / "logs"),
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    }
    command = [binary, *(["server"] if Path(binary).name == "grafana" else [])]
    if (home := grafana_home()) is not None:
        command.append(f"--homepath={home}")
    url, log = f"http://127.0.0.1:{port}", directory / "grafana.log"
    async with asking() as http, process(command, log, environment) as running:
        await answers(http, f"{url}/api/health", running, log)
        yield url


def grafana_home() -> Path | None:
    """Where packages put what Grafana reads; None: it finds it by itself."""
    return next(
        (path for path in (Path("/usr/share/grafana"), Path("/usr/local/share/grafana")) if path.is_dir()), None
    )


def provisioned(folder: Path, source: str) -> None:
    """The files from which Grafana takes its data source and the dashboards."""
    datasource = {"name": "Prometheus", "type": "prometheus", "access": "proxy", "url": source, "isDefault": True}
    boards = {"name": "p2p-gateway", "type": "file", "options": {"path": str(GRAFANA)}}
    for kind, content in (
        ("datasources", {"apiVersion": 1, "datasources": [datasource]}),
        ("dashboards", {"apiVersion": 1, "providers": [boards]}),
    ):
        below = folder / "provisioning" / kind
        below.mkdir(parents=True)
        (below / "p2p-gateway.yml").write_text(yaml.safe_dump(content), encoding="utf-8")


@asynccontextmanager
async def process(
    command: Iterable[str], log: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs as long as the context; in a session of its own, so that Ctrl-C reaches whoever started it alone."""
    with log.open("wb") as file:
        running = await asyncio.create_subprocess_exec(
            *command, stdout=file, stderr=file, env=os.environ | (environment or {}), start_new_session=True
        )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.terminate()
            try:
                async with asyncio.timeout(_END_S):
                    await running.wait()
            except TimeoutError:
                running.kill()
                await running.wait()


async def answers(http: aiohttp.ClientSession, url: str, running: asyncio.subprocess.Process, log: Path) -> None:
    """Return when `url` answers 200. Raises NotReady."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_S):
            while running.returncode is None:
                with suppress(aiohttp.ClientError):
                    async with http.get(url) as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(_LOOK_S)
    raise NotReady(f"{url} does not answer:\n{log.read_text(errors='replace')[-2000:]}")


def free_port() -> int:
    """One that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
