"""`p2p-gateway` as an operator starts it."""

import asyncio
import json
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from gateway.cli import main
from tests.gateway.fleet import DEADLINE_S, MODEL, SLOW, client, simulated, spec, text_body, until

PODS: Any = [{"url": "http://127.0.0.1:1"}]
ANYWHERE = ("--host", "127.0.0.1", "--port", "0")


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[tuple[Process, str]]:
    """The command as a process, and the URL that its start-up line names."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "gateway", *arguments, stderr=PIPE)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(DEADLINE_S):
            while (match := re.search(rb"serving .*url=(\S+)", line := await process.stderr.readline())) is None:
                assert line, "it has ended"
        yield process, match[1].decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready(http: aiohttp.ClientSession, url: str) -> None:
    async def is_ready() -> bool:
        async with http.get(f"{url}/ready") as answer:
            return answer.status == 200

    await until(is_ready)


async def ended(process: Process) -> int:
    async with asyncio.timeout(DEADLINE_S):
        await process.communicate()
    assert process.returncode is not None
    return process.returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_serves_the_named_pods_until_told_to_stop(number: signal.Signals) -> None:
    async with (
        simulated(2) as (one, two),
        client() as http,
        started("--pod", one.url, "--pod", two.url, *ANYWHERE) as (process, url),
    ):
        await ready(http, url)
        async with http.post(f"{url}/v1/completions", json=text_body("hi")) as answer:
            assert (await answer.json())["model"] == MODEL
        process.send_signal(number)
        assert await ended(process) == 0


async def test_it_finishes_what_is_under_way_before_it_ends() -> None:
    async with (
        simulated(profile=SLOW) as (pod,),
        client() as http,
        started("--pod", pod.url, *ANYWHERE) as (process, url),
    ):
        await ready(http, url)
        sent = text_body("hi", stream=True, max_tokens=20)
        async with http.post(f"{url}/v1/completions", json=sent) as answer:
            await answer.content.readany()
            process.send_signal(signal.SIGTERM)
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        assert await ended(process) == 0


async def test_it_serves_a_configuration_file_and_logs_json_when_told_to(tmp_path: Path) -> None:
    async with simulated() as (pod,):
        file = tmp_path / "gateway.yaml"
        file.write_text(
            yaml.safe_dump({"listen": {"host": "127.0.0.1", "port": 0}, "pods": [spec(pod)], "log": {"format": "json"}})
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "--config", str(file), stderr=PIPE
        )
        assert process.stderr is not None
        async with asyncio.timeout(DEADLINE_S):
            entries = [json.loads(await process.stderr.readline()) for _ in range(2)]
        process.terminate()
        assert await ended(process) == 0
    by_event = {entry["event"]: entry for entry in entries}
    assert by_event["serving"]["url"].startswith("http://127.0.0.1:")
    assert by_event["pod ready"]["models"] == [MODEL]
    assert {entry["level"] for entry in entries} == {"info"}


async def test_a_taken_port_ends_it_with_3_and_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "--pod", "http://127.0.0.1:1", "--host", "127.0.0.1"),
            *("--port", str(taken.getsockname()[1])),
            stderr=PIPE,
        )
        _, told = await process.communicate()
    assert process.returncode == 3
    assert re.fullmatch(r"p2p-gateway: cannot listen on 127\.0\.0\.1:\d+: .*in use\n", told.decode())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"pods": PODS, "prot": 1}, "prot"),
        ({"pods": PODS, "p2p": {"enabld": True}}, "$.p2p"),
        ({"pods": PODS, "listen": {"port": "many"}}, "$.listen.port"),
        ({"pods": PODS, "p2p": {"min_cached_token_delta": 0}}, "$.p2p.min_cached_token_delta"),
        ({"pods": []}, "$.pods: no pods"),
        ({"pods": [{"url": "ftp://x"}]}, "$.pods[0]"),
        ({"pods": PODS, "placement": {"scorers": [{"type": "luck"}]}}, "$.placement.scorers[0]"),
        ("pods: [", "line 1"),
        ("", "$"),
    ],
)
def test_a_bad_file_ends_it_with_3_and_one_line(
    content: object, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    assert main(["--config", str(file)]) == 3
    out, told = capsys.readouterr()
    assert out == ""
    assert told.startswith(f"p2p-gateway: {file}: ")
    assert told.count("\n") == 1
    assert says in told


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"auth": {"keys": "none"}}, "$.auth.keys: none: No such file or directory"),
        ({"auth": {"keys": "text"}}, "$.auth.keys: text: $: expected a mapping"),
        ({"auth": {"keys": "."}}, "$.auth.keys: .: Is a directory"),
        ({"listen": {"tls": {"cert": "none", "key": "text"}}}, "$.listen.tls.cert: none: No such file or directory"),
        ({"listen": {"tls": {"cert": "text", "key": "none"}}}, "$.listen.tls.key: none: No such file or directory"),
        ({"listen": {"tls": {"cert": "text", "key": "text"}}}, "$.listen.tls: text and text are no pair of"),
        ({"listen": {"tls": {"cert": "text"}}}, "$.listen.tls: cert and key go together"),
        ({"listen": {"tls": {"client_ca": "text"}}}, "$.listen.tls: client_ca needs cert and key"),
        (
            {"listen": {"tls": {"cert": "text", "key": "text", "client_ca": "text"}}},
            "$.listen.tls.client_ca: text: no certificates in PEM",
        ),
        ({"admin": {"port": 0, "tls": {"cert": "none", "key": "none"}}}, "$.admin.tls.cert: none: No such file"),
        ({"upstream_tls": {"ca": "none"}}, "$.upstream_tls.ca: none: No such file or directory"),
        ({"upstream_tls": {"ca": "text", "verify": False}}, "$.upstream_tls: ca and verify: false exclude each other"),
        ({"upstream_tls": {"cert": "none", "key": "none"}}, "$.upstream_tls.cert: none: No such file or directory"),
        (
            {"pods": [*PODS, {"url": "http://h:1", "api_key_file": "none"}]},
            "$.pods[1].api_key_file: none: No such file",
        ),
        ({"pods": [{"url": "http://h:1", "api_key_file": "text"}]}, "$.pods[0].api_key_file: text: not one line"),
        ({"pods": [{"url": "http://h:1", "api_key_env": "NOT_SET_"}]}, "$.pods[0].api_key_env: NOT_SET_: not set"),
        ({"pods": [{"url": "http://h:1", "api_key_env": "A", "api_key_file": "b"}]}, "exclude each other"),
        ({"limits": {"max_concurrent": 0}}, "$.limits.max_concurrent"),
    ],
)
def test_files_that_it_cannot_use_end_it_with_3_and_one_line(
    section: dict[str, Any],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("two words, and a-secret")
    Path("gateway.yaml").write_text(yaml.safe_dump({"pods": PODS} | section))
    assert main(["--config", "gateway.yaml"]) == 3
    told = capsys.readouterr().err
    assert told.startswith("p2p-gateway: gateway.yaml: ")
    assert says in told
    assert told.count("\n") == 1
    assert "a-secret" not in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no pods"),
        (["--config", "/no/such/file.yaml"], "/no/such/file.yaml: No such file"),
        (["--config", "x.yaml", "--pod", "http://h:1"], "--config and --pod exclude each other"),
        (["--pod", "h:1"], "$.pods[0]"),
        (["--pod", "http://h:1", "--pod", "http://h:1/"], "listed twice"),
        (["--pod", "http://h:1", "--port", "99999"], "--port"),
        (["--pod", "http://h:1", "--port", "-1"], "--port"),
    ],
)
def test_arguments_that_cannot_be_served_end_it_with_3_and_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("p2p-gateway: ")
    assert says in told


def test_schema_prints_the_schema_of_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"pods", "listen", "p2p"} <= set(schema["$defs"]["Config"]["properties"])


def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["--version"])
    assert ending.value.code == 0
    assert capsys.readouterr().out.strip() == version("p2p-gateway")
