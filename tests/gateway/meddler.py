"""Something between a client and a simulated pod that changes what goes through: for pods that no option makes."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from loadgen.pod import SimulatedPod

Change = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]
"""A completion's body, or the answer to one, → another; None: as it was."""


class Meddler:
    """`pod` as seen through it: its own URL, the pod's address for pulls and its events."""

    def __init__(self, pod: SimulatedPod) -> None:
        self.pod = pod
        self.url = ""
        self.p2p_host, self.p2p_port = pod.p2p_host, pod.p2p_port


@asynccontextmanager
async def meddling(
    pod: SimulatedPod,
    *,
    request: Change | None = None,
    answer: Change | None = None,
    pages: Mapping[str, Any] | None = None,
    status: int = 200,
    key: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Meddler]:
    """`pages` are answered with JSON and `status`, whatever the pod says; `key`: 401 without it; `tls`: https."""

    async def handle(asked: web.Request) -> web.StreamResponse:
        if key is not None and asked.headers.get("Authorization") != f"Bearer {key}":
            return web.Response(status=401)
        if pages is not None and asked.path in pages:
            return web.json_response(pages[asked.path], status=status)
        if asked.method == "GET":
            async with http.get(pod.url + asked.path_qs) as got:
                return web.Response(body=await got.read(), status=got.status, content_type=got.content_type)
        body = await asked.json()
        if request is not None:
            body = await request(body) or body
        async with http.post(pod.url + asked.path_qs, json=body) as got:
            told = await got.json()
        if answer is not None:
            told = await answer(told) or told
        return web.json_response(told, status=got.status)

    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.05)
    meddler = Meddler(pod)
    async with aiohttp.ClientSession() as http:
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            meddler.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
            yield meddler
        finally:
            await runner.cleanup()
