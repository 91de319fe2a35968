"""A pod that answers as a test tells it to, for what a well-behaved pod does not do on the wire."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

from loadgen.ports import reset
from tests.gateway.fleet import MODEL

Script = Callable[[web.Request], Awaitable[web.StreamResponse]]
METRICS = b"""process_start_time_seconds 1.0
vllm:num_requests_running{engine="0"} 0.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:kv_cache_usage_perc{engine="0"} 0.0
"""


class Arrived(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes


class ScriptedPod:
    """Healthy and silent unless told otherwise: `scripts` maps a path to what answers it."""

    def __init__(self, scripts: dict[str, Script]) -> None:
        self.url = ""
        self.asked: list[Arrived] = []  # GETs
        self.scripts = scripts
        self.requests: list[Arrived] = []  # POSTs
        self.p2p_host, self.p2p_port = "127.0.0.1", 1  # where nobody pulls


def says(value: object, status: int = 200) -> Script:
    """A script that answers with JSON."""

    async def script(_: web.Request) -> web.Response:
        return web.json_response(value, status=status)

    return script


def page(body: bytes) -> Script:
    """A script that answers with plain text."""

    async def script(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="text/plain")

    return script


async def never(_: web.Request) -> web.StreamResponse:
    """A script that does not answer."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


def breaks_off(*chunks: bytes, **headers: str) -> Script:
    """A script that sends part of an answer, then resets the connection."""

    async def script(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "application/json", **headers})
        await answer.prepare(request)
        for chunk in chunks:
            await answer.write(chunk)
            await asyncio.sleep(0.02)  # each in a segment of its own
        assert request.transport is not None
        reset(request.transport.get_extra_info("socket"))
        request.transport.close()
        return answer

    return script


def models(*cards: dict[str, Any]) -> dict[str, Any]:
    """A body of /v1/models."""
    return {"object": "list", "data": list(cards)}


@asynccontextmanager
async def scripted(*, tls: ssl.SSLContext | None = None, **scripts: Script) -> AsyncIterator[ScriptedPod]:
    """A scripted pod, behind https if `tls`.

    `completions`, `chat`, `tokenize`, `models`, `metrics`, `sources`, `health` name the paths.
    """
    paths = {
        "health": "/health",
        "models": "/v1/models",
        "metrics": "/metrics",
        "sources": "/kv_event_sources",
        "completions": "/v1/completions",
        "chat": "/v1/chat/completions",
        "tokenize": "/tokenize",
    }
    defaults = {"health": page(b""), "models": says(models({"id": MODEL})), "metrics": page(METRICS)}
    pod = ScriptedPod({paths[name]: script for name, script in (defaults | scripts).items()})

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        arrived = pod.requests if request.method == "POST" else pod.asked
        arrived.append(Arrived(request.path_qs, headers, await request.read()))
        script = pod.scripts.get(request.path)
        return await script(request) if script is not None else web.Response(status=404)

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.05)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        pod.p2p_port = runner.addresses[0][1]
        pod.url = f"{'https' if tls else 'http'}://127.0.0.1:{pod.p2p_port}"
        yield pod
    finally:
        await runner.cleanup()
