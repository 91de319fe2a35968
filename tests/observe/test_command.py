"""`make observe`, as somebody starts it who wants to look."""

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.observe.files import GRAFANA
from tests.observe.stack import PROMETHEUS_BINARY, NotReady, answers, asking, grafana, installed, process

COMMAND = [sys.executable, "-m", "tests.observe"]
DEADLINE_S = 60.0
PRETENDS = """#!{python}
import http.server, json, os, sys

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        told = {{"argv": sys.argv[1:], **{{k: v for k, v in os.environ.items() if k.startswith("GF_")}}}}
        self.wfile.write(json.dumps(told).encode())

where = os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"])
http.server.HTTPServer(where, Answers).serve_forever()
"""


def got(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def test_without_prometheus_it_says_what_to_install(tmp_path: Path) -> None:
    told = subprocess.run(
        COMMAND,
        env=os.environ | {"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert told.returncode == 1
    assert "apt-get install prometheus" in told.stderr


async def test_grafana_is_given_the_dashboards_and_the_source_and_ends_with_its_context(tmp_path: Path) -> None:
    """There is none to be had as a package, so something takes its place that tells how it was started."""
    (tmp_path / "bin").mkdir()
    binary = tmp_path / "bin" / "grafana"
    binary.write_text(PRETENDS.format(python=sys.executable), encoding="utf-8")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    async with grafana(tmp_path, str(binary), "http://127.0.0.1:9090") as url:
        told = await asyncio.to_thread(got, f"{url}/api/health")
    assert told["argv"][0] == "server"
    assert told["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    provisioning = Path(told["GF_PATHS_PROVISIONING"])
    (source,) = yaml.safe_load((provisioning / "datasources" / "p2p-gateway.yml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")
    (boards,) = yaml.safe_load((provisioning / "dashboards" / "p2p-gateway.yml").read_text())["providers"]
    assert boards["options"]["path"] == str(GRAFANA)
    with pytest.raises(OSError, match=r"refused|reset"):
        await asyncio.to_thread(got, f"{url}/api/health")


async def test_what_ends_before_it_answers_is_told_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no room'); raise SystemExit(1)"]
    log = tmp_path / "log"
    async with asking() as http, process(command, log) as running:
        with pytest.raises(NotReady, match="no room"):
            await answers(http, "http://127.0.0.1:1/", running, log)


@pytest.mark.observe
@pytest.mark.skipif(installed(PROMETHEUS_BINARY) is None, reason="no prometheus: apt-get install prometheus")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_shows_the_demo_to_a_prometheus_until_it_is_interrupted(number: signal.Signals) -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        told = ""
        for line in running.stdout:
            told += line
            if line.startswith("Ctrl-C"):
                break
        found = re.search(r"^prometheus +(\S+)/alerts$", told, re.MULTILINE)
        assert found is not None, told
        asked = f"{found[1]}/api/v1/query?query=sum(p2p_gateway_requests_total)"
        deadline = time.monotonic() + DEADLINE_S
        while not got(asked)["data"]["result"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        running.send_signal(number)
        _, complained = running.communicate(timeout=DEADLINE_S)
    assert (running.returncode, complained) == (0, "")
    for url in re.findall(r"http://\S+", told):
        with pytest.raises(OSError, match=r"refused|reset"):
            urllib.request.urlopen(url, timeout=5)
