"""Tokenizer files from a hub: what is asked for, and what comes when it cannot be had."""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gateway.tokens.hub import fetch
from gateway.tokens.model_files import FilesMissing
from loadgen import model_files

COMMIT = "0123456789abcdef0123456789abcdef01234567"
READ = """
import sys
from config.schema import PodConfig, Breaker, Tokens
from gateway.pod import Pod
from gateway.tokens.local_models import load
pod = Pod(PodConfig(url="http://10.0.0.1:8000"), p2p=None, breaker=Breaker())
tokenizer = load(Tokens(path="org/name"), "model", pod)
print(tokenizer.files.directory, len(tokenizer.encode_text("prefix").ids))
"""


@asynccontextmanager
async def hub(directory: Path) -> AsyncIterator[tuple[str, list[str]]]:
    """One model; what is asked for."""
    asked: list[str] = []

    names = [*(path.name for path in directory.iterdir()), "model.safetensors"]

    async def listed(_: web.Request) -> web.Response:
        return web.json_response({"id": "org/name", "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]})

    async def tree(_: web.Request) -> web.Response:
        return web.json_response([{"type": "file", "path": name, "size": 1, "oid": COMMIT} for name in names])

    async def file(request: web.Request) -> web.Response:
        asked.append(request.match_info["file"])
        content = (directory / request.match_info["file"]).read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        return web.Response(body=content, headers=headers)

    app = web.Application()
    app.router.add_get("/api/models/org/name/revision/{revision}", listed)
    app.router.add_get("/api/models/org/name/tree/{revision}", tree)
    app.router.add_get("/org/name/resolve/{revision}/{file}", file)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def test_a_name_that_is_configured_is_fetched_without_weights(tmp_path: Path) -> None:
    async with hub(model_files.write(tmp_path / "model")) as (url, asked):
        found = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            READ,
            env={**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"},
            stdout=subprocess.PIPE,
        )
        out, _ = await found.communicate()
    assert found.returncode == 0
    directory, count = out.decode().splitlines()[-1].split()
    assert directory.endswith(COMMIT)
    assert count == "7"
    assert set(asked) == {"tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"}


def test_what_is_no_name_is_not_asked_for() -> None:
    for name in ("name", "org/name/more", "http://org/name", "../x", ""):
        with pytest.raises(FilesMissing, match="no name on a hub"):
            fetch(name, "main")


def test_a_hub_out_of_reach_is_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FilesMissing, match="org/name cannot be fetched"):
        fetch("org/name", "main")
